/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: allocating from pools and freeing into them, and what is done before a refusal. pool_account.h
 * tells what is charged. Host memory and imported pools cost nothing: the exporter pays. What a device's pool has no
 * room for may come from one of managed memory (pool_managed_of).
 * Tests: tests/integration/test_native_pool.py, test_native_oversub.py. */
#include "pool.h"

#include "allocators.h"
#include "capture.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "ledger.h"
#include "managed.h"
#include "place.h"
#include "pool_blocks.h"
#include "pool_find.h"
#include "refusal.h"
#include "runtime_state.h"
#include "shm.h"
#include "synchronize.h"

/* A stream, and whether 0 means the thread's own default stream in it (_ptsz) or the one that all share. */
struct line {
  CUstream stream;
  int ptsz;
};

/* --- streams ----------------------------------------------------------------------------------------------------- */

static CUresult synchronize(const struct line *line) {
  return line->ptsz ? real_cuda.cuStreamSynchronize_ptsz(line->stream) : real_cuda.cuStreamSynchronize(line->stream);
}

/* Not while the stream is captured, nor the shared default stream while any other is: asking about it is an error then,
 * and waiting for it would end that capture. Returns what was waited for. */
static uint64_t wait_for(const struct line *line) {
  if (!capture_is_off(line->stream, line->ptsz)) return LINE_NONE;
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = synchronize(line);
  capture_restore(mode);
  return result == CUDA_SUCCESS ? pool_line(line->stream, line->ptsz) : LINE_NONE;
}

static CUresult free_async(CUdeviceptr address, const struct line *line) {
  return line->ptsz ? real_cuda.cuMemFreeAsync_ptsz(address, line->stream)
                    : real_cuda.cuMemFreeAsync(address, line->stream);
}

/* --- making room ------------------------------------------------------------------------------------------------- */

struct sum {
  uint32_t column;
  uint64_t result;
};

static void add_charge(struct pool *pool, void *data) {
  struct sum *sum = data;
  if (pool_counts(pool, sum->column)) sum->result += atomic_load_explicit(&pool->charge, memory_order_relaxed);
}

static uint64_t usage(uint32_t column) {
  struct sum sum = {column, 0};
  pool_each(add_charge, &sum);
  return sum.result;
}

static int is_managed(const struct pool *pool) { return (atomic_load(&pool->column) & COLUMN_MANAGED) != 0; }

static void add_managed(struct pool *pool, void *data) {
  if (is_managed(pool)) add_charge(pool, data);
}

static uint64_t managed_usage(uint32_t column) {
  struct sum sum = {column, 0};
  pool_each(add_managed, &sum);
  return sum.result;
}

static void give_back(struct pool *pool, void *data) {
  struct sum *sum = data;
  uint64_t before = atomic_load_explicit(&pool->charge, memory_order_relaxed);
  if (!pool_counts(pool, sum->column) || before == 0) return;
  pool_ask_again(pool);
  sum->result |= atomic_load_explicit(&pool->charge, memory_order_relaxed) < before;
  sum->result |= (uint64_t)pool_reread(pool);
  pool_trim(pool);
  sum->result |= (uint64_t)pool_reread(pool);
}

static int reclaim(uint32_t column) {
  struct sum sum = {column, 0};
  pool_each(give_back, &sum);
  return sum.result != 0;
}

static void collect_waiting(struct pool *pool, void *data) {
  struct sum *sum = data;
  if (pool_counts(pool, sum->column)) sum->result |= (uint64_t)pool_waits(pool);
}

/* TRY again with everything given back that may be: what is not needed, then what waits for the stream. */
static __attribute__((noinline, cold)) CUresult make_room(struct pool *pool, const struct line *line, uint64_t bytes,
                                                         CUresult (*try)(struct pool *pool, uint64_t bytes)) {
  struct sum waiting = {atomic_load(&pool->column) & COLUMN_NUMBER, 0};
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (allocators_reclaim(waiting.column)) result = try(pool, bytes);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  pool_each(collect_waiting, &waiting);
  if (!waiting.result) return result;
  pool_synchronized(wait_for(line), NULL);
  allocators_reclaim(waiting.column);
  return try(pool, bytes);
}

static CUresult try_correct(struct pool *pool, uint64_t bytes) {
  (void)bytes;
  return pool_correct(pool);
}

/* --- allocating -------------------------------------------------------------------------------------------------- */

/* In place of CUDA_ERROR_OUT_OF_MEMORY, where it was the driver that had none. */
#define OUT_OF_MEMORY_BY_DRIVER ((CUresult)0x7ffffffe)

/* The driver's call, of which there are four. */
typedef CUresult allocate_call(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, const struct line *line);

