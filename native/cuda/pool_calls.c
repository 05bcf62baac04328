/* Pools as objects, and the calls at which they give memory back.
 * Knows no sizes. Tests: tests/integration/test_native_pool.py. */
#include "context.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "runtime_state.h"
#include "stream_state.h"
#include "ledger.h"
#include "pool.h"
#include "pool_find.h"
#include "time_slice.h"

/* Where there is a budget for host memory, what may lie there is charged to it. */
static uint32_t managed_flag(uint32_t column) {
  return ledger_is_split(runtime_ledger) && ledger_host_budget(runtime_ledger, column) != 0 ? COLUMN_MANAGED : 0;
}

CUresult vc_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
  CUmemoryPool handle = NULL;
  uint32_t column;
  if (pool == NULL || props == NULL) return real_cuda.cuMemPoolCreate(pool, props);
  CUresult result = real_cuda.cuMemPoolCreate(&handle, props);
  if (result != CUDA_SUCCESS) return result;
  enum pool_kind kind = pool_place(&props->location, props->allocType, &column);
  if (props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && kind == POOL_COUNTED) column |= managed_flag(column);
  struct pool *entered = pool_enter(handle, kind, column);
  if (entered != NULL) entered->rigid = props->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  if (entered == NULL) {
    if (real_cuda.cuMemPoolDestroy != NULL) real_cuda.cuMemPoolDestroy(handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pool = handle;
  return CUDA_SUCCESS;
}

/* Whose memory this is pays for it. The entry keeps the handle from being taken for a default pool. */
CUresult vc_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                               unsigned long long flags) {
  CUresult result = real_cuda.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
  if (result == CUDA_SUCCESS) pool_enter(*pool, POOL_FREE, 0);
  return result;
}

CUresult vc_cuMemPoolDestroy(CUmemoryPool handle) {
  struct pool *pool = pool_known(handle);
  if (pool == NULL) return real_cuda.cuMemPoolDestroy(handle);
  uint32_t birth = pool->birth;
  pool_trim(pool);
  pool_reread(pool); /* for the last time */
  CUresult result = real_cuda.cuMemPoolDestroy(handle);
  if (result == CUDA_SUCCESS) pool_ended(handle, pool, birth);
  pool_current_changed();
  return result;
}

CUresult vc_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  CUresult result = real_cuda.cuMemPoolTrimTo(handle, keep);
  struct pool *pool = pool_known(handle);
  if (pool != NULL) pool_reread(pool);
  return result;
}

/* A lower threshold lets the next synchronisation give back what the pool kept so far. */
CUresult vc_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  CUresult result = real_cuda.cuMemPoolSetAttribute(handle, attribute, value);
  struct pool *pool = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? pool_known(handle) : NULL;
  if (pool != NULL) pool_mark_dirty(pool);
  return result;
}

CUresult vc_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  CUresult result = real_cuda.cuDeviceSetMemPool(dev, pool);
  pool_current_changed();
  return result;
}

CUresult vc_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  CUresult result = real_cuda.cuMemSetMemPool(location, type, pool);
  pool_current_changed();
  return result;
}

/* --- synchronisation --------------------------------------------------------------------------------------------- */

struct sync {
  uint64_t line;
  CUcontext context;
};

/* Each context has default streams of its own, and who waits for a context waits for its streams: that is what a pool
 * of its device was freed in as long as no other context is on that. */
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
  if (VC_LIKELY(!pool_owes(pool))) return;
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

#define SYNCHRONIZE(call, line, context)                  \
  time_slice_busy(1);                                           \
  CUresult result = synchronized(call, line, context);    \
  time_slice_busy(0);                                           \
  return result

/* Only the thread can find that out of its own default stream. */
static inline CUresult waited(CUresult result, int for_thread, CUcontext context) {
  if (for_thread && result == CUDA_SUCCESS && runtime_may_have_shares()) stream_thread_is_done(context);
  return result;
}

CUresult vc_cuStreamSynchronize(CUstream stream) {
  SYNCHRONIZE(waited(real_cuda.cuStreamSynchronize(stream), stream == CU_STREAM_PER_THREAD, NULL), pool_line(stream, 0),
              NULL);
}

CUresult vc_cuStreamSynchronize_ptsz(CUstream stream) {
  int own = stream == NULL || stream == CU_STREAM_PER_THREAD;
  SYNCHRONIZE(waited(real_cuda.cuStreamSynchronize_ptsz(stream), own, NULL), pool_line(stream, 1), NULL);
}

CUresult vc_cuEventSynchronize(CUevent event) { SYNCHRONIZE(real_cuda.cuEventSynchronize(event), LINE_NONE, NULL); }

CUresult vc_cuCtxSynchronize(void) { SYNCHRONIZE(waited(real_cuda.cuCtxSynchronize(), 1, NULL), LINE_CONTEXT, NULL); }

CUresult vc_cuCtxSynchronize_v2(CUcontext ctx) {
  SYNCHRONIZE(waited(real_cuda.cuCtxSynchronize_v2(ctx), 1, ctx), LINE_CONTEXT, ctx);
}
