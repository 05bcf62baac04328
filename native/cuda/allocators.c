/* See allocators.h.
 * Tests: tests/integration/test_native_quota.py. */
#include "allocators.h"

#include <stddef.h>

#include "undeclared.h"

#define EACH(one) for (const struct allocator *const *one = allocators; *one != NULL; one++)

/* Asked when the slot was lost. What lingered there (exported.c) went with it: it is held no more by this process, and
 * in a new slot nothing would end it. */
uint64_t allocators_usage(uint32_t column) {
  uint64_t sum = undeclared_bytes(column);
  EACH(one) if ((*one)->usage != NULL) sum += (*one)->usage(column);
  return sum;
}

uint64_t allocators_managed_usage(uint32_t column) {
  uint64_t sum = 0;
  EACH(one) if ((*one)->managed_usage != NULL) sum += (*one)->managed_usage(column);
  return sum;
}

static int reclaim(uint32_t column) {
  int given_back = 0;
  EACH(one) if ((*one)->reclaim != NULL) given_back |= (*one)->reclaim(column);
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
  EACH(one) if ((*one)->context_gone != NULL) (*one)->context_gone(column);
}

void allocators_forget_owner(uint32_t owner) {
  EACH(one) if ((*one)->forget_owner != NULL) (*one)->forget_owner(owner);
}
