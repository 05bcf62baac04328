/* Stream-ordered memory: pools that hold more than is in use.
 * Must not know streams beyond the context of one. Tests: tests/unit/fakedriver/test_pools.py.
 *
 * A pool takes memory from the GPU in units of pool_granularity and gives what is unused and above its release
 * threshold back when something synchronises. Where the blocks lie inside is not simulated: a pool never fragments. */
#include "fake_handle.h"
#include "fake_work.h"

#include <pthread.h>

struct CUmemPoolHandle_st {
  struct handle handle;
  unsigned gpu;
  uint32_t is_default;
  uint64_t used, used_high, reserved, reserved_high, threshold;
  uint64_t most; /* maxSize, 0: none */
  int reuse[3];
  int padding[5];
  uint64_t rest[4];
};
HANDLE_SIZE_CHECK(struct CUmemPoolHandle_st);
static struct handles pools = HANDLES(struct CUmemPoolHandle_st, 1 << 14);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool default_pool[FAKE_MAX_GPUS], current_pool[FAKE_MAX_GPUS]; /* by ordinal */

static uint64_t block_size(uint64_t bytes) { return (bytes + 511) & ~511ull; }

static uint64_t chunks(uint64_t bytes) {
  uint64_t unit = fake_state->machine.pool_granularity;
  return (bytes + unit - 1) / unit * unit;
}

static CUmemoryPool make(unsigned gpu) {
  CUmemoryPool pool = handle_new(&pools);
  if (!pool) return NULL;
  pool->gpu = gpu;
  pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
  return pool;
}

static CUresult default_of(CUdevice device, CUmemoryPool *out) {
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&mutex);
  if (!default_pool[device] && (default_pool[device] = make(device_gpu[device]))) default_pool[device]->is_default = 1;
  *out = default_pool[device];
  pthread_mutex_unlock(&mutex);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult current_of(CUdevice device, CUmemoryPool *out) {
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *out = current_pool[device];
  return *out && handle_valid(&pools, *out) ? CUDA_SUCCESS : default_of(device, out);
}

/* Gives back what is reserved beyond KEEP and not in use. Under the mutex. */
static void shrink(CUmemoryPool pool, uint64_t keep) {
  uint64_t least = chunks(pool->used > keep ? pool->used : keep);
  if (least >= pool->reserved) return;
  state_uncharge(pool->gpu, pool->reserved - least);
  pool->reserved = least;
}

static void shrink_to_threshold(void *item, void *arg) {
  CUmemoryPool pool = item;
  if (pool->gpu == *(unsigned *)arg) shrink(pool, pool->threshold);
}
static void shrink_fully(void *item, void *arg) {
  CUmemoryPool pool = item;
  if (pool->gpu == *(unsigned *)arg) shrink(pool, 0);
}

void pool_trim_after_sync(CUcontext context) {
  if (!pools.base) return;
  pthread_mutex_lock(&mutex);
  handle_each(&pools, shrink_to_threshold, &context->gpu);
  pthread_mutex_unlock(&mutex);
}

void pool_release_unused(unsigned gpu) {
  if (!pools.base) return;
  pthread_mutex_lock(&mutex);
  handle_each(&pools, shrink_fully, &gpu);
  pthread_mutex_unlock(&mutex);
}

void pool_returned(unsigned index, uint64_t bytes) {
  CUmemoryPool pool = handle_at(&pools, index);
  pthread_mutex_lock(&mutex);
  pool->used -= block_size(bytes);
  if (!atomic_load(&pool->handle.alive)) shrink(pool, 0); /* destroyed before its last block was freed */
  pthread_mutex_unlock(&mutex);
}

