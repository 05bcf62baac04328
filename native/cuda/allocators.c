/* See allocators.h.
 * Tests: tests/integration/test_native_quota.py. */
#include "allocators.h"

#include "charge.h"
#include "context.h"

uint64_t allocators_usage(uint32_t column) { return charge_usage(column) + context_usage(column); }

static int reclaim(uint32_t column) {
  (void)column;
  return 0;
}

int allocators_reclaim(uint32_t column) {
  static _Thread_local int reclaiming;
  if (reclaiming) return 0;
  reclaiming = 1;
  int given_back = reclaim(column);
  reclaiming = 0;
  return given_back;
}

void allocators_after_fork(void) {
  charge_after_fork();
  context_after_fork();
}
