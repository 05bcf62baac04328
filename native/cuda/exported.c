/* SPDX-License-Identifier: Apache-2.0 */
/* See exported.h.
 *
 * The level of a GPU is what is in use on it beyond what this process has charged by calls. It does not change when
 * this process takes memory or gives it back, and falls by the size of exported memory, still charged, when that is
 * gone. So "the level is lower than before the call by at least these bytes" means gone. Neighbours move it too: one
 * that frees as much in between ends the charge early, one that takes as much lets it last its seconds. Charges under
 * way in other threads do the same. Both end with the deadline.
 * Where the driver has a limit for this container, that takes the GPU's place in what NVML shows. A level that was read
 * before the limit came says nothing about one that was read after it: their sizes tell, and the deadline decides.
 * Tests: tests/integration/test_native_lingering.py. */
#include "exported.h"

#include <stdatomic.h>

#include "allocators.h"
#include "charge.h"
#include "ledger.h"
#include "lock.h"
#include "nvml_probe.h"
#include "place.h"
#include "runtime_state.h"
#include "undeclared.h"

enum { ENTRIES = 64, PATIENCE_MS = 20 };

struct entry {
  struct ledger_lingering lingering; /* word 0: free */
  uint32_t column;
  uint64_t bytes;
  struct level level; /* before the call that ended it */
};

static VC_LARGE struct entry entries[ENTRIES];
static struct lock lock;         /* of the entries; taken under the holdings' */
static struct long_lock reclaiming; /* readings of the level are taken and judged one after the other */
static _Atomic int exporting;    /* something was exported */
static _Atomic int count;        /* of entries in use */
static _Thread_local char self;

void exported_begin(void) {
  nvml_probe_prepare();
  atomic_store_explicit(&exporting, 1, memory_order_release);
}

static int read_level(uint32_t column, struct level *level) {
  struct ledger_holding own;
  uint64_t used;
  if (!nvml_probe_total(column, &used, &level->size) || ledger_holding(runtime_ledger, column, &own) != VC_OK) return 0;
  level->bytes = (int64_t)used - (int64_t)own.bytes + (int64_t)undeclared_bytes(column);
  return 1;
}

int exported_keep(uint32_t column, uint64_t bytes, const struct release_probe *probe) {
  int kept = 0;
  if (probe == NULL || probe->column != (int)column || !probe->seen) return 0;
  lock_take(&lock);
  for (struct entry *entry = entries; entry < entries + ENTRIES && !kept; entry++) {
    if (entry->lingering.word != 0) continue;
    kept = ledger_linger(runtime_ledger, column, bytes, &entry->lingering);
    if (!kept) break;
    entry->column = column;
    entry->bytes = bytes;
    entry->level = probe->level;
    atomic_fetch_add(&count, 1);
  }
  lock_give(&lock);
  return kept;
}

static void drop(struct entry *entry) {
  *entry = (struct entry){.column = 0};
  atomic_fetch_sub(&count, 1);
}

/* What lapsed is no longer charged and may still be there: that raises the level for those that remain. */
static void forget_lapsed(void) {
  ledger_lapse(runtime_ledger);
  for (struct entry *entry = entries; entry < entries + ENTRIES; entry++) {
    if (entry->lingering.word == 0 || ledger_lingers(runtime_ledger, &entry->lingering)) continue;
    for (struct entry *other = entries; other < entries + ENTRIES; other++)
      if (other->column == entry->column) other->level.bytes += (int64_t)entry->bytes;
    drop(entry);
  }
}

/* What is gone lowered the level, and its charge, given back, raises it again: nothing changes for the others. */
static int end_charges_of_gone(uint32_t column, struct level now) {
  int ended = 0;
  for (struct entry *entry = entries; entry < entries + ENTRIES; entry++) {
    if (entry->lingering.word == 0 || entry->column != column || now.size != entry->level.size ||
        now.bytes + (int64_t)entry->bytes > entry->level.bytes)
      continue;
    ended |= ledger_linger_end(runtime_ledger, &entry->lingering);
    now.bytes += (int64_t)entry->bytes;
    drop(entry);
  }
  return ended;
}

static int reclaim(uint32_t column) {
  struct level level;
  int ended = 0;
  if (atomic_load(&count) == 0 || !long_lock_try(&reclaiming, &self, PATIENCE_MS)) return 0;
  lock_take(&lock);
  forget_lapsed();
  lock_give(&lock);
  if (read_level(column, &level)) {
    lock_take(&lock);
    ended = end_charges_of_gone(column, level);
    lock_give(&lock);
  }
  long_lock_give(&reclaiming);
  return ended;
}

int release_probe_is_settled(const struct release_probe *probe) {
  return !atomic_load_explicit(&exporting, memory_order_acquire) || probe->column >= 0;
}

void release_probe_begin(struct release_probe *probe, int column) {
  if (release_probe_is_settled(probe) || column < 0) return;
  probe->column = column;
  reclaim((uint32_t)column); /* what is gone already must not count for this call */
  probe->seen = read_level((uint32_t)column, &probe->level);
}

void release_probe_end(const struct release_probe *probe) {
  if (probe->column >= 0 && probe->seen) reclaim((uint32_t)probe->column);
}

void exported_after_fork(void) {
  lock_give(&lock);
  long_lock_give(&reclaiming);
  atomic_store(&exporting, 0);
  atomic_store(&count, 0);
  for (struct entry *entry = entries; entry < entries + ENTRIES; entry++) *entry = (struct entry){.column = 0};
}

ALLOCATOR(exported) = {.reclaim = reclaim};
