/* SPDX-License-Identifier: Apache-2.0 */
/* What a process may take without reading the others' words: part of how a charge is decided (ledger_charge.c). Where
 * several processes share a quota, reading the words of all processes twice for every charge is what a charge costs,
 * because each of these words has just been written by another one. So a process that found plenty of room reserves
 * some of it beforehand.
 *
 * - An allowance is a level in the owner's slot: as long as its used bytes stay at or below it, it charges by one
 *   addition to its own word and reads no other. Used bytes stay what they are, and readers are not concerned.
 * - A process that decides for itself counts each other one with its used bytes or its allowance, whichever is more. So
 *   an allowance is taken exactly as a charge is: written first, then all others are read, and taken back if it is too
 *   much.
 * - A process that finds no room revokes the allowances of all others, by one store each, and decides again. The owner
 *   adds first and reads its allowance afterwards, the revoker stores first and reads the used bytes afterwards: one of
 *   the two sees the other. Nothing is lost with a process that is killed anywhere in between, because no bytes are
 *   moved.
 * - A refusal is decided on used bytes alone (ledger_charge.c), so a reservation refuses no other process.
 *
 * The level is only good together with what the process itself remembers of it, which it forgets before it writes a new
 * one: between writing and confirming it must not be used, not by another thread either. It carries the slot's
 * generation: a process that lost its slot meanwhile writes its level into another owner's, to which it must mean
 * nothing.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger_allowance.c, tests/model/ledger.pml. */
#ifndef VC_SHM_LEDGER_ALLOWANCE_H
#define VC_SHM_LEDGER_ALLOWANCE_H

#include "ledger_plane.h"

/* Only in a file with that feature, because libraries without it would not count what is reserved; and where
 * there is room: a GPU's allowance lies in the word of a column that a page with half as many GPUs, or fewer, does not
 * have. */
static inline int allowances_exist(const struct ledger *ledger) { return ledger->allowances; }

static inline used_t *allowance_cell(const struct ledger *ledger, int32_t slot, uint32_t column) {
  return &ledger->file->slot[slot].used[VC_MAX_GPUS - 1 - column];
}

static inline uint64_t allowance_word(const struct ledger *ledger, uint64_t bytes) {
  return (uint64_t)atomic_load_explicit(&ledger->generation, memory_order_acquire) << 48 | bytes;
}

/* Whether WORD allows USED bytes to the process that has the slot with its present generation. */
static inline int allowance_covers(const struct ledger *ledger, uint64_t word, uint64_t used) {
  return used <= used_bytes(word) && word >> 48 == (allowance_word(ledger, 0) >> 48);
}

/* Before the addition: whether it is worth trying, under the limits that are in force now. The level is read first, and
 * its terms after it: the other way round they could be those of an earlier level. */
static inline int allowance_promises(const struct ledger *ledger, int32_t own, uint32_t column, uint64_t used,
                                     uint64_t limit, uint64_t unhooked) {
  const struct ledger_allowed *allowed = &ledger->allowed[column];
  return used <= atomic_load_explicit(&allowed->bytes, memory_order_acquire) &&
         limit == atomic_load_explicit(&allowed->limit, memory_order_relaxed) &&
         unhooked == atomic_load_explicit(&allowed->unhooked, memory_order_relaxed) &&
         allowance_covers(ledger, atomic_load_explicit(allowance_cell(ledger, own, column), memory_order_relaxed), used);
}

/* After it: whether it stands. The slot's word first: a level that is being replaced is forgotten here before that. */
static inline int allowance_holds(const struct ledger *ledger, int32_t own, uint32_t column, uint64_t used) {
  return allowance_covers(ledger, atomic_load(allowance_cell(ledger, own, column)), used) &&
         used <= atomic_load(&ledger->allowed[column].bytes);
}

/* Sum over all slots but OWN of used bytes or allowance, whichever is more. */
uint64_t ledger_sum_reserved(const struct ledger *ledger, uint32_t column, int32_t own, uint32_t slots);

/* A charge was decided by reading all processes: with it the process uses USED bytes, and all of them together reserve
 * TOTAL. Reserves some more if there is plenty. */
void ledger_allow(struct ledger *ledger, int32_t own, uint32_t column, uint64_t used, uint64_t total, uint64_t limit,
                  uint64_t unhooked);

/* Takes all others' allowances away. 1: there were any. */
int ledger_revoke(const struct ledger *ledger, uint32_t column);

#endif