/* In stream order, else at once. 1: it is freed. */
static int free_somehow(struct pool *pool, CUdeviceptr block, uint64_t bytes, const struct line *line) {
  int async = free_async(block, line) == CUDA_SUCCESS;
  if (!async) {
    CUstreamCaptureMode mode = capture_relax();
    CUresult result = real_cuda.cuMemFree_v2 != NULL ? real_cuda.cuMemFree_v2(block) : CUDA_ERROR_NOT_FOUND;
    capture_restore(mode);
    if (result != CUDA_SUCCESS) return 0;
  }
  pool_released(pool, bytes, async ? pool_line(line->stream, line->ptsz) : LINE_NONE);
  return 1;
}

/* A block that the driver does not take back belongs to no call: it stays charged for as long as its pool is there. */
static __attribute__((noinline, cold)) CUresult undo(struct pool *pool, CUdeviceptr block, uint64_t bytes,
                                                    const struct line *line) {
  if (!free_somehow(pool, block, bytes, line)) {
    pool_block_put(pool, block, bytes);
    pool_charge_anyway(pool);
  }
  pool_trim(pool);
  pool_reread(pool);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static __attribute__((noinline, cold)) CUresult refuse_at_once(struct pool *pool, int kind, size_t size) {
  if (kind != POOL_NO_SHARE) refusal_note(REFUSAL_QUOTA, atomic_load(&pool->column), size);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static inline __attribute__((always_inline)) CUresult allocate_in(CUdeviceptr *dptr, size_t size, struct pool *pool,
                                                                  CUmemoryPool handle, const struct line *line,
                                                                  allocate_call *call) {
  CUdeviceptr block = 0;
  if (pool == NULL) return call(dptr, size, handle, line);
  int kind = atomic_load_explicit(&pool->kind, memory_order_relaxed);
  if (kind == POOL_FREE || capture_is_on(line->stream, line->ptsz)) return call(dptr, size, handle, line);
  if (kind == POOL_NO_SHARE || size > VC_MAX_BYTES) return refuse_at_once(pool, kind, size);
  uint64_t bytes = charge_round(size);
  CUresult result = pool_begin(pool, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) result = make_room(pool, line, bytes, pool_begin);
  if (result != CUDA_SUCCESS) return result;
  result = call(&block, size, handle, line);
  if (result != CUDA_SUCCESS) {
    pool_cancel(pool, bytes);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? OUT_OF_MEMORY_BY_DRIVER : result;
  }
  result = pool_settle(pool, bytes);
  if (result != CUDA_SUCCESS) result = make_room(pool, line, bytes, try_correct);
  if (VC_LIKELY(result == CUDA_SUCCESS)) result = pool_block_put(pool, block, bytes);
  if (result != CUDA_SUCCESS) return undo(pool, block, bytes, line);
  refusal_passed();
  *dptr = block;
  return CUDA_SUCCESS;
}

static inline CUresult call_from(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, const struct line *line) {
  return line->ptsz ? real_cuda.cuMemAllocFromPoolAsync_ptsz(out, bytes, handle, line->stream)
                    : real_cuda.cuMemAllocFromPoolAsync(out, bytes, handle, line->stream);
}

/* A graph's memory is the GPU's own, and a pool whose blocks may be shared stays what it is. */
static __attribute__((noinline, cold)) CUresult allocate_managed(CUdeviceptr *dptr, size_t size, struct pool *pool,
                                                                const struct line *line) {
  if (pool == NULL || atomic_load(&pool->kind) != POOL_COUNTED || is_managed(pool) || pool->rigid)
    return CUDA_ERROR_OUT_OF_MEMORY;
  uint32_t column = atomic_load(&pool->column);
  if (!ledger_is_split(runtime_ledger) || ledger_host_budget(runtime_ledger, column) == 0 ||
      capture_is_on(line->stream, line->ptsz) || !managed_is_possible(size))
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct pool *managed = pool_managed_of(column);
  if (managed == NULL || real_cuda.cuMemAllocFromPoolAsync == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = allocate_in(dptr, size, managed, atomic_load(&managed->handle), line, call_from);
  if (result == CUDA_SUCCESS) managed_note();
  return result == OUT_OF_MEMORY_BY_DRIVER ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* FIRST: who had no memory. */
static __attribute__((noinline, cold)) CUresult allocate_otherwise(CUdeviceptr *dptr, size_t size, struct pool *pool,
                                                                  const struct line *line, CUresult first) {
  CUresult result = allocate_managed(dptr, size, pool, line);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && first == OUT_OF_MEMORY_BY_DRIVER && !is_managed(pool))
    charge_driver_refused(atomic_load(&pool->column), size);
  return result;
}

static inline __attribute__((always_inline)) CUresult allocate(CUdeviceptr *dptr, size_t size, struct pool *pool,
                                                               CUmemoryPool handle, const struct line *line,
                                                               allocate_call *call) {
  CUresult result = allocate_in(dptr, size, pool, handle, line, call);
  int has_none = result == CUDA_ERROR_OUT_OF_MEMORY || result == OUT_OF_MEMORY_BY_DRIVER;
  return VC_LIKELY(!has_none) ? result : allocate_otherwise(dptr, size, pool, line, result);
}

static inline CUresult call_current(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, const struct line *line) {
  (void)handle;
  return line->ptsz ? real_cuda.cuMemAllocAsync_ptsz(out, bytes, line->stream)
                    : real_cuda.cuMemAllocAsync(out, bytes, line->stream);
}

/* The first time from this device's pool. */
static __attribute__((noinline, cold)) CUresult allocate_first(CUdeviceptr *dptr, size_t bytes, const struct line *line) {
  struct pool *pool = NULL;
  CUresult found = pool_of_stream(line->stream, &pool);
  return found == CUDA_SUCCESS ? allocate(dptr, bytes, pool, NULL, line, call_current) : found;
}

static inline CUresult allocate_current(CUdeviceptr *dptr, size_t bytes, CUstream stream, int ptsz) {
  const struct line line = {stream, ptsz};
  int asks = dptr != NULL && bytes != 0;
  struct pool *pool = asks ? pool_of_stream_known(stream) : NULL;
  return VC_LIKELY(pool != NULL || !asks) ? allocate(dptr, bytes, pool, NULL, &line, call_current)
                                          : allocate_first(dptr, bytes, &line);
}

static __attribute__((noinline, cold)) CUresult allocate_first_from(CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle,
                                                                    const struct line *line) {
  struct pool *pool = NULL;
  CUresult found = pool_of_handle(handle, &pool);
  return found == CUDA_SUCCESS ? allocate(dptr, bytes, pool, handle, line, call_from) : found;
}

static inline CUresult allocate_from(CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle, CUstream stream, int ptsz) {
  const struct line line = {stream, ptsz};
  int asks = dptr != NULL && bytes != 0;
  struct pool *pool = asks ? pool_known(handle) : NULL;
  return VC_LIKELY(pool != NULL || !asks) ? allocate(dptr, bytes, pool, handle, &line, call_from)
                                          : allocate_first_from(dptr, bytes, handle, &line);
}

CUresult vc_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
  return allocate_current(dptr, bytes, stream, 0);
}

CUresult vc_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
  return allocate_current(dptr, bytes, stream, 1);
}

CUresult vc_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from(dptr, bytes, pool, stream, 0);
}

