/* SPDX-License-Identifier: Apache-2.0 */
/* See store.h. Record 0 is never given out, so that 0 can mean none.
 * Tests: tests/native/test_store.c. */
#define _GNU_SOURCE
#include "store.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_BYTES = 4096 };

static int grow(struct store *store) {
  size_t old_bytes = (size_t)store->capacity * store->size;
  size_t bytes = old_bytes == 0 ? FIRST_BYTES : old_bytes * 2;
  if (bytes / store->size > UINT32_MAX) return 0;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  char *old = store->records;
  if (old != NULL) memcpy(memory, old, old_bytes);
  store->records = memory; /* before the unmapping: store_reset() may meet any state in between */
  store->capacity = (uint32_t)(bytes / store->size);
  if (old != NULL) munmap(old, old_bytes);
  return 1;
}

uint32_t store_new(struct store *store) {
  uint32_t number = store->free;
  if (number != 0) {
    uint32_t *record = store_at(store, number);
    store->free = *record;
    return number;
  }
  if (store->fresh + 1 >= store->capacity && !grow(store)) return 0;
  return ++store->fresh;
}

void store_delete(struct store *store, uint32_t number) {
  uint32_t *record = store_at(store, number);
  *record = store->free;
  store->free = number;
}

void store_reset(struct store *store) {
  if (store->records != NULL) munmap(store->records, (size_t)store->capacity * store->size);
  *store = (struct store){.size = store->size};
}
