/* See lane.h: whose lane it is, marks, and how lanes end. The table is in lane_table.c, what a look asks the driver in
 * lane_look.c.
 * Knows the driver, neither buckets nor time. Tests: tests/native/test_lane.c, tests/integration/test_native_share.py. */
#include "lane.h"

#include "capture_mode.h"
#include "context.h"
#include "driver.h"
#include "lane_priv.h"
#include "os.h"
#include "place.h"

enum { KEY_LEGACY = 1, KEY_THREAD = 2 };

VC_LARGE struct lane lane_crowds[VC_MAX_GPUS];
_Atomic int lanes_stopped;
static struct long_lock touching;
static _Thread_local char seat; /* its address names the thread */

/* Under the lock of lane_touch(). */
static int is_idle(const struct lane *lane) {
  return !atomic_load(&lane->dirty) && !atomic_load(&lane->busy) &&
         atomic_load(&lane->launched) == atomic_load(&lane->passed);
}

/* Empties a lane. Events are kept for the next user of the same context. */
static void clear(struct lane *lane) {
  lane_table_free(lane);
  atomic_store(&lane->dirty, 0);
  atomic_store(&lane->launched, 0);
  atomic_store(&lane->passed, 0);
  atomic_store(&lane->next_mark, 1);
  atomic_store(&lane->marks_due, 0);
  lane->mark_count = 0;
  atomic_store(&lane->busy, 0);
  lane->seen = 0;
  window_reset(&lane->window);
  atomic_store(&lane->allowed, lane->window.allowed);
}

static void drop_events(struct lane *lane) {
  for (int i = 0; i < LANE_MARKS; i++) {
    if (lane->mark[i].event != NULL) real_cuda.cuEventDestroy_v2(lane->mark[i].event);
    lane->mark[i].event = NULL;
  }
  lane->events_of = NULL;
}

static void fill(struct lane *lane, CUstream stream, CUcontext context, enum lane_kind kind, uint32_t column) {
  lock_take(&lane->lock);
  clear(lane);
  lane->stream = stream;
  lane->context = context;
  lane->kind = kind;
  lane->column = column;
  lock_give(&lane->lock);
}

/* No marks are set for it and no queue is kept short: there is not one stream whose they could be. */
static struct lane *crowd_of(uint32_t column) {
  struct lane *lane = &lane_crowds[column];
  if (lane->kind == LANE_CROWD) return lane;
  fill(lane, NULL, NULL, LANE_CROWD, column);
  atomic_store(&lane->allowed, UINT32_MAX);
  atomic_store(&lane->next_mark, UINT64_MAX);
  return lane;
}

static struct lane *enter(uintptr_t key, CUstream stream, CUcontext context, enum lane_kind kind) {
  struct place place;
  if (context_place(&place) != CUDA_SUCCESS) return NULL;
  lock_take(&lane_table_lock);
  struct lane *lane = lane_table_find(key, kind == LANE_STREAM ? NULL : context);
  if (lane == NULL && (lane = lane_table_place(key)) != NULL) {
    fill(lane, stream, context, kind, place.column);
    lane_table_enter(lane, key);
  }
  if (lane == NULL) lane = crowd_of(place.column);
  lock_give(&lane_table_lock);
  return lane;
}

static int current_context(CUcontext *out) {
  *out = NULL;
  return real_cuda.cuCtxGetCurrent(out) == CUDA_SUCCESS && *out != NULL;
}

