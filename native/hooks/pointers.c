/* SPDX-License-Identifier: Apache-2.0 */
/* Filled when a driver is adopted, read ever after. A reader may come while an entry is written: it finds the whole
 * entry or an empty slot, and asks only about spans that are complete.
 * Uses neither hooks nor drivers. Tests: tests/integration/test_native_lookup.py. */
#include "pointers.h"

#include <stddef.h>

struct pointer pointers[POINTER_SLOTS];
struct span pointer_spans[POINTER_KINDS];

/* Beyond it a key would no longer be one function's. Functions there, which no driver has, are found by their names. */
enum { LONGEST = INT32_MAX };

void pointers_begin(unsigned int kind, uintptr_t begin) { pointer_spans[kind].begin = begin; }

/* Where a driver has one address for two names, the first one stands for both. */
void pointers_put(unsigned int kind, void *real, void *wrapper) {
  uintptr_t offset = (uintptr_t)real - pointer_spans[kind].begin;
  if (real == NULL || offset >= LONGEST) return;
  uint32_t key = pointer_key_of(kind, offset);
  unsigned int slot = pointer_slot(key);
  for (; pointers[slot].key != 0; slot = (slot + 1) % POINTER_SLOTS)
    if (pointers[slot].key == key) return;
  pointers[slot].wrapper = (int32_t)((char *)wrapper - (char *)pointers);
  __atomic_store_n(&pointers[slot].key, key, __ATOMIC_RELEASE);
}

void pointers_publish(unsigned int kind, uintptr_t end) {
  uintptr_t length = end - pointer_spans[kind].begin;
  __atomic_store_n(&pointer_spans[kind].length, length < LONGEST ? length : LONGEST, __ATOMIC_RELEASE);
}
