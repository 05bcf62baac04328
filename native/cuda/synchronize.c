/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for work, and asking whether it is done. A thread that waits counts as busy in its time slice, and so does a
 * program that polls and is answered "not yet": its pages may be on their way. What was waited for in the thread's own
 * default stream is done, which only that thread can find out; and a pool may have given memory back, so it is read
 * again.
 * Tests: tests/integration/test_native_pool_destroyed.py, test_native_time_slices.py, test_native_share.py. */
#include "synchronize.h"

#include "charge.h"
#include "context_table.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "pool_blocks.h"
#include "pool_find.h"
#include "runtime_state.h"
#include "stream_state.h"
#include "time_slice.h"

/* --- pools ------------------------------------------------------------------------------------------------------- */

uint64_t pool_line(CUstream stream, int ptsz) {
  static _Thread_local _Alignas(8) char own;
  if (VC_LIKELY((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD)) return (uintptr_t)stream;
  int of_thread = stream == CU_STREAM_PER_THREAD || (stream == NULL && ptsz);
  return of_thread ? (uintptr_t)&own | LINE_THREAD : LINE_DEFAULT;
}

struct sync {
  uint64_t line;
  CUcontext context;
};

/* Each context has default streams of its own, and waiting for a context is waiting for its streams: that is what a
 * pool of its device was freed in as long as no other context is on that. */
static uint64_t line_for(const struct pool *pool, const struct sync *sync) {
  uint32_t column = atomic_load_explicit(&pool->column, memory_order_relaxed) & COLUMN_NUMBER;
  if (sync->line == LINE_NONE || line_is_of_program(sync->line)) return sync->line;
  return context_is_only(sync->context, column) ? sync->line : LINE_NONE;
}

static void read_if_dirty(struct pool *pool, void *data) {
  const struct sync *sync = data;
  if (!atomic_load_explicit(&pool->dirty, memory_order_relaxed)) return;
  pool_ask_again(pool);
  uint64_t line = line_for(pool, sync);
  pool_reread_after(pool, line);
  if (VC_LIKELY(!pool_is_in_debt(pool))) return;
  pool_trim(pool); /* its threshold keeps what it must not */
  pool_reread_after(pool, line);
}

__attribute__((noinline)) void pool_synchronized(uint64_t line, CUcontext context) {
  struct sync sync = {line, context};
  atomic_exchange(&pool_any_dirty, 0);
  pool_each(read_if_dirty, &sync);
}

/* A failed synchronisation may have given something back as well. */
static inline CUresult synchronized(CUresult result, uint64_t line, CUcontext context) {
  if (atomic_load_explicit(&pool_any_dirty, memory_order_relaxed))
    pool_synchronized(result == CUDA_SUCCESS ? line : LINE_NONE, context);
  return result;
}

/* --- the calls --------------------------------------------------------------------------------------------------- */

/* Only the thread can find that out of its own default stream. */
static inline CUresult waited(CUresult result, int for_thread, CUcontext context) {
  if (for_thread && result == CUDA_SUCCESS && runtime_may_have_shares()) stream_thread_is_done(context);
  return result;
}

/* Every call below begins with time_slice_busy(1), for as long as it waits; this is its end. */
static inline CUresult end_wait(CUresult result, uint64_t line, CUcontext context) {
  synchronized(result, line, context);
  time_slice_busy(0);
  return result;
}

CUresult vc_cuStreamSynchronize(CUstream stream) {
  time_slice_busy(1);
  CUresult result = waited(real_cuda.cuStreamSynchronize(stream), stream == CU_STREAM_PER_THREAD, NULL);
  return end_wait(result, pool_line(stream, 0), NULL);
}

CUresult vc_cuStreamSynchronize_ptsz(CUstream stream) {
  int own = stream == NULL || stream == CU_STREAM_PER_THREAD;
  time_slice_busy(1);
  return end_wait(waited(real_cuda.cuStreamSynchronize_ptsz(stream), own, NULL), pool_line(stream, 1), NULL);
}

CUresult vc_cuEventSynchronize(CUevent event) {
  time_slice_busy(1);
  return end_wait(real_cuda.cuEventSynchronize(event), LINE_NONE, NULL);
}

CUresult vc_cuCtxSynchronize(void) {
  time_slice_busy(1);
  return end_wait(waited(real_cuda.cuCtxSynchronize(), 1, NULL), LINE_CONTEXT, NULL);
}

CUresult vc_cuCtxSynchronize_v2(CUcontext ctx) {
  time_slice_busy(1);
  return end_wait(waited(real_cuda.cuCtxSynchronize_v2(ctx), 1, ctx), LINE_CONTEXT, ctx);
}

static inline CUresult told(CUresult answer) {
  time_slice_queried(answer);
  return answer;
}

/* Of the calling thread's default stream, which only that thread may query. */
static inline CUresult told_thread(CUresult answer) {
  if (answer == CUDA_SUCCESS && runtime_may_have_shares()) stream_thread_is_done(NULL);
  return told(answer);
}

CUresult vc_cuEventQuery(CUevent event) { return told(real_cuda.cuEventQuery(event)); }

CUresult vc_cuStreamQuery(CUstream stream) {
  CUresult answer = real_cuda.cuStreamQuery(stream);
  return stream == CU_STREAM_PER_THREAD ? told_thread(answer) : told(answer);
}

CUresult vc_cuStreamQuery_ptsz(CUstream stream) {
  CUresult answer = real_cuda.cuStreamQuery_ptsz(stream);
  return stream == NULL || stream == CU_STREAM_PER_THREAD ? told_thread(answer) : told(answer);
}
