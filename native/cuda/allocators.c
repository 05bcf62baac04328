/* See allocators.h.
 * Tests: tests/integration/test_native_quota.py. */
#include "allocators.h"

#include "charge.h"
#include "context.h"
#include "undeclared.h"
#include "exported.h"
#include "graph_memory.h"
#include "holding.h"
#include "limit.h"
#include "managed.h"
#include "pool.h"
#include "sparse.h"
#include "time_slice.h"
#include "vmm.h"

/* Asked when the slot was lost. What lingered there (exported.c) went with it: it is held no more by this process, and
 * in a new slot nothing would end it. */
uint64_t allocators_usage(uint32_t column) {
  return charge_usage(column) + context_usage(column) + graph_memory_usage(column) +
         pool_usage(column) + holding_usage(column) + undeclared_bytes(column);
}

uint64_t allocators_managed_usage(uint32_t column) { return charge_managed_usage(column) + pool_managed_usage(column); }

static int reclaim(uint32_t column) {
  int given_back = 0;
  given_back |= graph_memory_reclaim(column);
  given_back |= pool_reclaim(column);
  given_back |= exported_reclaim(column);
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
  graph_memory_context_gone(column);
  pool_context_gone(column);
}

void allocators_forget_owner(uint32_t owner) {
  charge_forget_owner(owner);
  limit_forget_owner(owner);
  sparse_forget_owner(owner);
}

void allocators_after_fork(void) {
  charge_after_fork();
  context_after_fork();
  graph_memory_after_fork();
  holding_after_fork();
  exported_after_fork();
  vmm_after_fork();
  sparse_after_fork();
  limit_after_fork();
  managed_after_fork();
  time_slice_after_fork();
  pool_after_fork();
  undeclared_after_fork();
}
