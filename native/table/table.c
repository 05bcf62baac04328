/* SPDX-License-Identifier: Apache-2.0 */
/* Linear probing with backward-shift deletion: no tombstones, so a table that has seen a billion addresses probes no
 * longer than a new one. A shard grows at three quarters.
 * Uses nothing of CUDA. Tests: tests/native/test_table.c. */
#define _GNU_SOURCE
#include "table.h"

#include <string.h>
#include <sys/mman.h>

#include "status.h"

/* The upper bits of the product choose the shard, the middle ones the slot. Addresses are multiples of 256 and
 * handles of 16, so the low bits of a key say nothing. */
static uint64_t mix(uint64_t key) { return (key >> 4) * UINT64_C(0x9e3779b97f4a7c15); }

static struct table_shard *shard_of(struct table *table, uint64_t key) {
  return &table->shard[mix(key) >> 58];
}

_Static_assert(TABLE_SHARDS == 1 << (64 - 58), "shard_of takes six bits");

static uint32_t home_of(const struct table_shard *shard, uint64_t key) {
  return (uint32_t)(mix(key) >> 24) & shard->mask;
}

static __attribute__((noinline, cold)) void open_shard(struct table_shard *shard) {
  shard->slots = shard->first_slots;
  shard->mask = TABLE_INLINE - 1;
}

/* Number of the key's slot, or of the empty one where it belongs. */
static uint32_t find(const struct table_shard *shard, uint64_t key) {
  uint32_t index = home_of(shard, key);
  while (shard->slots[index].key != 0 && shard->slots[index].key != key) index = (index + 1) & shard->mask;
  return index;
}