static CUresult grow(CUmemoryPool pool, uint64_t bytes) {
  uint64_t used = pool->used + bytes, reserved = chunks(used);
  if (pool->most && used > pool->most) return CUDA_ERROR_OUT_OF_MEMORY;
  if (reserved > pool->reserved) {
    if (atomic_load(&fake_state->gpu[pool->gpu].lost)) return CUDA_ERROR_UNKNOWN;
    if (state_charge(pool->gpu, reserved - pool->reserved)) {
      handle_each(&pools, shrink_fully, &pool->gpu);
      if (state_charge(pool->gpu, reserved - pool->reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->reserved = reserved;
    if (reserved > pool->reserved_high) pool->reserved_high = reserved;
  }
  pool->used = used;
  if (used > pool->used_high) pool->used_high = used;
  return CUDA_SUCCESS;
}

static CUresult take(CUdeviceptr *out, size_t bytes, CUmemoryPool pool) {
  if (bytes > 1ull << 47) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&mutex);
  CUresult result = grow(pool, block_size(bytes));
  pthread_mutex_unlock(&mutex);
  if (result != CUDA_SUCCESS) return result;
  struct block block = {.owner = (uint16_t)handle_index(&pools, pool), .kind = BLOCK_POOL, .gpu = (uint8_t)pool->gpu};
  result = arena_take(bytes, block, out);
  if (result != CUDA_SUCCESS) pool_returned(handle_index(&pools, pool), bytes);
  return result;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  CUcontext context;
  CUstream own;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!pool) TRY(current_of(context->device, &pool));
  if (!handle_valid(&pools, pool)) return CUDA_ERROR_INVALID_VALUE;
  if (own && own->capture) return graph_capture_alloc(own, pool->gpu, bytes, out);
  return take(out, bytes, pool);
}
ENTRY_PTSZ(cuMemAllocAsync, (CUdeviceptr *out, size_t bytes, CUstream stream), allocate, (out, bytes, NULL, stream))

static CUresult allocate_from(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  NONNULL(pool);
  return allocate(out, bytes, pool, stream);
}
ENTRY_PTSZ(cuMemAllocFromPoolAsync, (CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream),
           allocate_from, (out, bytes, pool, stream))

static CUresult free_ordered(CUdeviceptr address, CUstream stream) {
  CUcontext context;
  CUstream own;
  CUdeviceptr base;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  struct block *block = arena_find(address, &base);
  if (own && own->capture) return graph_capture_free(own, address);
  if (!block || base != address || (block->kind != BLOCK_POOL && block->kind != BLOCK_GRAPH))
    return CUDA_ERROR_INVALID_VALUE;
  return memory_give(address);
}
ENTRY_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_ordered, (address, stream))

/* --- pools as objects ------------------------------------------------------------------------------------------- */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER(cuDeviceGetDefaultMemPool);
  NONNULL(out);
  return default_of(device, out);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  ENTER(cuDeviceGetMemPool);
  NONNULL(out);
  return current_of(device, out);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  ENTER(cuDeviceSetMemPool);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!handle_valid(&pools, pool)) return CUDA_ERROR_INVALID_VALUE;
  current_pool[device] = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  ENTER(cuMemPoolCreate);
  if (!out || !props) return CUDA_ERROR_INVALID_VALUE;
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!device_valid(props->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  CUmemoryPool pool = make(device_gpu[props->location.id]);
  if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
  pool->most = props->maxSize;
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  ENTER(cuMemPoolDestroy);
  if (!handle_valid(&pools, pool) || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < FAKE_MAX_GPUS; i++)
    if (current_pool[i] == pool) current_pool[i] = NULL;
  pthread_mutex_lock(&mutex);
  shrink(pool, 0);
  /* The place is used again only if no block can come back to it. */
  if (pool->used) atomic_store(&pool->handle.alive, 0);
  else handle_delete(&pools, pool);
  pthread_mutex_unlock(&mutex);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  ENTER(cuMemPoolTrimTo);
  if (!handle_valid(&pools, pool)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  shrink(pool, keep);
  pthread_mutex_unlock(&mutex);
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
  if (!handle_valid(&pools, pool)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t *wide = wide_attribute(pool, attribute);
  int *reuse = reuse_attribute(pool, attribute);
  if (wide) *(cuuint64_t *)value = *wide;
  if (reuse) *(int *)value = *reuse;
  return wide || reuse ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  ENTER(cuMemPoolSetAttribute);
  NONNULL(value);
  if (!handle_valid(&pools, pool)) return CUDA_ERROR_INVALID_VALUE;
  int *reuse = reuse_attribute(pool, attribute);
  if (reuse) {
    *reuse = *(int *)value != 0;
    return CUDA_SUCCESS;
  }
  uint64_t wanted = *(cuuint64_t *)value;
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->threshold = wanted;
    return CUDA_SUCCESS;
  }
  if (wanted != 0) return CUDA_ERROR_INVALID_VALUE; /* high-water marks can be reset, nothing more */
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool->reserved_high = pool->reserved;
  else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->used_high = pool->used;
  else return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
  ENTER(cuMemPoolSetAccess);
  if (!handle_valid(&pools, pool) || (count && !map)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !device_valid(map[i].location.id))
      return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
  ENTER(cuMemPoolGetAccess);
  if (!flags || !location || !handle_valid(&pools, pool)) return CUDA_ERROR_INVALID_VALUE;
  if (!device_valid(location->id)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = device_gpu[location->id] == pool->gpu ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

/* --- the same questions by place, as newer programs ask ----------------------------------------------------------- */

static CUresult place(const CUmemLocation *location, CUmemAllocationType type) {
  if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return device_valid(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
  ENTER(cuMemGetDefaultMemPool);
  NONNULL(out);
  TRY(place(location, type));
  return default_of(location->id, out);
}

CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
  ENTER(cuMemGetMemPool);
  NONNULL(out);
  TRY(place(location, type));
  return current_of(location->id, out);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  ENTER(cuMemSetMemPool);
  TRY(place(location, type));
  if (!handle_valid(&pools, pool)) return CUDA_ERROR_INVALID_VALUE;
  current_pool[location->id] = pool;
  return CUDA_SUCCESS;
}
