/* SPDX-License-Identifier: Apache-2.0 */
/* What every launch passes, whatever call makes it.
 * Tests: tests/integration/test_native_share.py. */
#ifndef VC_CUDA_LAUNCH_H
#define VC_CUDA_LAUNCH_H

#include "poller.h"
#include "runtime_state.h"
#include "stream_state.h"
#include "throttle.h"
#include "time_slice.h"

/* Before the driver is called: waits for the time slice and the throttle; the launch's stream state. NULL: nothing is
 * charged. */
static inline struct stream_state *launch_begin(CUstream stream, int per_thread) {
  time_slice_enter(stream, per_thread);
  struct stream_state *state = runtime_may_have_shares() ? stream_state_find(stream, per_thread) : NULL;
  if (state == NULL) return NULL;
  int open = (int)atomic_load_explicit(&poller_open[state->column], memory_order_relaxed);
  if (VC_LIKELY(open && !stream_state_is_full(state))) return state;
  throttle_launch(state);
  return state;
}

static inline CUresult launch_end(struct stream_state *state, CUresult result) {
  if (state == NULL || result != CUDA_SUCCESS) return result;
  if (stream_state_note(state)) stream_state_set_fence(state);
  if (!VC_LIKELY(atomic_load_explicit(&poller_awake, memory_order_relaxed))) poller_wake();
  return result;
}

#endif
