/* SPDX-License-Identifier: Apache-2.0 */
/* What each part that holds device memory offers to the rest of the library. A new one defines a descriptor with
 * ALLOCATOR() and is put into the list of native/init.c; no other file names it.
 * Depends on no allocator. Tests: tests/integration/test_native_quota.py, tests/unit/native/test_layers.py. */
#ifndef VC_CUDA_ALLOCATORS_H
#define VC_CUDA_ALLOCATORS_H

#include <stdint.h>

/* NULL: nothing to do. */
struct allocator {
  /* Bytes that this process holds of a column, from its own table, and the part of it that is managed. */
  uint64_t (*usage)(uint32_t column);
  uint64_t (*managed_usage)(uint32_t column);
  /* Before a refusal: what is held in reserve goes back to the driver and out of the charge. 1: something did. */
  int (*reclaim)(uint32_t column);
  /* A context of the column's device is gone, and all charges of its owner are given back: for what belongs to a
   * device and may have gone too. */
  void (*context_gone)(uint32_t column);
  /* A context is gone (context_table.h), and what died with it is given back. */
  void (*forget_owner)(uint32_t owner);
};

#define ALLOCATOR(name) const struct allocator name##_allocator __attribute__((visibility("hidden")))

/* In the order in which they are asked; NULL ends the list. In native/init.c. */
extern const struct allocator *const allocators[] __attribute__((visibility("hidden")));

/* Sums over all of them. What no call declared (hooks/undeclared.h) is part of the first. */
uint64_t allocators_usage(uint32_t column);
uint64_t allocators_managed_usage(uint32_t column);

/* 1: something was given back. Not to be called under a lock that a reclaim takes. A reclaim may charge, and a charge
 * that does not fit comes back here: the second call on the same thread returns 0 at once, which is what ends the
 * circle. The rules that keep it finite: native/README.md. */
int allocators_reclaim(uint32_t column);

void allocators_context_gone(uint32_t column);
void allocators_forget_owner(uint32_t owner);

#endif
