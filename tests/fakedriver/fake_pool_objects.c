/* SPDX-License-Identifier: Apache-2.0 */
/* Pools as objects: creation, attributes, access, and the pool of a place.
 * Must not depend on how a pool grows. Tests: tests/unit/fakedriver/test_pools.py. */
#include "fake_pool.h"

static CUmemoryPool default_managed[FAKE_MAX_GPUS + 1], default_host; /* managed: the last one is without a place */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER(cuDeviceGetDefaultMemPool);
  NONNULL(out);
  return pool_default(device, out);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER(cuDeviceGetMemPool);
  NONNULL(out);
  return pool_current(device, out);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  ENTER(cuDeviceSetMemPool);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!pool_valid(pool) || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  pool_make_current(device, pool);
  return CUDA_SUCCESS;
}

/* Managed memory without a place of its own counts where the caller is. */
static CUresult place(const CUmemLocation *location, CUmemAllocationType type, enum pool_kind *kind, unsigned *gpu) {
  int managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED && fake_state->machine.cuda_version >= 13000;
  CUcontext context;
  *gpu = 0;
  *kind = managed ? POOL_MANAGED : POOL_DEVICE;
  if (!location || (!managed && type != CU_MEM_ALLOCATION_TYPE_PINNED)) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (!device_valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    *gpu = device_gpu[location->id];
    return CUDA_SUCCESS;
  }
  if (location->type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_NOT_SUPPORTED;
  if (location->type == CU_MEM_LOCATION_TYPE_NONE && !managed) return CUDA_ERROR_INVALID_VALUE;
  if (!managed) *kind = POOL_HOST;
  if (managed && context_current(&context) == CUDA_SUCCESS) *gpu = context->gpu;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  ENTER(cuMemPoolCreate);
  enum pool_kind kind;
  unsigned gpu;
  if (!out || !props) return CUDA_ERROR_INVALID_VALUE;
  TRY(place(&props->location, props->allocType, &kind, &gpu));
  CUmemoryPool pool = pool_make(gpu, kind);
  if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
  pool->most = props->maxSize;
  pool->handle_types = (unsigned)props->handleTypes;
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  ENTER(cuMemPoolDestroy);
  if (!pool_valid(pool) || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  pool_destroy(pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  ENTER(cuMemPoolTrimTo);
  if (!pool_valid(pool)) return CUDA_ERROR_INVALID_VALUE;
  TRY(capture_forbids_unsafe());
  pool_trim(pool, keep);
  return CUDA_SUCCESS;
}

static uint64_t *wide_attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return &pool->used_high;
    default:
      return NULL;
  }
}

static int *reuse_attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
  int index = (int)attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
  return index >= 0 && index < 3 ? &pool->reuse[index] : NULL;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  ENTER(cuMemPoolGetAttribute);
  NONNULL(value);
  if (!pool_valid(pool)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t *wide = wide_attribute(pool, attribute);
  int *reuse = reuse_attribute(pool, attribute);
  if (wide) *(cuuint64_t *)value = *wide;
  if (reuse) *(int *)value = *reuse;
  return wide || reuse ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  ENTER(cuMemPoolSetAttribute);
  NONNULL(value);
  if (!pool_valid(pool)) return CUDA_ERROR_INVALID_VALUE;
  int *reuse = reuse_attribute(pool, attribute);
  if (reuse) {
    *reuse = *(int *)value != 0;
    return CUDA_SUCCESS;
  }
  uint64_t given = *(cuuint64_t *)value;
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->threshold = given;
    return CUDA_SUCCESS;
  }
  if (given != 0) return CUDA_ERROR_INVALID_VALUE; /* high-water marks can be reset, nothing more */
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool->reserved_high = pool->reserved;
  else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->used_high = pool->used;
  else return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
  ENTER(cuMemPoolSetAccess);
  if (!pool_valid(pool) || (count && !map)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !device_valid(map[i].location.id))
      return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
  ENTER(cuMemPoolGetAccess);
  if (!flags || !location || !pool_valid(pool)) return CUDA_ERROR_INVALID_VALUE;
  if (!device_valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = device_gpu[location->id] == pool->gpu ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

/* --- the same questions by place, as newer programs ask ----------------------------------------------------------- */

CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
  ENTER(cuMemGetDefaultMemPool);
  enum pool_kind kind;
  unsigned gpu;
  NONNULL(out);
  TRY(place(location, type, &kind, &gpu));
  if (kind == POOL_DEVICE) return pool_default(location->id, out);
  if (kind == POOL_HOST) return pool_made_once(&default_host, gpu, kind, out);
  int own = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  return pool_made_once(&default_managed[own ? location->id : FAKE_MAX_GPUS], gpu, kind, out);
}

CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
  ENTER(cuMemGetMemPool);
  enum pool_kind kind;
  unsigned gpu;
  NONNULL(out);
  TRY(place(location, type, &kind, &gpu));
  return kind == POOL_DEVICE ? pool_current(location->id, out) : cuMemGetDefaultMemPool(out, location, type);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  ENTER(cuMemSetMemPool);
  enum pool_kind kind;
  unsigned gpu;
  TRY(place(location, type, &kind, &gpu));
  if (!pool_valid(pool) || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (kind == POOL_DEVICE) pool_make_current(location->id, pool);
  return CUDA_SUCCESS;
}
