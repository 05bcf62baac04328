/* See pool_find.h. Pools that no creating call was seen of are default pools: they are found when they are first used,
 * by asking the driver for the default pool of each device.
 * Knows handles and devices, no sizes. Tests: tests/integration/test_native_pool.py. */
#include "pool_find.h"

#include <string.h>

#include "context.h"
#include "device.h"
#include "driver.h"
#include "place.h"
#include "table.h"

enum { DEVICES = 64 };

static VC_LARGE struct pool pools[POOLS];
static _Atomic uint32_t pool_count; /* places that were ever used */
static VC_LARGE struct table handles;        /* handle -> number, in the column of the entry */
static struct lock entering;
static uint32_t births; /* under the lock */

/* Per device: number + 1 of the current pool, 0: ask the driver. Valid for one epoch. */
static VC_LARGE _Atomic uint32_t current[DEVICES];
static _Atomic uint32_t epoch;

static _Atomic int single; /* 1: the driver has one device, which is every stream's; 2: it has more */

uint32_t pool_number(const struct pool *pool) { return (uint32_t)(pool - pools); }

struct pool *pool_numbered(uint32_t number) { return number < POOLS ? &pools[number] : NULL; }

static enum pool_kind kind_of(const struct pool *pool) {
  return (enum pool_kind)atomic_load_explicit(&pool->kind, memory_order_acquire);
}

void pool_each(void (*visit)(struct pool *pool, void *data), void *data) {
  uint32_t count = atomic_load_explicit(&pool_count, memory_order_acquire);
  for (uint32_t i = 0; i < count; i++)
    if (kind_of(&pools[i]) != POOL_UNUSED) visit(&pools[i], data);
}

/* --- handles ----------------------------------------------------------------------------------------------------- */

struct pool *pool_known(CUmemoryPool handle) {
  struct table_entry entry;
  return handle != NULL && table_get(&handles, (uintptr_t)handle, &entry) ? &pools[entry.column] : NULL;
}

static struct pool *free_place(void) {
  uint32_t count = atomic_load_explicit(&pool_count, memory_order_relaxed);
  for (uint32_t i = 0; i < count; i++)
    if (kind_of(&pools[i]) == POOL_UNUSED) return &pools[i];
  if (count == POOLS) return NULL;
  atomic_store_explicit(&pool_count, count + 1, memory_order_release);
  return &pools[count];
}

static int book(CUmemoryPool handle, struct pool *pool) {
  const struct table_entry entry = {(uintptr_t)handle, 0, pool_number(pool), 0};
  struct table_entry old;
  int status = table_put(&handles, &entry, &old);
  if (status == 1 && old.column != entry.column) pool_destroyed(&pools[old.column]); /* where we do not look */
  return status >= 0;
}

/* Under the lock. */
static struct pool *enter(CUmemoryPool handle, enum pool_kind kind, uint32_t column) {
  struct pool *pool = free_place();
  if (pool == NULL) return NULL;
  pool->live = pool->reserved = pool->step = 0;
  pool->rigid = pool->unread = pool->doubtful = 0;
  pool->birth = ++births;
  atomic_store_explicit(&pool->handle, handle, memory_order_relaxed);
  atomic_store_explicit(&pool->column, column, memory_order_relaxed);
  if (!book(handle, pool)) return NULL;
  atomic_store_explicit(&pool->kind, (uint8_t)kind, memory_order_release);
  return pool;
}

struct pool *pool_enter(CUmemoryPool handle, enum pool_kind kind, uint32_t column) {
  lock_take(&entering);
  struct pool *pool = enter(handle, kind, column);
  lock_give(&entering);
  return pool;
}

void pool_ended(CUmemoryPool handle, struct pool *pool, uint32_t birth) {
  struct table_entry entry;
  lock_take(&entering);
  if (pool_known(handle) == pool && pool->birth == birth && table_take(&handles, (uintptr_t)handle, &entry))
    pool_destroyed(pool);
  lock_give(&entering);
}

/* --- places ------------------------------------------------------------------------------------------------------ */

static enum pool_kind kind_of_device(CUdevice dev, uint32_t *column) {
  int found = device_column(dev);
  *column = found < 0 ? 0 : (uint32_t)found;
  return found >= 0 ? POOL_COUNTED : found == VC_ENOENT ? POOL_NO_SHARE : POOL_FREE;
}

/* Managed memory is charged in full wherever it prefers to be, as cuMemAllocManaged is: without a device of its own, to
 * the current context's. */
static enum pool_kind kind_of_managed(uint32_t *column) {
  struct place place = {0, 0};
  int status = context_place(&place);
  *column = place.column;
  return status == VC_ENOENT ? POOL_NO_SHARE : POOL_COUNTED;
}

enum pool_kind pool_place(const CUmemLocation *location, CUmemAllocationType type, uint32_t *column) {
  CUdevice dev = device_of_place(location);
  *column = 0;
  if (dev >= 0) return kind_of_device(dev, column);
  return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? kind_of_managed(column) : POOL_FREE;
}