static __attribute__((noinline)) struct lane *find_slowly(uintptr_t key, CUstream stream, enum lane_kind kind) {
  CUcontext context, current;
  if (!current_context(&current)) return NULL;
  context = current;
  if (kind == LANE_STREAM && real_cuda.cuStreamGetCtx != NULL && real_cuda.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return NULL;
  /* The stream's context decides about the device, whatever is current. */
  if (context != current && real_cuda.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return NULL;
  struct lane *lane = enter(key, stream, context, kind);
  if (context != current) real_cuda.cuCtxPopCurrent_v2(&context);
  return lane;
}

static uintptr_t key_of_thread(CUcontext context) {
  return ((uintptr_t)&seat ^ (uintptr_t)context << 1) | KEY_THREAD;
}

static int is_default(CUstream stream) {
  return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

struct lane *lane_find(CUstream stream, int per_thread) {
  CUcontext context;
  uintptr_t key = (uintptr_t)stream;
  if (!is_default(stream)) {
    struct lane *lane = lane_table_find(key, NULL);
    return VC_LIKELY(lane != NULL) ? lane : find_slowly(key, stream, LANE_STREAM);
  }
  int own = stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread);
  if (!current_context(&context)) return NULL;
  key = own ? key_of_thread(context) : (uintptr_t)context | KEY_LEGACY;
  struct lane *lane = lane_table_find(key, context);
  if (VC_LIKELY(lane != NULL)) return lane;
  return find_slowly(key, own ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, own ? LANE_THREAD : LANE_LEGACY);
}

void lane_thread_is_done(CUcontext context) {
  if (context == NULL && !current_context(&context)) return;
  struct lane *lane = lane_table_find(key_of_thread(context), context);
  if (lane == NULL || lane->kind != LANE_THREAD) return;
  lane_raise_passed(lane, atomic_load_explicit(&lane->launched, memory_order_relaxed));
}

int lane_is_capturing(const struct lane *lane) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (real_cuda.cuStreamIsCapturing == NULL || lane->kind == LANE_CROWD) return 0;
  return real_cuda.cuStreamIsCapturing(lane->stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void pop_context(void) {
  CUcontext none;
  real_cuda.cuCtxPopCurrent_v2(&none);
}

/* --- marks: under the lane's lock -------------------------------------------------------------------------------- */

static CUevent event_for(struct lane *lane, struct lane_mark *mark) {
  if (lane->events_of != lane->context) {
    drop_events(lane);
    lane->events_of = lane->context;
  }
  if (mark->event == NULL && real_cuda.cuEventCreate(&mark->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    mark->event = NULL;
  return mark->event;
}

void lane_mark_on(struct lane *lane, CUstream stream) {
  uint64_t launched = atomic_load(&lane->launched), passed = atomic_load(&lane->passed);
  if (lane->mark_count == LANE_MARKS || launched <= passed) return;
  struct lane_mark *mark = &lane->mark[(lane->first_mark + lane->mark_count) % LANE_MARKS];
  CUevent event = event_for(lane, mark);
  if (event == NULL || real_cuda.cuEventRecord(event, stream) != CUDA_SUCCESS) return;
  mark->behind = launched;
  mark->outstanding = launched - passed < UINT32_MAX ? (uint32_t)(launched - passed) : UINT32_MAX;
  mark->set_ns = os_now_ns();
  lane->mark_count++;
}

static void poll_locked(struct lane *lane) {
  while (lane->mark_count != 0) {
    struct lane_mark *mark = &lane->mark[lane->first_mark];
    if (real_cuda.cuEventQuery(mark->event) == CUDA_ERROR_NOT_READY) return;
    uint64_t now = os_now_ns();
    window_passed(&lane->window, mark->outstanding, now > mark->set_ns ? now - mark->set_ns : 1);
    atomic_store(&lane->allowed, lane->window.allowed);
    lane_raise_passed(lane, mark->behind);
    lane->first_mark = (lane->first_mark + 1) % LANE_MARKS;
    lane->mark_count--;
  }
}

void lane_poll(struct lane *lane) {
  lock_take(&lane->lock);
  poll_locked(lane);
  lock_give(&lane->lock);
}

/* Four marks to a window. An event belongs to the context that is current when it is made, and has to be the stream's. */
void lane_set_mark(struct lane *lane) {
  if (lane_is_capturing(lane) || real_cuda.cuCtxPushCurrent_v2(lane->context) != CUDA_SUCCESS) return;
  CUstreamCaptureMode mode = capture_relax();
  lock_take(&lane->lock);
  poll_locked(lane);
  lane_mark_on(lane, lane->stream);
  uint32_t step = lane->window.allowed / LANE_MARKS, due = atomic_load(&lane->marks_due);
  if (due != 0) atomic_store(&lane->marks_due, due - 1);
  if (due > 1) step = 1;
  atomic_store(&lane->next_mark, atomic_load(&lane->launched) + (step != 0 ? step : 1));
  lock_give(&lane->lock);
  capture_restore(mode);
  pop_context();
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static _Thread_local char self;

void lane_touch(void) { long_lock_take(&touching, &self); }

void lane_touch_end(void) { long_lock_give(&touching); }

/* Events that ended with their context. */
static void forget_events(struct lane *lane) {
  for (int i = 0; i < LANE_MARKS; i++) lane->mark[i].event = NULL;
  lane->events_of = NULL;
}

/* Under the table's lock. */
static void forget(struct lane *lane) {
  lock_take(&lane->lock);
  forget_events(lane);
  clear(lane);
  lock_give(&lane->lock);
}

void lanes_stop(unsigned int limit_ms) {
  atomic_store(&lanes_stopped, 1);
  if (long_lock_try(&touching, &self, limit_ms)) long_lock_give(&touching);
}

static void mark_the_rest(struct lane *lane) {
  if (is_idle(lane) || lane_is_capturing(lane)) return;
  if (real_cuda.cuCtxPushCurrent_v2(lane->context) != CUDA_SUCCESS) return;
  lock_take(&lane->lock);
  if (lane->mark_count == LANE_MARKS) lane->mark_count--; /* set anew, behind all */
  lane_mark_on(lane, lane->stream);
  lock_give(&lane->lock);
  pop_context();
}

struct lane *lane_before_end(CUstream stream) {
  struct lane *lane = is_default(stream) ? NULL : lane_table_find((uintptr_t)stream, NULL);
  if (lane == NULL || lane->kind != LANE_STREAM) return NULL;
  mark_the_rest(lane);
  lane_table_enter(lane, KEY_ENDED);
  return lane;
}

void lane_free(struct lane *lane) {
  lock_take(&lane_table_lock);
  lock_take(&lane->lock);
  clear(lane);
  lock_give(&lane->lock);
  lock_give(&lane_table_lock);
}

/* Looks go on while the lane has work; the last one frees it. */
void lane_after_end(struct lane *lane, int gone) {
  if (lane == NULL) return;
  if (!gone) {
    lane_table_enter(lane, (uintptr_t)lane->stream);
  } else if (is_idle(lane)) {
    lane_free(lane);
  } else {
    lane->kind = LANE_ENDED;
    atomic_store(&lane->dirty, 1);
  }
}

static int has_events_of(struct lane *lane, CUcontext context) {
  lock_take(&lane->lock);
  int has = lane->events_of == context;
  lock_give(&lane->lock);
  return has;
}

void lanes_forget_context(CUcontext context) {
  struct lane_cursor cursor = {0, 0};
  lock_take(&lane_table_lock);
  for (struct lane *lane; (lane = lane_table_next(&cursor)) != NULL;)
    if (lane->context == context || has_events_of(lane, context)) forget(lane);
  lock_give(&lane_table_lock);
}

void lanes_forget_column(uint32_t column, int (*keeps)(CUcontext context)) {
  struct lane_cursor cursor = {0, 0};
  lock_take(&lane_table_lock);
  for (struct lane *lane; (lane = lane_table_next(&cursor)) != NULL;) {
    if (lane->column == column && lane->context != NULL && !keeps(lane->context)) forget(lane);
    lock_take(&lane->lock); /* events of its last user, who may have been on this card */
    if (lane->events_of != lane->context && !keeps(lane->events_of)) forget_events(lane);
    lock_give(&lane->lock);
  }
  lock_give(&lane_table_lock);
}

/* Should the context live on, the next look asks the streams themselves. */
void lanes_drop_events(CUcontext context) {
  struct lane_cursor cursor = {0, 0};
  for (struct lane *lane; (lane = lane_table_next(&cursor)) != NULL;) {
    lock_take(&lane->lock);
    if (lane->events_of == context) {
      drop_events(lane);
      if (lane->mark_count != 0) atomic_store(&lane->dirty, 1);
      lane->mark_count = 0;
    }
    lock_give(&lane->lock);
  }
}

void lanes_after_fork(void) {
  lane_table_after_fork();
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (lane_crowds[column].kind == LANE_CROWD) lane_crowds[column] = (struct lane){.kind = LANE_STREAM};
  long_lock_give(&touching);
  atomic_store(&lanes_stopped, 0);
}
