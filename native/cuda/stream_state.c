/* SPDX-License-Identifier: Apache-2.0 */
/* See stream_state.h: which state a launch has, its fences, and how states end. The table is in stream_table.c, what a
 * poll asks the driver in stream_poll.c.
 * Uses the driver, neither buckets nor time. Tests: tests/native/test_stream_state.c,
 * tests/integration/test_native_share.py. */
#include "stream_state.h"

#include "capture.h"
#include "context_table.h"
#include "driver.h"
#include "os.h"
#include "place.h"
#include "stream_state_priv.h"

enum { KEY_LEGACY = 1, KEY_THREAD = 2 };

VC_LARGE struct stream_state stream_overflows[VC_MAX_GPUS];
_Atomic int stream_polls_stopped;
static struct long_lock blocking;
static _Thread_local char seat; /* its address names the thread */

/* Under the lock of stream_polls_block(). */
static int is_idle(const struct stream_state *state) {
  return !atomic_load(&state->dirty) && !atomic_load(&state->busy) &&
         atomic_load(&state->launched) == atomic_load(&state->passed);
}

/* Empties a state. Events are kept for the next user of the same context. */
static void clear(struct stream_state *state) {
  stream_table_free(state);
  atomic_store(&state->dirty, 0);
  atomic_store(&state->launched, 0);
  atomic_store(&state->passed, 0);
  atomic_store(&state->next_fence, 1);
  atomic_store(&state->fences_due, 0);
  state->fence_count = 0;
  atomic_store(&state->busy, 0);
  state->seen = 0;
  window_reset(&state->window);
  atomic_store(&state->allowed, state->window.allowed);
}

static void drop_events(struct stream_state *state) {
  for (int i = 0; i < STREAM_FENCES; i++) {
    if (state->fence[i].event != NULL) real_cuda.cuEventDestroy_v2(state->fence[i].event);
    state->fence[i].event = NULL;
  }
  state->events_of = NULL;
}

static void fill(struct stream_state *state, CUstream stream, CUcontext context, enum stream_kind kind, uint32_t column) {
  lock_take(&state->lock);
  clear(state);
  state->stream = stream;
  state->context = context;
  state->kind = kind;
  state->column = column;
  lock_give(&state->lock);
}

/* It gets no fences and its queue is not kept short: it stands for more than one stream. */
static struct stream_state *overflow_of(uint32_t column) {
  struct stream_state *state = &stream_overflows[column];
  if (state->kind == STREAM_OVERFLOW) return state;
  fill(state, NULL, NULL, STREAM_OVERFLOW, column);
  atomic_store(&state->allowed, UINT32_MAX);
  atomic_store(&state->next_fence, UINT64_MAX);
  return state;
}

static struct stream_state *enter(uintptr_t key, CUstream stream, CUcontext context, enum stream_kind kind) {
  struct place place;
  if (context_place(&place) != CUDA_SUCCESS) return NULL;
  lock_take(&stream_table_lock);
  struct stream_state *state = stream_table_find(key, kind == STREAM_CREATED ? NULL : context);
  if (state == NULL && (state = stream_table_place(key)) != NULL) {
    fill(state, stream, context, kind, place.column);
    stream_table_enter(state, key);
  }
  if (state == NULL) state = overflow_of(place.column);
  lock_give(&stream_table_lock);
  return state;
}

static int current_context(CUcontext *out) {
  *out = NULL;
  return real_cuda.cuCtxGetCurrent(out) == CUDA_SUCCESS && *out != NULL;
}

