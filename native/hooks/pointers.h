/* From a driver's own function to the hook that takes its place. The driver's functions have one address each, so an
 * address says more than a name and a version number could, and costs less to look up than a name.
 * Knows neither hooks nor drivers. Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_POINTERS_H
#define VC_HOOKS_POINTERS_H

#include <stdint.h>

#include "nvidia.h"

/* A power of two; names.c makes sure that the table stays half empty. */
enum { POINTER_BITS = 10, POINTER_SLOTS = 1 << POINTER_BITS };

struct pointer {
  void *real; /* NULL: empty */
  void *wrapper;
};

/* Where an adopted driver lies in memory, by enum driver_kind; length 0: not known yet. */
struct span {
  uintptr_t begin;
  uintptr_t length;
};

extern struct pointer pointers[POINTER_SLOTS] __attribute__((visibility("hidden")));
extern struct span pointer_spans[2] __attribute__((visibility("hidden")));

static inline unsigned int pointer_slot(const void *real) {
  return (unsigned int)(((uint64_t)(uintptr_t)real * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - POINTER_BITS));
}

/* A function's wrapper takes its place. One writer at a time. */
void pointers_put(void *real, void *wrapper);

/* From now on functions of KIND that lie in the span are looked up here; all of them have been put. */
void pointers_publish(unsigned int kind, uintptr_t begin, uintptr_t end);

/* 1: an adopted driver's address, so what pointers_replace() says about it is all there is to say. */
static inline int pointers_know(const void *address) {
  for (unsigned int kind = 0; kind < 2; kind++) {
    uintptr_t length = __atomic_load_n(&pointer_spans[kind].length, __ATOMIC_ACQUIRE);
    if ((uintptr_t)address - pointer_spans[kind].begin < length) return 1;
  }
  return 0;
}

/* The hook's wrapper, or REAL itself. NULL is NULL. */
static inline void *pointers_replace(void *real) {
  for (unsigned int slot = pointer_slot(real);; slot = (slot + 1) % POINTER_SLOTS) {
    void *known = __atomic_load_n(&pointers[slot].real, __ATOMIC_ACQUIRE);
    if (known == NULL) return real;
    if (VC_LIKELY(known == real)) return pointers[slot].wrapper;
  }
}

#endif
