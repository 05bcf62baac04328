/* SPDX-License-Identifier: Apache-2.0 */
/* What a process reads of the ledger without a slot: the limit and the sum of a column, its processes, the columns.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger.c, test_ledger_split.c. */
#include <string.h>

#include "ledger_plane.h"
#include "ledger_slots.h"
#include "os.h"
#include "plain.h"

enum { SWEEP_MS = 10 }; /* how stale a view of dead processes may be */

/* Dead processes show up as used until another process empties their slots; that happens often enough to be
 * unnoticeable and keeps a view free of system calls. */
static void sweep_if_stale(struct ledger *ledger) {
  uint64_t now = os_coarse_ms();
  uint64_t swept = atomic_load_explicit(&ledger->swept_ms, memory_order_relaxed);
  if (now - swept < SWEEP_MS) return;
  if (atomic_compare_exchange_strong(&ledger->swept_ms, &swept, now)) ledger_reclaim(ledger, NULL);
}

static __attribute__((noinline)) uint64_t living_others(struct ledger *ledger, uint32_t column, int32_t own) {
  sweep_if_stale(ledger);
  return sum_others(ledger, PLANE_ALL, column, own);
}

void ledger_view(struct ledger *ledger, uint32_t column, uint64_t *limit, uint64_t *used) {
  int32_t own = atomic_load_explicit(&ledger->slot, memory_order_relaxed);
  ledger_lapse(ledger);
  uint64_t others = sum_others(ledger, PLANE_ALL, column, own);
  if (others != 0) others = living_others(ledger, column, own);
  uint64_t mine = own < 0 ? 0 : used_bytes(atomic_load(&ledger->file->slot[own].used[column]));
  uint64_t total = others + mine + ledger_unhooked(ledger, column);
  *limit = ledger_memory(ledger, column);
  *used = total <= USED_BYTES_MASK ? total : USED_BYTES_MASK;
}

/* Whether a live process has the slot, and its PID. */
static int process_of(struct ledger *ledger, uint32_t slot, int32_t *pid) {
  *pid = os_pid();
  if ((int32_t)slot == atomic_load(&ledger->slot)) return 1;
  *pid = 0;
  if (!ledger_slot_alive(ledger, slot, pid)) return 0;
  /* Alive in a namespace we cannot see, or its record lock is gone: its own word is all there is. */
  if (*pid == 0) *pid = atomic_load(&ledger->file->slot[slot].pid);
  return 1;
}

int ledger_processes(struct ledger *ledger, uint32_t column, struct ledger_process *out, uint32_t max) {
  uint32_t count = 0;
  ledger_lapse(ledger);
  for (uint32_t i = 0; i < ledger_slots_in_use(ledger); i++) {
    uint64_t bytes = used_bytes(atomic_load(&ledger->file->slot[i].used[column]));
    int32_t pid;
    if (bytes == 0 || !process_of(ledger, i, &pid)) continue;
    if (count < max) {
      out[count].pid = pid;
      out[count].bytes = bytes;
    }
    count++;
  }
  return (int)count;
}

int ledger_has_process(struct ledger *ledger, int32_t pid) {
  int32_t owner;
  for (uint32_t i = 0; pid > 0 && i < ledger_slots_in_use(ledger); i++)
    if (process_of(ledger, i, &owner) && owner == pid) return 1;
  return 0;
}

uint32_t ledger_gpu_count(const struct ledger *ledger) { return ledger->columns; }

int ledger_column(const struct ledger *ledger, const uint8_t uuid[16]) {
  for (uint32_t i = 0; i < ledger->columns; i++)
    if (plain_same_bytes(ledger->file->uuid[i], uuid, VC_UUID_BYTES)) return (int)i;
  return VC_ENOENT;
}

void ledger_column_uuid(const struct ledger *ledger, uint32_t column, uint8_t uuid[16], uint32_t *flags) {
  memcpy(uuid, ledger->limit_of[column]->uuid, 16);
  *flags = ledger->limit_of[column]->flags;
}
