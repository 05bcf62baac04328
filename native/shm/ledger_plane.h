/* SPDX-License-Identifier: Apache-2.0 */
/* What is charged, and its words: everything, or a part of it with a limit of its own. For the files of the ledger.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger_split.c. */
#ifndef VC_SHM_LEDGER_PLANE_H
#define VC_SHM_LEDGER_PLANE_H

#include "ledger_state.h"

enum plane { PLANE_REAL = LEDGER_REAL, PLANE_MANAGED = LEDGER_MANAGED, PLANE_ALL };

/* PLANE is a constant wherever these are called, so that of a choice nothing remains. */
static inline uint64_t plane_limit(const struct ledger *ledger, enum plane plane, uint32_t column) {
  if (plane == PLANE_ALL) return ledger_memory(ledger, column);
  return plane == PLANE_REAL ? ledger_physical(ledger, column) : ledger_host_budget(ledger, column);
}

/* What no call declared is on the GPU. */
static inline uint64_t plane_unhooked(const struct ledger *ledger, enum plane plane, uint32_t column) {
  return plane == PLANE_MANAGED ? 0 : ledger_unhooked(ledger, column);
}

static inline used_t *plane_cell(const struct ledger *ledger, enum plane plane, int32_t slot, uint32_t column) {
  if (plane == PLANE_ALL) return &ledger->file->slot[slot].used[column];
  return plane == PLANE_REAL ? &ledger->split[slot].real[column] : &ledger->split[slot].managed[column];
}

static inline size_t plane_stride(enum plane plane) {
  return (plane == PLANE_ALL ? sizeof(struct ledger_slot) : sizeof(struct ledger_split)) / sizeof(used_t);
}

/* Sum of the words at CELL and on, but for OWN's. */
uint64_t ledger_sum_loop(const used_t *cell, size_t stride, int32_t own, uint32_t slots);

/* Sum of all slots but OWN. Cannot overflow: 1024 words of 48 bits. A container that writes nonsense into its ledger
 * only refuses itself. The first slot, all there is for most containers, costs no loop. */
static inline uint64_t sum_others(const struct ledger *ledger, enum plane plane, uint32_t column, int32_t own) {
  uint32_t slots = ledger_slots_in_use(ledger);
  if (slots == 1 && own == 0) return 0;
  return ledger_sum_loop(plane_cell(ledger, plane, 0, column), plane_stride(plane), own, slots);
}

#endif
