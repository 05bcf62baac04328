/* SPDX-License-Identifier: Apache-2.0 */
/* See ledger_allowance.h.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger_allowance.c, tests/model/ledger.pml. */
#include "ledger_allowance.h"

enum { HOLD_OFF = 1024 }; /* charges for which a process whose allowance was revoked does not reserve anew */

static const uint64_t least = UINT64_C(16) << 20, most = UINT64_C(1) << 30;

/* The allowance first: at the other order a charge within it, made between the two and followed by a revocation, would
 * be seen in neither. */
uint64_t ledger_sum_reserved(const struct ledger *ledger, uint32_t column, int32_t own, uint32_t slots) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < slots; i++) {
    if ((int32_t)i == own) continue;
    uint64_t allowed = used_bytes(atomic_load(allowance_cell(ledger, (int32_t)i, column)));
    uint64_t used = used_bytes(atomic_load(&ledger->file->slot[i].used[column]));
    sum += used > allowed ? used : allowed;
  }
  return sum;
}

/* Others need the room more than we need the speed. */
static int was_revoked(const struct ledger *ledger, int32_t own, uint32_t column) {
  uint64_t known = atomic_load(&ledger->allowed[column].bytes);
  return known != 0 && !allowance_covers(ledger, atomic_load(allowance_cell(ledger, own, column)), known);
}

/* As one charge: written, then all others read. */
static int reserve(struct ledger *ledger, int32_t own, uint32_t column, uint64_t level, uint64_t limit,
                   uint64_t unhooked) {
  used_t *cell = allowance_cell(ledger, own, column);
  uint64_t word = allowance_word(ledger, level);
  atomic_store(cell, word);
  if (ledger_sum_reserved(ledger, column, own, ledger_slots_in_use(ledger)) + level + unhooked <= limit) return 1;
  atomic_compare_exchange_strong(cell, &word, 0);
  return 0;
}

static void renew(struct ledger *ledger, int32_t own, uint32_t column, uint64_t level, uint64_t limit,
                  uint64_t unhooked) {
  struct ledger_allowed *allowed = &ledger->allowed[column];
  atomic_store(&allowed->bytes, 0); /* before the word changes */
  if (!reserve(ledger, own, column, level, limit, unhooked)) return;
  atomic_store(&allowed->limit, limit);
  atomic_store(&allowed->unhooked, unhooked);
  atomic_store(&allowed->bytes, level);
}

void ledger_allow(struct ledger *ledger, int32_t own, uint32_t column, uint64_t used, uint64_t total, uint64_t limit,
                  uint64_t unhooked) {
  struct ledger_allowed *allowed = &ledger->allowed[column];
  uint64_t more = (limit - total) / (2 * (uint64_t)ledger_slots_in_use(ledger));
  if (more < least || !allowances_exist(ledger)) return;
  if (atomic_exchange(&allowed->renewing, 1)) return; /* another thread of ours is at it */
  if (was_revoked(ledger, own, column)) {
    atomic_store(&allowed->bytes, 0);
    allowed->hold_off = HOLD_OFF;
  }
  if (allowed->hold_off != 0)
    allowed->hold_off--;
  else
    renew(ledger, own, column, used + (more < most ? more : most), limit, unhooked);
  atomic_store(&allowed->renewing, 0);
}

int ledger_revoke(const struct ledger *ledger, uint32_t column) {
  int32_t own = atomic_load(&ledger->slot);
  int any = 0;
  if (!allowances_exist(ledger)) return 0;
  for (uint32_t i = 0; i < ledger_slots_in_use(ledger); i++) {
    used_t *cell = allowance_cell(ledger, (int32_t)i, column);
    if ((int32_t)i != own && used_bytes(atomic_load(cell)) != 0) any |= used_bytes(atomic_exchange(cell, 0)) != 0;
  }
  return any;
}
