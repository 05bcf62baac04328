/* SPDX-License-Identifier: Apache-2.0 */
/* See allocators.h.
 * Tests: tests/integration/test_native_quota.py. */
#include "allocators.h"

#include <stddef.h>

#include "undeclared.h"

#define EACH(entry) for (const struct allocator *const *entry = allocators; *entry != NULL; entry++)

/* Asked when the slot was lost. What lingered there (exported.c) went with it: it is held no more by this process, and
 * in a new slot nothing would end it. */
uint64_t allocators_usage(uint32_t column) {
  uint64_t sum = undeclared_bytes(column);
  EACH(entry) if ((*entry)->usage != NULL) sum += (*entry)->usage(column);
  return sum;
}

uint64_t allocators_managed_usage(uint32_t column) {
  uint64_t sum = 0;
  EACH(entry) if ((*entry)->managed_usage != NULL) sum += (*entry)->managed_usage(column);
  return sum;
}

static int reclaim(uint32_t column) {
  int given_back = 0;
  EACH(entry) if ((*entry)->reclaim != NULL) given_back |= (*entry)->reclaim(column);
  given_back |= undeclared_shrink(column); /* last: what the others gave back is measured no more */
  return given_back;
}

int allocators_reclaim(uint32_t column) {
  static _Thread_local int reclaiming;
  if (reclaiming) return 0;
  reclaiming = 1;
  int given_back = reclaim(column);
  reclaiming = 0;
  return given_back;
}

void allocators_context_gone(uint32_t column) {
  EACH(entry) if ((*entry)->context_gone != NULL) (*entry)->context_gone(column);
}

void allocators_forget_owner(uint32_t owner) {
  EACH(entry) if ((*entry)->forget_owner != NULL) (*entry)->forget_owner(owner);
}
