/* SPDX-License-Identifier: Apache-2.0 */
/* Numbered records of one size, for what hangs together in lists: memory comes from mmap, never from the program's
 * malloc, and grows by doubling, which moves the records: keep numbers, not addresses.
 * Uses nothing of CUDA and locks nothing: the caller does. Tests: tests/native/test_store.c. */
#ifndef VC_TABLE_STORE_H
#define VC_TABLE_STORE_H

#include <stddef.h>
#include <stdint.h>

/* All zero but SIZE is an empty store. A record begins with a uint32_t that the store uses while the record is free. */
struct store {
  char *records;
  uint32_t size; /* bytes of a record */
  uint32_t capacity, fresh, free;
};

/* Number of a record, which holds whatever its last user left there; zero but for its first word when it had none.
 * 0: no memory. */
uint32_t store_new(struct store *store);
void store_delete(struct store *store, uint32_t number);

/* Numbers that were ever given out are 1 ... store->fresh. */
static inline void *store_at(const struct store *store, uint32_t number) {
  return store->records + (size_t)number * store->size;
}

/* Forgets everything. Async-signal-safe. */
void store_reset(struct store *store);

#endif
