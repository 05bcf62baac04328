/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events: what is done when. How long it takes is told by fake_time.c.
 * Must not depend on what a kernel or a copy is. Tests: tests/unit/fakedriver/test_streams.py. */
#include "fake_work.h"

#include <time.h>

HANDLE_SIZE_CHECK(struct CUstream_st);
static struct handles streams = HANDLES(struct CUstream_st, 1 << 16);
static _Atomic unsigned long long last_id = 16; /* the default streams have small numbers */

CUresult stream_check(CUstream stream, CUstream *own) {
  *own = NULL;
  if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return CUDA_SUCCESS;
  if (!handle_valid(&streams, stream)) return CUDA_ERROR_INVALID_HANDLE;
  *own = stream;
  return CUDA_SUCCESS;
}

CUresult stream_context(CUstream stream, CUcontext *context) {
  CUstream own;
  TRY(stream_check(stream, &own));
  if (!own) return context_current(context);
  *context = own->context;
  return atomic_load(&own->context->alive) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static void raise_to(_Atomic uint64_t *value, uint64_t least) {
  uint64_t seen = atomic_load(value);
  while (seen < least && !atomic_compare_exchange_weak(value, &seen, least)) continue;
}

void work_launch(CUcontext context, CUstream stream, uint64_t ns) {
  CUstream own;
  if (stream_check(stream, &own)) own = NULL;
  uint64_t end = time_reserve(context->gpu, ns);
  if (own) raise_to(&own->busy_until, end);
  raise_to(&context->busy_until, end);
}

void work_wait(CUcontext context) { time_wait(context->gpu, atomic_load(&context->busy_until)); }

void work_sleep(uint64_t ns) {
  struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
  while (nanosleep(&pause, &pause) != 0) continue;
}

static CUresult create(CUstream *out, unsigned flags, int priority) {
  CUcontext context;
  TRY(context_current(&context));
  if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  CUstream stream = handle_new(&streams);
  if (!stream) return CUDA_ERROR_OUT_OF_MEMORY;
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
  stream->id = atomic_fetch_add(&last_id, 1) + 1;
  *out = stream;
  return CUDA_SUCCESS;
}
ENTRY(cuStreamCreate, (CUstream *out, unsigned flags), create, (out, flags, 0))
ENTRY(cuStreamCreateWithPriority, (CUstream *out, unsigned flags, int priority), create, (out, flags, priority))

static CUresult destroy(CUstream stream) {
  if (!handle_valid(&streams, stream)) return CUDA_ERROR_INVALID_HANDLE;
  capture_forget(stream);
  handle_delete(&streams, stream);
  return CUDA_SUCCESS;
}
ENTRY(cuStreamDestroy, (CUstream stream), destroy, (stream))
ENTRY(cuStreamDestroy_v2, (CUstream stream), destroy, (stream))

static void drop(void *item, void *context) {
  if (((CUstream)item)->context != context) return;
  capture_forget(item);
  handle_delete(&streams, item);
}
void stream_each(void (*visit)(void *stream, void *arg), void *arg) { handle_each(&streams, visit, arg); }
void stream_drop_context(CUcontext context) { handle_each(&streams, drop, context); }

CUresult stream_synchronize(CUstream stream) {
  CUcontext context;
  CUstream own;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  if (own && own->capture) return capture_broken(own, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  TRY(capture_forbids_legacy(stream, context));
  TRY(capture_forbids_unsafe());
  time_wait(context->gpu, atomic_load(own ? &own->busy_until : &context->busy_until));
  pool_trim_after_sync(context);
  return CUDA_SUCCESS;
}
ENTRY(cuStreamSynchronize, (CUstream stream), stream_synchronize, (stream))
ENTRY(cuStreamSynchronize_ptsz, (CUstream stream), stream_synchronize, (OWN_DEFAULT(stream)))

static CUresult query(CUstream stream) {
  CUcontext context;
  CUstream own;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  uint64_t until = atomic_load(own ? &own->busy_until : &context->busy_until);
  return time_is_over(context->gpu, until) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
ENTRY_PTSZ(cuStreamQuery, (CUstream stream), query, (stream))

static CUresult get_priority(CUstream stream, int *priority) {
  CUstream own;
  NONNULL(priority);
  TRY(stream_check(stream, &own));
  *priority = own ? own->priority : 0;
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamGetPriority, (CUstream stream, int *priority), get_priority, (stream, priority))

static CUresult get_flags(CUstream stream, unsigned *flags) {
  CUstream own;
  NONNULL(flags);
  TRY(stream_check(stream, &own));
  *flags = own ? own->flags : 0;
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamGetFlags, (CUstream stream, unsigned *flags), get_flags, (stream, flags))

static CUresult get_id(CUstream stream, unsigned long long *id) {
  CUstream own;
  NONNULL(id);
  TRY(stream_check(stream, &own));
  *id = own ? own->id : (unsigned long long)(uintptr_t)stream;
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamGetId, (CUstream stream, unsigned long long *id), get_id, (stream, id))

static CUresult get_context(CUstream stream, CUcontext *out) {
  NONNULL(out);
  return stream_context(stream, out);
}
ENTRY_PTSZ(cuStreamGetCtx, (CUstream stream, CUcontext *out), get_context, (stream, out))

static CUresult get_contexts(CUstream stream, CUcontext *out, CUgreenCtx *green) {
  TRY(get_context(stream, out));
  if (green) *green = NULL;
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamGetCtx_v2, (CUstream stream, CUcontext *out, CUgreenCtx *green), get_contexts, (stream, out, green))

static CUresult get_device(CUstream stream, CUdevice *device) {
  CUcontext context;
  NONNULL(device);
  TRY(stream_context(stream, &context));
  *device = context->device;
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamGetDevice, (CUstream stream, CUdevice *device), get_device, (stream, device))

/* The callback's order is kept by doing it here and now, after the work before it. */
static CUresult add_callback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags) {
  if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_synchronize(stream));
  callback(stream, CUDA_SUCCESS, data);
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *data, unsigned flags), add_callback,
           (stream, callback, data, flags))

