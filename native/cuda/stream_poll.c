/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over all stream states: which streams have work under way. In the thread of poller.c, whose capture mode is
 * relaxed.
 * Uses the driver, neither buckets nor time. Tests: tests/native/test_stream_state.c,
 * tests/integration/test_native_share.py. */
#include "capture.h"
#include "driver.h"
#include "stream_state_priv.h"

enum { FEW = 8 }; /* launches between two polls, each of which may get a fence */

/* An error other than "not ready" is the program's to find: work that failed is not under way. While the stream may not
 * be queried, its state stays dirty: else what it was given in a capture would count as its queue for ever. */
static int ask_stream(struct stream_state *state) {
  uint64_t launched = atomic_load(&state->launched);
  if (!capture_is_off(state->stream, 0)) {
    if (launched > atomic_load(&state->passed)) atomic_store(&state->dirty, 1);
    return state->fence_count != 0;
  }
  if (real_cuda.cuStreamQuery(state->stream) == CUDA_ERROR_NOT_READY) return 1;
  stream_state_raise_passed(state, launched);
  return 0;
}

static int poll_fences(struct stream_state *state) {
  if (state->fence_count == 0) stream_state_raise_passed(state, atomic_load(&state->launched));
  return state->fence_count != 0;
}

/* The next launch sets a fence, and some after it where there are few. */
static void request_fences(struct stream_state *state, uint64_t launched) {
  atomic_store(&state->fences_due, launched - state->seen <= FEW ? FEW : 1);
  atomic_store(&state->next_fence, 0);
  state->seen = launched;
}

/* Only the thread itself can query its default stream. Its fences tell; when it launched without one and then stopped
 * launching, the shared default stream waits for it and can be given a fence instead. */
static int ask_thread(struct stream_state *state, int launches) {
  uint64_t launched = atomic_load(&state->launched);
  if (launches) request_fences(state, launched);
  if (state->fence_count != 0) return 1;
  if (launched <= atomic_load(&state->passed)) return 0;
  if (launches) return 1;
  if (capture_is_off(CU_STREAM_LEGACY, 0)) {
    lock_take(&state->lock);
    stream_state_fence_on(state, CU_STREAM_LEGACY);
    lock_give(&state->lock);
  }
  return poll_fences(state);
}

static int ask(struct stream_state *state, int launches) {
  switch (state->kind) {
    case STREAM_OF_THREAD:
      return ask_thread(state, launches);
    case STREAM_ENDED:
      return poll_fences(state);
    case STREAM_OVERFLOW:
      stream_state_raise_passed(state, atomic_load(&state->launched));
      return launches;
    default:
      return ask_stream(state);
  }
}

static int ask_within(struct stream_state *state, int launches) {
  CUcontext none;
  if (real_cuda.cuCtxPushCurrent_v2(state->context) != CUDA_SUCCESS) {
    atomic_store(&state->passed, atomic_load(&state->launched));
    return 0;
  }
  stream_state_poll(state);
  int busy = ask(state, launches);
  real_cuda.cuCtxPopCurrent_v2(&none);
  return busy;
}

static int needs_poll(const struct stream_state *state) {
  return atomic_load_explicit(&state->dirty, memory_order_relaxed) ||
         atomic_load_explicit(&state->busy, memory_order_relaxed);
}

static void poll_one(struct stream_state *state, struct stream_poll *view) {
  int launches = (int)atomic_exchange(&state->dirty, 0);
  int busy = state->kind == STREAM_OVERFLOW ? ask(state, launches) : ask_within(state, launches);
  atomic_store(&state->busy, busy);
  if (busy) view->busy |= UINT32_C(1) << state->column;
  view->any |= launches || busy;
  if (!busy && state->kind == STREAM_ENDED) stream_state_free(state);
}

/* The lock is taken for each state anew: another thread waits for it for a microsecond. */
struct stream_poll stream_states_poll(void) {
  struct stream_poll view = {0, 0};
  struct stream_cursor cursor = {0, 0};
  for (struct stream_state *state; (state = stream_table_next(&cursor)) != NULL;) {
    if (!needs_poll(state)) continue;
    stream_polls_block();
    if (stream_table_has(state) && !atomic_load(&stream_polls_stopped)) poll_one(state, &view);
    stream_polls_unblock();
  }
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (needs_poll(&stream_overflows[column])) poll_one(&stream_overflows[column], &view);
  return view;
}

int stream_states_are_dirty(void) {
  struct stream_cursor cursor = {0, 0};
  for (struct stream_state *state; (state = stream_table_next(&cursor)) != NULL;)
    if (atomic_load(&state->dirty)) return 1;
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (atomic_load(&stream_overflows[column].dirty)) return 1;
  return 0;
}
