/* What every launch passes, whatever call makes it.
 * Tests: tests/integration/test_native_share.py. */
#ifndef VC_CUDA_LAUNCH_H
#define VC_CUDA_LAUNCH_H

#include "gate.h"
#include "guest.h"
#include "lane.h"
#include "turn.h"
#include "watch.h"

/* Before the driver is called: the launch's lane, after its turn has come and the gate. NULL: nothing is charged. */
static inline struct lane *launch_begin(CUstream stream, int per_thread) {
  turn_pass(stream, per_thread);
  struct lane *lane = guest_may_have_shares() ? lane_find(stream, per_thread) : NULL;
  if (lane == NULL) return NULL;
  if (VC_LIKELY(atomic_load_explicit(&watch_open[lane->column], memory_order_relaxed) && !lane_is_full(lane))) return lane;
  gate_pass(lane);
  return lane;
}

static inline CUresult launch_end(struct lane *lane, CUresult result) {
  if (lane == NULL || result != CUDA_SUCCESS) return result;
  if (lane_note(lane)) lane_set_mark(lane);
  if (!VC_LIKELY(atomic_load_explicit(&watch_awake, memory_order_relaxed))) watch_wake();
  return result;
}

#endif