static CUresult host_function(CUstream stream, CUhostFn function, void *data) {
  CUstream own;
  NONNULL(function);
  TRY(stream_check(stream, &own));
  if (own && own->capture) return graph_capture_host(own, function, data);
  TRY(stream_synchronize(stream));
  function(data);
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), host_function, (stream, function, data))

static CUresult copy_attributes(CUstream to, CUstream from) {
  CUstream a, b;
  TRY(stream_check(to, &a));
  return stream_check(from, &b);
}
ENTRY_PTSZ(cuStreamCopyAttributes, (CUstream to, CUstream from), copy_attributes, (to, from))

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER(cuCtxGetStreamPriorityRange);
  CUcontext context;
  TRY(context_current(&context));
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

/* --- events ----------------------------------------------------------------------------------------------------- */

struct CUevent_st {
  struct handle handle;
  CUcontext context;
  unsigned flags;
  uint32_t recorded;
  uint64_t until; /* when the work before it is done, in the GPU's own time; 0: there was none */
  uint64_t at;    /* CLOCK_MONOTONIC of the recording */
  uint64_t padding[3];
};
HANDLE_SIZE_CHECK(struct CUevent_st);
static struct handles events = HANDLES(struct CUevent_st, 1 << 20);

CUresult cuEventCreate(CUevent *out, unsigned flags) {
  ENTER(cuEventCreate);
  CUcontext context;
  TRY(context_current(&context));
  if (!out || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
  CUevent event = handle_new(&events);
  if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
  event->context = context;
  event->flags = flags;
  *out = event;
  return CUDA_SUCCESS;
}

static CUresult destroy_event(CUevent event) {
  if (!handle_valid(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  handle_delete(&events, event);
  return CUDA_SUCCESS;
}
ENTRY(cuEventDestroy, (CUevent event), destroy_event, (event))
ENTRY(cuEventDestroy_v2, (CUevent event), destroy_event, (event))

static CUresult record(CUevent event, CUstream stream, unsigned flags) {
  CUcontext context;
  CUstream own;
  if (!handle_valid(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  if (context != event->context) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t until = atomic_load(own ? &own->busy_until : &context->busy_until);
  event->until = time_is_over(context->gpu, until) ? 0 : until;
  event->at = state_now_ns();
  event->recorded = 1;
  return CUDA_SUCCESS;
}

/* Programs record where they launch: a tool's record elsewhere would be felt by the user of that stream. */
_Thread_local struct stream_launched stream_launched;

static void count_record(CUstream stream) {
  CUstream own;
  struct fake_slot *slot = state_own_slot();
  if (!stream_launched.at_all || !slot || stream_check(stream, &own)) return;
  atomic_fetch_add(&slot->records, 1);
  if (own != stream_launched.into) atomic_fetch_add(&slot->foreign_records, 1);
}

static CUresult record_counted(CUevent event, CUstream stream, unsigned flags) {
  CUresult result = record(event, stream, flags);
  if (result == CUDA_SUCCESS) count_record(stream);
  return result;
}
ENTRY_PTSZ(cuEventRecord, (CUevent event, CUstream stream), record_counted, (event, stream, 0))
ENTRY_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), record_counted,
           (event, stream, flags))

static int is_over(const struct CUevent_st *event) { return time_is_over(event->context->gpu, event->until); }

/* CLOCK_MONOTONIC of an event that is over. */
static uint64_t real_time(const struct CUevent_st *event) {
  uint64_t done = event->until ? time_real(event->context->gpu, event->until) : 0;
  return done > event->at ? done : event->at;
}

CUresult cuEventQuery(CUevent event) {
  ENTER(cuEventQuery);
  if (!handle_valid(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  return event->recorded && !is_over(event) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
  ENTER(cuEventSynchronize);
  if (!handle_valid(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->recorded) time_wait(event->context->gpu, event->until);
  pool_trim_after_sync(event->context);
  return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
  NONNULL(milliseconds);
  if (!handle_valid(&events, start) || !handle_valid(&events, end)) return CUDA_ERROR_INVALID_HANDLE;
  if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_over(start) || !is_over(end)) return CUDA_ERROR_NOT_READY;
  *milliseconds = (float)((double)(int64_t)(real_time(end) - real_time(start)) / 1e6);
  return CUDA_SUCCESS;
}
ENTRY(cuEventElapsedTime, (float *ms, CUevent start, CUevent end), elapsed, (ms, start, end))
ENTRY(cuEventElapsedTime_v2, (float *ms, CUevent start, CUevent end), elapsed, (ms, start, end))

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  CUstream own;
  if (!handle_valid(&events, event)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_check(stream, &own));
  if (!own || !event->recorded) return CUDA_SUCCESS;
  if (own->context->gpu != event->context->gpu) time_wait(event->context->gpu, event->until); /* another GPU's time */
  else raise_to(&own->busy_until, event->until);
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), wait_event, (stream, event, flags))

CUresult event_record(CUevent event, CUstream stream) { return record(event, stream, 0); }
CUresult event_wait(CUevent event, CUstream stream) { return wait_event(stream, event, 0); }