static __attribute__((noinline, cold)) int grow(struct table_shard *shard) {
  struct table_shard bigger = *shard;
  size_t slots = ((size_t)shard->mask + 1) * 2;
  void *memory = mmap(NULL, slots * sizeof(struct table_entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
  if (memory == MAP_FAILED) return VC_EIO;
  bigger.slots = memory;
  bigger.mask = (uint32_t)(slots - 1);
  for (uint32_t i = 0; i <= shard->mask; i++)
    if (shard->slots[i].key != 0) bigger.slots[find(&bigger, shard->slots[i].key)] = shard->slots[i];
  struct table_entry *old_slots = shard->slots;
  size_t old_bytes = ((size_t)shard->mask + 1) * sizeof(struct table_entry);
  shard->slots = bigger.slots; /* before the unmapping: table_reset() may meet any state in between */
  shard->mask = bigger.mask;
  if (old_slots != shard->first_slots) munmap(old_slots, old_bytes);
  return VC_OK;
}

/* One slot stays empty, or find() would never end. */
static inline int put(struct table_shard *shard, const struct table_entry *entry, struct table_entry *old, int back) {
  if (__builtin_expect(shard->mask == 0, 0)) open_shard(shard);
  int crowded = (shard->count + 1) * 4 > (shard->mask + 1) * 3 && grow(shard) != VC_OK;
  struct table_entry *slot = &shard->slots[find(shard, entry->key)];
  int replaces = slot->key != 0;
  if (__builtin_expect(crowded, 0) && !replaces && (!back || shard->count == shard->mask)) return VC_EIO;
  if (__builtin_expect(replaces, 0))
    *old = *slot;
  else
    old->key = 0, shard->count++;
  *slot = *entry;
  return replaces;
}

static inline int put_in(struct table_shard *shard, const struct table_entry *entry, struct table_entry *old, int back) {
  lock_take(&shard->lock);
  int result = put(shard, entry, old, back);
  lock_give(&shard->lock);
  return result;
}

int table_put(struct table *table, const struct table_entry *entry, struct table_entry *old) {
  return put_in(shard_of(table, entry->key), entry, old, 0);
}

__attribute__((noinline, cold)) int table_put_back(struct table *table, const struct table_entry *entry,
                                                   struct table_entry *old) {
  return put_in(shard_of(table, entry->key), entry, old, 1);
}

int table_small_put(struct table_small *table, const struct table_entry *entry, struct table_entry *old) {
  return put_in(&table->shard, entry, old, 1);
}

int table_put_locked(struct table *table, const struct table_entry *entry, struct table_entry *old) {
  return put(shard_of(table, entry->key), entry, old, 0);
}

static int get(struct table_shard *shard, uint64_t key, struct table_entry *out) {
  if (shard->count == 0) return 0;
  const struct table_entry *slot = &shard->slots[find(shard, key)];
  if (slot->key == 0) return 0;
  *out = *slot;
  return 1;
}

static inline int get_in(struct table_shard *shard, uint64_t key, struct table_entry *out) {
  lock_take(&shard->lock);
  int found = get(shard, key, out);
  lock_give(&shard->lock);
  return found;
}

int table_get(struct table *table, uint64_t key, struct table_entry *out) {
  return get_in(shard_of(table, key), key, out);
}

int table_small_get(struct table_small *table, uint64_t key, struct table_entry *out) {
  return get_in(&table->shard, key, out);
}

int table_get_locked(struct table *table, uint64_t key, struct table_entry *out) {
  return get(shard_of(table, key), key, out);
}

/* Closes the gap: every following entry that may move into it without passing its home does. */
static void remove_slot(struct table_shard *shard, uint32_t gap) {
  for (uint32_t index = (gap + 1) & shard->mask; shard->slots[index].key != 0; index = (index + 1) & shard->mask) {
    uint32_t home = home_of(shard, shard->slots[index].key);
    if (((index - home) & shard->mask) < ((index - gap) & shard->mask)) continue;
    shard->slots[gap] = shard->slots[index];
    gap = index;
  }
  shard->slots[gap].key = 0;
  shard->count--;
}

static int take(struct table_shard *shard, uint64_t key, struct table_entry *out) {
  if (shard->count == 0) return 0;
  uint32_t index = find(shard, key);
  const struct table_entry *slot = &shard->slots[index];
  if (slot->key == 0) return 0;
  *out = *slot;
  remove_slot(shard, index);
  return 1;
}

static inline int take_in(struct table_shard *shard, uint64_t key, struct table_entry *out) {
  lock_take(&shard->lock);
  int found = take(shard, key, out);
  lock_give(&shard->lock);
  return found;
}

int table_take(struct table *table, uint64_t key, struct table_entry *out) {
  return take_in(shard_of(table, key), key, out);
}

int table_small_take(struct table_small *table, uint64_t key, struct table_entry *out) {
  return take_in(&table->shard, key, out);
}

int table_take_locked(struct table *table, uint64_t key, struct table_entry *out) {
  return take(shard_of(table, key), key, out);
}

/* Both have the same home, so the entry may stay where it is. */
int table_rename(struct table *table, uint64_t key, uint64_t to, struct table_entry *out, struct table_entry *old) {
  struct table_shard *shard = shard_of(table, key);
  lock_take(&shard->lock);
  int found = get(shard, key, out);
  old->key = 0;
  if (found) {
    take(shard, to, old);
    shard->slots[find(shard, key)].key = out->key = to;
  }
  lock_give(&shard->lock);
  return found;
}

/* Takes entries of the owner from slot *NEXT on, at most MAX. A removal moves entries back across *NEXT only from
 * behind it, or around the end of the table, which the caller's second round meets. */
static uint32_t take_some(struct table_shard *shard, uint32_t owner, uint32_t *next, struct table_entry *out,
                          uint32_t max) {
  uint32_t taken = 0;
  lock_take(&shard->lock);
  while (shard->count != 0 && *next <= shard->mask && taken < max) {
    struct table_entry *slot = &shard->slots[*next];
    if (slot->key == 0 || slot->owner != owner) {
      ++*next;
      continue;
    }
    out[taken++] = *slot;
    remove_slot(shard, *next);
  }
  lock_give(&shard->lock);
  return taken;
}

void table_take_owner(struct table *table, uint32_t owner, table_visit *visit, void *data) {
  enum { BATCH = 64 };
  struct table_entry batch[BATCH];
  for (uint32_t i = 0; i < TABLE_SHARDS; i++) {
    for (uint32_t round_taken = 1; round_taken != 0;) {
      uint32_t next = 0, taken;
      round_taken = 0;
      while ((taken = take_some(&table->shard[i], owner, &next, batch, BATCH)) != 0) {
        for (uint32_t k = 0; k < taken; k++) visit(&batch[k], data);
        round_taken += taken;
      }
    }
  }
}

static void reset_shard(struct table_shard *shard) {
  if (shard->mask == 0 && !shard->lock.taken) return; /* never used: leave its page untouched */
  if (shard->slots != NULL && shard->slots != shard->first_slots)
    munmap(shard->slots, ((size_t)shard->mask + 1) * sizeof(struct table_entry));
  memset(shard, 0, sizeof *shard);
}

void table_reset(struct table *table) {
  for (uint32_t i = 0; i < TABLE_SHARDS; i++) reset_shard(&table->shard[i]);
}

void table_small_reset(struct table_small *table) { reset_shard(&table->shard); }

uint64_t table_count(struct table *table) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < TABLE_SHARDS; i++) {
    lock_take(&table->shard[i].lock);
    count += table->shard[i].count;
    lock_give(&table->shard[i].lock);
  }
  return count;
}

static uint64_t sum_in(struct table_shard *shard, uint32_t column) {
  uint64_t sum = 0;
  lock_take(&shard->lock);
  for (uint32_t k = 0; shard->count != 0 && k <= shard->mask; k++)
    if (shard->slots[k].key != 0 && shard->slots[k].column == column) sum += shard->slots[k].bytes;
  lock_give(&shard->lock);
  return sum;
}

uint64_t table_sum(struct table *table, uint32_t column) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < TABLE_SHARDS; i++) sum += sum_in(&table->shard[i], column);
  return sum;
}

uint64_t table_small_sum(struct table_small *table, uint32_t column) {
  return sum_in(&table->shard, column);
}

uint32_t table_small_count(struct table_small *table, uint32_t column) {
  uint32_t count = 0;
  lock_take(&table->shard.lock);
  for (uint32_t i = 0; table->shard.count != 0 && i <= table->shard.mask; i++)
    count += table->shard.slots[i].key != 0 && table->shard.slots[i].column == column;
  lock_give(&table->shard.lock);
  return count;
}

uint32_t table_collect(struct table *table, uint32_t column, struct table_entry *out, uint32_t max) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < TABLE_SHARDS && count < max; i++) {
    struct table_shard *shard = &table->shard[i];
    lock_take(&shard->lock);
    for (uint32_t k = 0; shard->count != 0 && k <= shard->mask && count < max; k++)
      if (shard->slots[k].key != 0 && shard->slots[k].column == column) out[count++] = shard->slots[k];
    lock_give(&shard->lock);
  }
  return count;
}
