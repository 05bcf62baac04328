/* SPDX-License-Identifier: Apache-2.0 */
/* From a driver's own function to the hook that takes its place. The driver's functions have one address each, so an
 * address says more than a name and a version number could, and costs less to look up than a name.
 * Uses neither hooks nor drivers. Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_POINTERS_H
#define VC_HOOKS_POINTERS_H

#include <stdint.h>

#include "nvidia.h"

/* A power of two: one page, which every process that uses CUDA fills. names.c makes sure that there is room. */
enum { POINTER_BITS = 9, POINTER_SLOTS = 1 << POINTER_BITS, POINTER_KINDS = 2 };

struct pointer {
  uint32_t key;    /* 0: empty */
  int32_t wrapper; /* distance from this table: both are in this library */
};

/* Where an adopted driver lies in memory, by enum driver_kind; length 0: not known yet. */
struct span {
  uintptr_t begin;
  uintptr_t length;
};

extern struct pointer pointers[POINTER_SLOTS] __attribute__((visibility("hidden")));
extern struct span pointer_spans[POINTER_KINDS] __attribute__((visibility("hidden")));

static inline uint32_t pointer_key_of(unsigned int kind, uintptr_t offset) {
  return (uint32_t)offset * POINTER_KINDS + kind + 1;
}

static inline unsigned int pointer_slot(uint32_t key) { return (key * UINT32_C(0x9e3779b1)) >> (32 - POINTER_BITS); }

/* The driver of KIND begins at BEGIN. Then its functions are put, and published all at once. One writer at a time. */
void pointers_begin(unsigned int kind, uintptr_t begin);

/* WRAPPER, a function of this library, takes the place of REAL, a function of KIND. */
void pointers_put(unsigned int kind, void *real, void *wrapper);

/* From now on functions of KIND up to END are looked up here. */
void pointers_publish(unsigned int kind, uintptr_t end);

/* 0: no adopted driver's address. Else pointers_at() has the whole answer. */
static inline uint32_t pointers_key(const void *address) {
  for (unsigned int kind = 0; kind < POINTER_KINDS; kind++) {
    uintptr_t length = __atomic_load_n(&pointer_spans[kind].length, __ATOMIC_ACQUIRE);
    uintptr_t offset = (uintptr_t)address - pointer_spans[kind].begin;
    if (offset < length) return pointer_key_of(kind, offset);
  }
  return 0;
}

/* The wrapper of the function with this key, or REAL. */
static inline void *pointers_at(uint32_t key, void *real) {
  for (unsigned int slot = pointer_slot(key);; slot = (slot + 1) % POINTER_SLOTS) {
    uint32_t known = __atomic_load_n(&pointers[slot].key, __ATOMIC_ACQUIRE);
    if (known == 0) return real;
    if (VC_LIKELY(known == key)) return (char *)pointers + pointers[slot].wrapper;
  }
}

/* The hook's wrapper; NULL: REAL is no function that a hook takes the place of, or not by this address. */
static inline void *pointers_wrapper(void *real) {
  uint32_t key = pointers_key(real);
  return VC_LIKELY(key != 0) ? pointers_at(key, NULL) : NULL;
}

#endif
