/* Filled when a driver is adopted, read ever after. A reader may come while an entry is written: it finds the whole
 * entry or an empty slot, and asks only about spans that are complete.
 * Knows neither hooks nor drivers. Tests: tests/integration/test_native_lookup.py. */
#include "pointers.h"

#include <stddef.h>

struct pointer pointers[POINTER_SLOTS];
struct span pointer_spans[2];

/* Where a driver has one address for two names, the first one stands for both. */
void pointers_put(void *real, void *wrapper) {
  unsigned int slot = pointer_slot(real);
  if (real == NULL) return;
  for (; pointers[slot].real != NULL; slot = (slot + 1) % POINTER_SLOTS)
    if (pointers[slot].real == real) return;
  pointers[slot].wrapper = wrapper;
  __atomic_store_n(&pointers[slot].real, real, __ATOMIC_RELEASE);
}

void pointers_publish(unsigned int kind, uintptr_t begin, uintptr_t end) {
  pointer_spans[kind].begin = begin;
  __atomic_store_n(&pointer_spans[kind].length, end - begin, __ATOMIC_RELEASE);
}
