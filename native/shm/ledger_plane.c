/* SPDX-License-Identifier: Apache-2.0 */
/* See ledger_plane.h.
 * Tests: tests/native/test_ledger.c, test_ledger_split.c. */
#include "ledger_plane.h"

uint64_t ledger_unhooked(const struct ledger *ledger, uint32_t column) {
  return sealed_value(atomic_load_explicit(&ledger->limit_of[column]->unhooked_bytes, memory_order_relaxed));
}

uint64_t ledger_physical(const struct ledger *ledger, uint32_t column) {
  uint64_t whole = ledger_memory(ledger, column);
  uint64_t word = atomic_load_explicit(&ledger->share_of[column]->physical_bytes, memory_order_relaxed);
  uint64_t physical = sealed_or(word, whole);
  return physical < whole ? physical : whole;
}

uint64_t ledger_host_budget(const struct ledger *ledger, uint32_t column) {
  uint64_t whole = ledger_memory(ledger, column), physical = ledger_physical(ledger, column);
  return physical < whole ? whole - physical : 0;
}

__attribute__((noinline)) uint64_t ledger_sum_loop(const used_t *cell, size_t stride, int32_t own, uint32_t slots) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < slots; i++, cell += stride)
    if ((int32_t)i != own) sum += used_bytes(atomic_load_explicit(cell, memory_order_seq_cst));
  return sum;
}
