/* SPDX-License-Identifier: Apache-2.0 */
/* Charges that end by themselves: a process let go of memory that another process may still hold, and pays on for some
 * seconds, by when that process has been measured.
 *
 * The bytes stay in the slot's own word, so a killed process frees them like all the rest. A record in the header has
 * the time at which they end: one word, and the process that exchanges it for 0 takes the bytes out of the slot, once.
 * That is any process of the container that reads the ledger or is about to refuse, so one that sleeps delays no other.
 * Killed in between, it leaves the bytes charged until the slot ends: too much, never too little. A record whose slot
 * changed hands means nothing.
 * Uses nothing of CUDA or NVML. Tests: tests/integration/test_native_lingering.py. */
#include "ledger_state.h"
#include "os.h"

/* A record: 10 bits of slot, 4 of column, 21 of bytes in units, 17 of the deadline in ticks, 12 of the slot's
 * generation. The clock is the machine's own: processes of a container agree about it. */
enum { TICK_MS = 250, TICK_BITS = 17, UNIT_BITS = 21, GENERATION_BITS = 12 };

static const uint64_t unit = UINT64_C(2) << 20;

_Static_assert(VC_MAX_SLOTS <= 1 << 10 && VC_MAX_GPUS <= 1 << 4, "slot and column fit a record");

static uint64_t low(uint64_t word, int bits) { return word & ((UINT64_C(1) << bits) - 1); }

static uint32_t slot_of(uint64_t word) { return (uint32_t)(word >> 54); }
static uint32_t column_of(uint64_t word) { return (uint32_t)low(word >> 50, 4); }
static uint64_t bytes_of(uint64_t word) { return low(word >> (TICK_BITS + GENERATION_BITS), UNIT_BITS) * unit; }

/* Ticks wrap after nine hours: what is further away than any deadline is long past. */
static int is_over(uint64_t word) {
  uint64_t left = low((word >> GENERATION_BITS) - os_coarse_ms() / TICK_MS, TICK_BITS);
  return left == 0 || left > LEDGER_LINGER_MS / TICK_MS + 1;
}

static void take_out(const struct ledger_slot *slot, used_t *cell, uint64_t word) {
  uint64_t held = atomic_load(cell), next;
  do {
    if (low(atomic_load(&slot->generation), GENERATION_BITS) != low(word, GENERATION_BITS)) return;
    uint64_t bytes = bytes_of(word) < used_bytes(held) ? bytes_of(word) : used_bytes(held);
    next = held - bytes + USED_TICK;
  } while (!atomic_compare_exchange_weak(cell, &held, next));
}

/* What is exported is the GPU's own memory. The whole first, as always (ledger_charge.c). */
static __attribute__((noinline)) int end(struct ledger *ledger, _Atomic uint64_t *record, uint64_t word) {
  if (!atomic_compare_exchange_strong(record, &word, 0)) return 0;
  if (slot_of(word) >= ledger_slots_in_use(ledger)) return 1;
  struct ledger_slot *slot = &ledger->file->slot[slot_of(word)];
  take_out(slot, &slot->used[column_of(word)], word);
  if (ledger->split != NULL) take_out(slot, &ledger->split[slot_of(word)].real[column_of(word)], word);
  return 1;
}

/* Nearly no container ever has such a charge, and every reading comes here. */
static uint32_t records_in_use(const struct ledger *ledger) {
  uint32_t n = atomic_load_explicit(&ledger->file->lingering_high, memory_order_relaxed);
  return n < LEDGER_LINGERING ? n : LEDGER_LINGERING; /* the file is the container's: bound its number */
}

static __attribute__((noinline, cold)) void lapse_some(struct ledger *ledger, uint32_t in_use) {
  for (uint32_t i = 0; i < in_use; i++) {
    uint64_t word = atomic_load_explicit(&ledger->file->lingering[i], memory_order_relaxed);
    if (word != 0 && is_over(word)) end(ledger, &ledger->file->lingering[i], word);
  }
}

void ledger_lapse(struct ledger *ledger) {
  uint32_t in_use = records_in_use(ledger);
  if (__builtin_expect(in_use != 0, 0)) lapse_some(ledger, in_use);
}

int ledger_linger(struct ledger *ledger, uint32_t column, uint64_t bytes, struct ledger_lingering *out) {
  int32_t slot = atomic_load(&ledger->slot);
  if (slot < 0 || column >= ledger->columns || bytes == 0 || bytes % unit != 0 || bytes / unit >> UNIT_BITS != 0)
    return 0;
  ledger_lapse(ledger);
  uint64_t deadline = low((os_coarse_ms() + LEDGER_LINGER_MS + TICK_MS - 1) / TICK_MS, TICK_BITS);
  uint64_t word = (uint64_t)slot << 54 | (uint64_t)column << 50 | (bytes / unit) << (TICK_BITS + GENERATION_BITS) |
                  deadline << GENERATION_BITS | low(atomic_load(&ledger->generation), GENERATION_BITS);
  for (uint32_t i = 0; i < LEDGER_LINGERING; i++) {
    uint64_t none = 0;
    uint32_t high = records_in_use(ledger);
    while (high <= i && !atomic_compare_exchange_weak(&ledger->file->lingering_high, &high, i + 1)) continue;
    if (!atomic_compare_exchange_strong(&ledger->file->lingering[i], &none, word)) continue;
    *out = (struct ledger_lingering){i, word};
    return 1;
  }
  return 0;
}

int ledger_lingers(const struct ledger *ledger, const struct ledger_lingering *lingering) {
  return lingering->word != 0 && atomic_load(&ledger->file->lingering[lingering->record]) == lingering->word;
}

int ledger_linger_end(struct ledger *ledger, const struct ledger_lingering *lingering) {
  return lingering->word != 0 && end(ledger, &ledger->file->lingering[lingering->record], lingering->word);
}
