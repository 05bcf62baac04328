/* See lane.h: the table, and marks. What a look asks the driver is in lane_look.c.
 * Knows the driver, neither buckets nor time. Tests: tests/integration/test_native_share.py. */
#include "lane.h"

#include <string.h>

#include "capture_mode.h"
#include "context.h"
#include "driver.h"
#include "lane_priv.h"
#include "os.h"
#include "place.h"

enum { PROBES = 16, KEY_LEGACY = 1, KEY_THREAD = 2 };

VC_LARGE struct lane lanes[LANES];
_Atomic int lanes_stopped;
static struct long_lock touching;
static struct lock table;
static _Thread_local char seat; /* its address names the thread */

static unsigned int place_of(uintptr_t key) {
  return (unsigned int)(((uint64_t)key * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

_Static_assert(LANES == 256, "place_of() gives eight bits");

static struct lane *find_key(uintptr_t key) {
  unsigned int place = place_of(key);
  for (unsigned int i = 0; i < PROBES; i++) {
    struct lane *lane = &lanes[(place + i) % LANES];
    if (VC_LIKELY(atomic_load_explicit(&lane->key, memory_order_acquire) == key)) return lane;
  }
  return NULL;
}

static int is_idle(const struct lane *lane) {
  return !atomic_load(&lane->dirty) && !lane->busy &&
         atomic_load(&lane->launched) == atomic_load(&lane->passed);
}

/* Empties a lane. Events are kept for the next user of the same context. */
static void clear(struct lane *lane) {
  atomic_store(&lane->key, 0);
  atomic_store(&lane->dirty, 0);
  atomic_store(&lane->launched, 0);
  atomic_store(&lane->passed, 0);
  atomic_store(&lane->next_mark, 1);
  atomic_store(&lane->marks_due, 0);
  lane->mark_count = 0;
  lane->busy = 0;
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

/* Under the table's lock: a free place for KEY, or one whose work is done. */
static struct lane *make_place(uintptr_t key) {
  unsigned int place = place_of(key);
  for (int evict = 0; evict < 2; evict++)
    for (unsigned int i = 0; i < PROBES; i++) {
      struct lane *lane = &lanes[(place + i) % LANES];
      if (atomic_load(&lane->key) == 0 || (evict && is_idle(lane))) return lane;
    }
  return NULL;
}

static struct lane *enter(uintptr_t key, CUstream stream, CUcontext context, enum lane_kind kind, uint32_t column) {
  lock_take(&table);
  struct lane *lane = find_key(key);
  if (lane == NULL && (lane = make_place(key)) != NULL) {
    lock_take(&lane->lock);
    clear(lane);
    lane->stream = stream;
    lane->context = context;
    lane->kind = kind;
    lane->column = column;
    atomic_store_explicit(&lane->key, key, memory_order_release);
    lock_give(&lane->lock);
  }
  lock_give(&table);
  return lane;
}

/* A table full of streams that all have work: the default stream, which waits for all but those that do not block, has to
 * stand for the rest. */
static struct lane *enter_somewhere(uintptr_t key, CUstream stream, CUcontext context, enum lane_kind kind) {
  struct place place;
  if (context_place(&place) != VC_OK) return NULL;
  struct lane *lane = enter(key, stream, context, kind, place.column);
  uintptr_t legacy = (uintptr_t)context | KEY_LEGACY;
  if (lane == NULL) lane = find_key(legacy);
  return lane != NULL ? lane : enter(legacy, CU_STREAM_LEGACY, context, LANE_LEGACY, place.column);
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
  struct lane *lane = enter_somewhere(key, stream, context, kind);
  if (context != current) real_cuda.cuCtxPopCurrent_v2(&context);
  return lane;
}

static uintptr_t key_of_thread(CUcontext context) {
  return ((uintptr_t)&seat ^ (uintptr_t)context << 1) | KEY_THREAD;
}

struct lane *lane_find(CUstream stream, int per_thread) {
  CUcontext context;
  uintptr_t key = (uintptr_t)stream;
  if (stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) {
    struct lane *lane = find_key(key);
    return VC_LIKELY(lane != NULL) ? lane : find_slowly(key, stream, LANE_STREAM);
  }
  int own = stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread);
  if (!current_context(&context)) return NULL;
  key = own ? key_of_thread(context) : (uintptr_t)context | KEY_LEGACY;
  struct lane *lane = find_key(key);
  if (VC_LIKELY(lane != NULL && lane->context == context)) return lane;
  return find_slowly(key, own ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, own ? LANE_THREAD : LANE_LEGACY);
}

void lane_thread_is_done(CUcontext context) {
  if (context == NULL && !current_context(&context)) return;
  struct lane *lane = find_key(key_of_thread(context));
  if (lane == NULL || lane->kind != LANE_THREAD || lane->context != context) return;
  lane_raise_passed(lane, atomic_load_explicit(&lane->launched, memory_order_relaxed));
}

int lane_is_capturing(const struct lane *lane) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (real_cuda.cuStreamIsCapturing == NULL) return 0;
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

struct lane *lane_before_end(CUstream stream) {
  struct lane *lane = find_key((uintptr_t)stream);
  if (lane == NULL || lane->kind != LANE_STREAM || is_idle(lane) || lane_is_capturing(lane)) return lane;
  if (real_cuda.cuCtxPushCurrent_v2(lane->context) != CUDA_SUCCESS) return lane;
  lock_take(&lane->lock);
  if (lane->mark_count == LANE_MARKS) lane->mark_count--; /* set anew, behind all */
  lane_mark_on(lane, stream);
  lock_give(&lane->lock);
  pop_context();
  return lane;
}

/* Nobody finds the lane any more, but looks go on while it has work. */
void lane_ended(struct lane *lane) {
  if (lane == NULL || lane->kind != LANE_STREAM) return;
  lock_take(&table);
  lock_take(&lane->lock);
  if (is_idle(lane)) {
    clear(lane);
  } else {
    lane->kind = LANE_ENDED;
    atomic_store(&lane->key, (uintptr_t)lane | KEY_THREAD | KEY_LEGACY);
  }
  lock_give(&lane->lock);
  lock_give(&table);
}

void lanes_forget_context(CUcontext context) {
  lock_take(&table);
  for (int i = 0; i < LANES; i++)
    if (lanes[i].context == context || lanes[i].events_of == context) forget(&lanes[i]);
  lock_give(&table);
}

void lanes_forget_column(uint32_t column, int (*keeps)(CUcontext context)) {
  lock_take(&table);
  for (int i = 0; i < LANES; i++) {
    struct lane *lane = &lanes[i];
    if (lane->column == column && lane->context != NULL && !keeps(lane->context)) forget(lane);
    if (lane->events_of == lane->context || keeps(lane->events_of)) continue;
    lock_take(&lane->lock); /* of its last user, who may have been on this card */
    forget_events(lane);
    lock_give(&lane->lock);
  }
  lock_give(&table);
}

/* Should the context live on, the next look asks the streams themselves. */
void lanes_drop_events(CUcontext context) {
  for (int i = 0; i < LANES; i++) {
    struct lane *lane = &lanes[i];
    if (lane->events_of != context) continue;
    lock_take(&lane->lock);
    drop_events(lane);
    if (lane->mark_count != 0) atomic_store(&lane->dirty, 1);
    lane->mark_count = 0;
    lock_give(&lane->lock);
  }
}

void lanes_after_fork(void) {
  memset(lanes, 0, sizeof lanes);
  lock_give(&table);
  long_lock_give(&touching);
  atomic_store(&lanes_stopped, 0);
}