static __attribute__((noinline)) struct stream_state *find_slowly(uintptr_t key, CUstream stream, enum stream_kind kind) {
  CUcontext context, current;
  if (!current_context(&current)) return NULL;
  context = current;
  if (kind == STREAM_CREATED && real_cuda.cuStreamGetCtx != NULL &&
      real_cuda.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
    return NULL;
  /* The stream's context decides about the device, whatever is current. */
  if (context != current && real_cuda.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return NULL;
  struct stream_state *state = enter(key, stream, context, kind);
  if (context != current) real_cuda.cuCtxPopCurrent_v2(&context);
  return state;
}

static uintptr_t key_of_thread(CUcontext context) {
  return ((uintptr_t)&seat ^ (uintptr_t)context << 1) | KEY_THREAD;
}

static int is_default(CUstream stream) {
  return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

struct stream_state *stream_state_find(CUstream stream, int per_thread) {
  CUcontext context;
  uintptr_t key = (uintptr_t)stream;
  if (!is_default(stream)) {
    struct stream_state *state = stream_table_find(key, NULL);
    return VC_LIKELY(state != NULL) ? state : find_slowly(key, stream, STREAM_CREATED);
  }
  int own = stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread);
  if (!current_context(&context)) return NULL;
  key = own ? key_of_thread(context) : (uintptr_t)context | KEY_LEGACY;
  struct stream_state *state = stream_table_find(key, context);
  if (VC_LIKELY(state != NULL)) return state;
  return find_slowly(key, own ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, own ? STREAM_OF_THREAD : STREAM_LEGACY);
}

void stream_thread_is_done(CUcontext context) {
  if (context == NULL && !current_context(&context)) return;
  struct stream_state *state = stream_table_find(key_of_thread(context), context);
  if (state == NULL || state->kind != STREAM_OF_THREAD) return;
  stream_state_raise_passed(state, atomic_load_explicit(&state->launched, memory_order_relaxed));
}

int stream_state_is_capturing(const struct stream_state *state) {
  return state->kind != STREAM_OVERFLOW && !capture_is_off(state->stream, 0);
}

static void pop_context(void) {
  CUcontext none;
  real_cuda.cuCtxPopCurrent_v2(&none);
}

/* --- fences: under the state's lock ----------------------------------------------------------------------------- */

static CUevent event_for(struct stream_state *state, struct stream_fence *fence) {
  if (state->events_of != state->context) {
    drop_events(state);
    state->events_of = state->context;
  }
  if (fence->event == NULL && real_cuda.cuEventCreate(&fence->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    fence->event = NULL;
  return fence->event;
}

void stream_state_fence_on(struct stream_state *state, CUstream stream) {
  uint64_t launched = atomic_load(&state->launched), passed = atomic_load(&state->passed);
  if (state->fence_count == STREAM_FENCES || launched <= passed) return;
  struct stream_fence *fence = &state->fence[(state->first_fence + state->fence_count) % STREAM_FENCES];
  CUevent event = event_for(state, fence);
  if (event == NULL || real_cuda.cuEventRecord(event, stream) != CUDA_SUCCESS) return;
  fence->behind = launched;
  fence->outstanding = launched - passed < UINT32_MAX ? (uint32_t)(launched - passed) : UINT32_MAX;
  fence->set_ns = os_now_ns();
  state->fence_count++;
}

static void poll_locked(struct stream_state *state) {
  while (state->fence_count != 0) {
    struct stream_fence *fence = &state->fence[state->first_fence];
    if (real_cuda.cuEventQuery(fence->event) == CUDA_ERROR_NOT_READY) return;
    uint64_t now = os_now_ns();
    window_passed(&state->window, fence->outstanding, now > fence->set_ns ? now - fence->set_ns : 1);
    atomic_store(&state->allowed, state->window.allowed);
    stream_state_raise_passed(state, fence->behind);
    state->first_fence = (state->first_fence + 1) % STREAM_FENCES;
    state->fence_count--;
  }
}

void stream_state_poll(struct stream_state *state) {
  lock_take(&state->lock);
  poll_locked(state);
  lock_give(&state->lock);
}

/* Four fences to a window. An event belongs to the context that is current when it is made, and has to be the
 * stream's. */
void stream_state_set_fence(struct stream_state *state) {
  if (stream_state_is_capturing(state) || real_cuda.cuCtxPushCurrent_v2(state->context) != CUDA_SUCCESS) return;
  CUstreamCaptureMode mode = capture_relax();
  lock_take(&state->lock);
  poll_locked(state);
  stream_state_fence_on(state, state->stream);
  uint32_t step = state->window.allowed / STREAM_FENCES, due = atomic_load(&state->fences_due);
  if (due != 0) atomic_store(&state->fences_due, due - 1);
  if (due > 1) step = 1;
  atomic_store(&state->next_fence, atomic_load(&state->launched) + (step != 0 ? step : 1));
  lock_give(&state->lock);
  capture_restore(mode);
  pop_context();
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static _Thread_local char self;

void stream_polls_block(void) { long_lock_take(&blocking, &self); }

void stream_polls_unblock(void) { long_lock_give(&blocking); }

/* Events that ended with their context. */
static void forget_events(struct stream_state *state) {
  for (int i = 0; i < STREAM_FENCES; i++) state->fence[i].event = NULL;
  state->events_of = NULL;
}

/* Under the table's lock. */
static void forget(struct stream_state *state) {
  lock_take(&state->lock);
  forget_events(state);
  clear(state);
  lock_give(&state->lock);
}

void stream_polls_stop(unsigned int limit_ms) {
  atomic_store(&stream_polls_stopped, 1);
  if (long_lock_try(&blocking, &self, limit_ms)) long_lock_give(&blocking);
}

static void fence_the_rest(struct stream_state *state) {
  if (is_idle(state) || stream_state_is_capturing(state)) return;
  if (real_cuda.cuCtxPushCurrent_v2(state->context) != CUDA_SUCCESS) return;
  lock_take(&state->lock);
  if (state->fence_count == STREAM_FENCES) state->fence_count--; /* set anew, behind all */
  stream_state_fence_on(state, state->stream);
  lock_give(&state->lock);
  pop_context();
}

struct stream_state *stream_state_before_end(CUstream stream) {
  struct stream_state *state = is_default(stream) ? NULL : stream_table_find((uintptr_t)stream, NULL);
  if (state == NULL || state->kind != STREAM_CREATED) return NULL;
  fence_the_rest(state);
  stream_table_enter(state, KEY_ENDED);
  return state;
}

void stream_state_free(struct stream_state *state) {
  lock_take(&stream_table_lock);
  lock_take(&state->lock);
  clear(state);
  lock_give(&state->lock);
  lock_give(&stream_table_lock);
}

/* Polls go on while the state has work; the last one frees it. */
void stream_state_after_end(struct stream_state *state, int gone) {
  if (state == NULL) return;
  if (!gone) {
    stream_table_enter(state, (uintptr_t)state->stream);
  } else if (is_idle(state)) {
    stream_state_free(state);
  } else {
    state->kind = STREAM_ENDED;
    atomic_store(&state->dirty, 1);
  }
}

static int has_events_of(struct stream_state *state, CUcontext context) {
  lock_take(&state->lock);
  int has = state->events_of == context;
  lock_give(&state->lock);
  return has;
}

void stream_states_forget_context(CUcontext context) {
  struct stream_cursor cursor = {0, 0};
  lock_take(&stream_table_lock);
  for (struct stream_state *state; (state = stream_table_next(&cursor)) != NULL;)
    if (state->context == context || has_events_of(state, context)) forget(state);
  lock_give(&stream_table_lock);
}

void stream_states_forget_column(uint32_t column, int (*keeps)(CUcontext context)) {
  struct stream_cursor cursor = {0, 0};
  lock_take(&stream_table_lock);
  for (struct stream_state *state; (state = stream_table_next(&cursor)) != NULL;) {
    if (state->column == column && state->context != NULL && !keeps(state->context)) forget(state);
    lock_take(&state->lock); /* events of its last user, which may have been on this GPU */
    if (state->events_of != state->context && !keeps(state->events_of)) forget_events(state);
    lock_give(&state->lock);
  }
  lock_give(&stream_table_lock);
}

/* If the context lives on, the next poll queries the streams themselves. */
void stream_states_drop_events(CUcontext context) {
  struct stream_cursor cursor = {0, 0};
  for (struct stream_state *state; (state = stream_table_next(&cursor)) != NULL;) {
    lock_take(&state->lock);
    if (state->events_of == context) {
      drop_events(state);
      if (state->fence_count != 0) atomic_store(&state->dirty, 1);
      state->fence_count = 0;
    }
    lock_give(&state->lock);
  }
}

void stream_states_after_fork(void) {
  stream_table_after_fork();
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (stream_overflows[column].kind == STREAM_OVERFLOW) stream_overflows[column] = (struct stream_state){.kind = STREAM_CREATED};
  long_lock_give(&blocking);
  atomic_store(&stream_polls_stopped, 0);
}
