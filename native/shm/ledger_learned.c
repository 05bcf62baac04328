/* SPDX-License-Identifier: Apache-2.0 */
/* What one process of the container has found out and the others need not find out again: how much of a GPU a context
 * takes. Finding it out needs NVML, whose start takes many times as long as everything else this library does.
 *
 * One word per GPU: the PID namespace in which it was found, and the bytes. The bytes are the same everywhere. In that
 * namespace NVML lists processes under their own PIDs, which is what makes a measurement certain (hooks/undeclared.h);
 * elsewhere that is unknown. The word is the container's to write, like the whole file: with a wrong one it deceives
 * itself, and the node agent measures.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger.c, tests/integration/test_native_context.py. */
#include "ledger_state.h"

int ledger_learned_context(struct ledger *ledger, uint32_t column, uint64_t *bytes) {
  if (column >= ledger->columns) return 0;
  uint64_t word = atomic_load_explicit(&ledger->file->context_cost[column], memory_order_relaxed);
  if (!(word & LEARNED)) return 0;
  *bytes = ledger_learned_bytes(word);
  return 1;
}

int ledger_learned_here(struct ledger *ledger) {
  for (uint32_t column = 0; column < ledger->columns; column++) {
    uint64_t word = atomic_load_explicit(&ledger->file->context_cost[column], memory_order_relaxed);
    if ((word & LEARNED) && word >> LEARNED_NAMESPACE_SHIFT == ledger_hold_namespace(&ledger->hold)) return 1;
  }
  return 0;
}

void ledger_learn_context(struct ledger *ledger, uint32_t column, uint64_t bytes) {
  uint64_t here = ledger_hold_namespace(&ledger->hold);
  if (column >= ledger->columns || here == 0 || bytes % LEARNED_GRAIN != 0) return;
  if (bytes / LEARNED_GRAIN > LEARNED_GRAINS_MASK) return;
  uint64_t word = here << LEARNED_NAMESPACE_SHIFT | LEARNED | bytes / LEARNED_GRAIN;
  atomic_store_explicit(&ledger->file->context_cost[column], word, memory_order_relaxed);
}