CUresult vc_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from(dptr, bytes, pool, stream, 1);
}

/* --- freeing ----------------------------------------------------------------------------------------------------- */

/* Out of the table before the driver frees: another thread may be given the same address at once. */
static inline void freed(const struct table_entry *entry, CUresult result, uint64_t line) {
  if (VC_LIKELY(result == CUDA_SUCCESS))
    pool_released(pool_numbered(entry->column), entry->bytes, line);
  else
    pool_block_put_back(entry);
}

CUresult pool_free(CUdeviceptr address, charge_call *call) {
  struct table_entry entry;
  int known = pool_block_take(address, &entry);
  CUresult result = call(address);
  if (known) freed(&entry, result, LINE_NONE);
  return result;
}

/* Managed memory is not freed in stream order: the stream is waited for. Not while it is captured: there the driver has
 * its own answer to memory that is no graph's. What other streams capture must survive the waiting. */
static CUresult free_converted(CUdeviceptr address, const struct line *line) {
  if (capture_is_on(line->stream, line->ptsz)) return free_async(address, line);
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = synchronize(line);
  if (result == CUDA_SUCCESS) result = real_cuda.cuMemFree_v2(address);
  capture_restore(mode);
  return result;
}

/* Linear memory may be freed in stream order too. Nothing of it waits in a pool, so it is given back at once. */
static CUresult free_linear(CUdeviceptr address, const struct line *line) {
  struct table_entry entry;
  int known = charge_take(ALLOCATION_LINEAR, address, &entry);
  int converted = known && (entry.column & COLUMN_CONVERTED) != 0;
  CUresult result = converted ? free_converted(address, line) : free_async(address, line);
  if (known && result == CUDA_SUCCESS) charge_return(entry.column, entry.bytes);
  if (known && result != CUDA_SUCCESS) charge_put_back(ALLOCATION_LINEAR, &entry);
  return result;
}

static inline CUresult release(CUdeviceptr address, CUstream stream, int ptsz) {
  struct table_entry entry;
  const struct line line = {stream, ptsz};
  if (!pool_block_take(address, &entry)) return free_linear(address, &line);
  CUresult result = free_async(address, &line);
  freed(&entry, result, pool_line(line.stream, line.ptsz));
  return result;
}

CUresult vc_cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) { return release(dptr, stream, 0); }

CUresult vc_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) { return release(dptr, stream, 1); }

void pool_after_fork(void) { atomic_store(&pool_any_dirty, 0); }

ALLOCATOR(pool) = {.usage = usage, .managed_usage = managed_usage, .reclaim = reclaim};