static int is_default(CUmemoryPool handle, CUmemLocationType where, int id, CUmemAllocationType type) {
  CUmemoryPool found = NULL;
  CUmemLocation location = {.type = where, .id = id};
  if (type == CU_MEM_ALLOCATION_TYPE_PINNED)
    return real_cuda.cuDeviceGetDefaultMemPool(&found, id) == CUDA_SUCCESS && found == handle;
  return real_cuda.cuMemGetDefaultMemPool != NULL &&
         real_cuda.cuMemGetDefaultMemPool(&found, &location, type) == CUDA_SUCCESS && found == handle;
}

/* Whatever is none of these is host memory, and costs nothing. */
static enum pool_kind find_default(CUmemoryPool handle, uint32_t *column) {
  int count = 0;
  if (real_cuda.cuDeviceGetCount == NULL || real_cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
  for (CUdevice dev = 0; dev < count; dev++)
    if (is_default(handle, CU_MEM_LOCATION_TYPE_DEVICE, dev, CU_MEM_ALLOCATION_TYPE_PINNED) ||
        is_default(handle, CU_MEM_LOCATION_TYPE_DEVICE, dev, CU_MEM_ALLOCATION_TYPE_MANAGED))
      return kind_of_device(dev, column);
  static const CUmemLocationType elsewhere[] = {CU_MEM_LOCATION_TYPE_NONE, CU_MEM_LOCATION_TYPE_HOST};
  for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
    if (is_default(handle, elsewhere[i], 0, CU_MEM_ALLOCATION_TYPE_MANAGED)) return kind_of_managed(column);
  *column = 0;
  return POOL_FREE;
}

struct pool *pool_of_handle(CUmemoryPool handle) {
  uint32_t column;
  struct pool *pool = pool_known(handle);
  if (VC_LIKELY(pool != NULL) || handle == NULL) return pool;
  if (real_cuda.cuDeviceGetDefaultMemPool == NULL || real_cuda.cuMemPoolGetAttribute == NULL) return NULL;
  enum pool_kind kind = find_default(handle, &column);
  if (kind == POOL_FREE) return NULL;
  lock_take(&entering);
  pool = pool_known(handle); /* another thread may have come first */
  if (pool == NULL) pool = enter(handle, kind, column);
  lock_give(&entering);
  return pool;
}

/* --- the current pool of a device -------------------------------------------------------------------------------- */

void pool_current_changed(void) {
  lock_take(&entering);
  atomic_fetch_add(&epoch, 1);
  for (int dev = 0; dev < DEVICES; dev++) atomic_store_explicit(&current[dev], 0, memory_order_relaxed);
  lock_give(&entering);
}

static __attribute__((noinline)) struct pool *ask_current(CUdevice dev) {
  CUmemoryPool handle = NULL;
  uint32_t seen = atomic_load(&epoch);
  if (real_cuda.cuDeviceGetMemPool == NULL || real_cuda.cuDeviceGetMemPool(&handle, dev) != CUDA_SUCCESS) return NULL;
  struct pool *pool = pool_of_handle(handle);
  if (pool == NULL || dev < 0 || dev >= DEVICES) return pool;
  lock_take(&entering);
  if (atomic_load(&epoch) == seen) atomic_store_explicit(&current[dev], pool_number(pool) + 1, memory_order_release);
  lock_give(&entering);
  return pool;
}

static __attribute__((noinline)) int count_devices(void) {
  int count = 0;
  if (real_cuda.cuDeviceGetCount == NULL || real_cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return 0;
  int known = count == 1 ? 1 : 2;
  atomic_store_explicit(&single, known, memory_order_relaxed);
  return known;
}

/* Drivers before 12.8 name only the context of a stream, which then must be current to be asked. */
static CUresult device_of_context(CUstream stream, CUdevice *dev) {
  CUcontext context = NULL, popped;
  if (real_cuda.cuStreamGetCtx == NULL || real_cuda.cuCtxPushCurrent_v2 == NULL) return CUDA_ERROR_NOT_FOUND;
  CUresult result = real_cuda.cuStreamGetCtx(stream, &context);
  if (result == CUDA_SUCCESS) result = real_cuda.cuCtxPushCurrent_v2(context);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuCtxGetDevice(dev);
  real_cuda.cuCtxPopCurrent_v2(&popped);
  return result;
}

static CUresult device_of_stream(CUstream stream, CUdevice *dev) {
  if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
    return real_cuda.cuCtxGetDevice(dev);
  return real_cuda.cuStreamGetDevice != NULL ? real_cuda.cuStreamGetDevice(stream, dev)
                                             : device_of_context(stream, dev);
}

struct pool *pool_of_stream(CUstream stream) {
  CUdevice dev = 0;
  int devices = atomic_load_explicit(&single, memory_order_relaxed);
  if (devices == 0) devices = count_devices();
  if (devices != 1 && device_of_stream(stream, &dev) != CUDA_SUCCESS) return NULL;
  if (VC_LIKELY(dev >= 0 && dev < DEVICES)) {
    uint32_t known = atomic_load_explicit(&current[dev], memory_order_acquire);
    if (VC_LIKELY(known != 0)) return &pools[known - 1];
  }
  return ask_current(dev);
}

void pool_find_after_fork(void) {
  table_reset(&handles);
  lock_give(&entering);
  memset(pools, 0, atomic_load(&pool_count) * sizeof *pools);
  for (int dev = 0; dev < DEVICES; dev++) atomic_store(&current[dev], 0);
  atomic_store(&pool_count, 0);
}
