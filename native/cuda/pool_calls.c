/* SPDX-License-Identifier: Apache-2.0 */
/* Pools as objects: the calls that make, change and destroy them.
 * Computes no sizes. Tests: tests/integration/test_native_pool.py. */
#include "charge.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "ledger.h"
#include "pool_find.h"
#include "runtime_state.h"

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

/* The process that exported the pool pays for it. The entry keeps the handle from being taken for a default pool. */
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
