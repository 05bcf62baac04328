/* SPDX-License-Identifier: Apache-2.0 */
/* The allocation table of a process: what each live address (or handle) has been charged, where and to which owner.
 * Sharded open addressing, flat in cost from none to millions of entries; memory comes from mmap, never from the
 * program's malloc.
 * Uses nothing of CUDA. Tests: tests/native/test_table.c. */
#ifndef VC_TABLE_TABLE_H
#define VC_TABLE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "lock.h"

struct table_entry {
  uint64_t key; /* never 0 */
  uint64_t bytes;
  uint32_t column;
  uint32_t owner; /* serial number of the context it dies with */
};

enum { TABLE_SHARDS = 64, TABLE_INLINE = 8 };

struct table_shard {
  struct lock lock;
  uint32_t count;
  uint32_t mask;             /* slots - 1; 0: not used yet, first_slots will do */
  struct table_entry *slots; /* NULL: first_slots */
  struct table_entry first_slots[TABLE_INLINE];
} __attribute__((aligned(64)));

/* All zero is an empty table. */
struct table {
  struct table_shard shard[TABLE_SHARDS];
};

/* For few entries, in less than a page. All zero is an empty one. */
struct table_small {
  struct table_shard shard;
};

/* Adds or replaces. 1: an entry with this key was there and is now in *OLD (OLD->key is 0 otherwise).
 * VC_EIO: no memory, nothing changed. */
int table_put(struct table *table, const struct table_entry *entry, struct table_entry *old);

/* The same for what cannot be refused any more: an entry that was taken out for a call that has failed, or of something
 * that exists already. Where there is no memory it has the places that table_put() leaves free, a quarter of them.
 * VC_EIO: they are full of such. */
int table_put_back(struct table *table, const struct table_entry *entry, struct table_entry *old);

/* Gives the entry of KEY another one, TO, which differs from it in the four lowest bits alone; needs no memory. 1: done,
 * *OUT is the entry, and one that TO had is in *OLD (OLD->key is 0 otherwise); 0: not there. */
int table_rename(struct table *table, uint64_t key, uint64_t to, struct table_entry *out, struct table_entry *old);

/* 1: found and copied to *OUT; 0: not there. */
int table_get(struct table *table, uint64_t key, struct table_entry *out);
int table_take(struct table *table, uint64_t key, struct table_entry *out);

/* The same for a small one, whose entries all are of what exists already. */
int table_small_put(struct table_small *table, const struct table_entry *entry, struct table_entry *old);
int table_small_get(struct table_small *table, uint64_t key, struct table_entry *out);
int table_small_take(struct table_small *table, uint64_t key, struct table_entry *out);

/* The same three for a table whose users all hold one and the same lock of their own: they take none. */
int table_put_locked(struct table *table, const struct table_entry *entry, struct table_entry *old);
int table_get_locked(struct table *table, uint64_t key, struct table_entry *out);
int table_take_locked(struct table *table, uint64_t key, struct table_entry *out);

/* Removes every entry of OWNER and hands each to VISIT, with no lock held that VISIT could need. */
typedef void table_visit(const struct table_entry *entry, void *data);
void table_take_owner(struct table *table, uint32_t owner, table_visit *visit, void *data);

/* In a forked child, which has one thread: forgets everything, whatever state the locks are in. Async-signal-safe. */
void table_reset(struct table *table);
void table_small_reset(struct table_small *table);

uint64_t table_count(struct table *table);

/* Bytes of all entries of a column. */
uint64_t table_sum(struct table *table, uint32_t column);
uint64_t table_small_sum(struct table_small *table, uint32_t column);

/* Entries of a column. */
uint32_t table_small_count(struct table_small *table, uint32_t column);

/* Copies entries of a column, at most MAX and no particular ones; returns how many. */
uint32_t table_collect(struct table *table, uint32_t column, struct table_entry *out, uint32_t max);

#endif
