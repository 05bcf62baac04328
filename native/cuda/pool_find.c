/* SPDX-License-Identifier: Apache-2.0 */
/* See pool_find.h. Pools that no creating call was seen of are default pools: they are found when they are first used,
 * by asking the driver for the default pool of each device.
 * Uses handles and devices, no sizes. Tests: tests/integration/test_native_pool.py. */
#include "pool_find.h"

#include <string.h>

#include "charge.h"
#include "context_table.h"
#include "device.h"
#include "driver.h"
#include "log.h"
#include "managed.h"
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

static int record(CUmemoryPool handle, struct pool *pool) {
  const struct table_entry entry = {(uintptr_t)handle, 0, pool_number(pool), 0};
  struct table_entry old;
  int status = table_put(&handles, &entry, &old);
  if (status == 1 && old.column != entry.column) pool_destroyed(&pools[old.column]); /* by a call that is not hooked */
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
  if (!record(handle, pool)) return NULL;
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
  int found = device_place_column(dev);
  *column = found < 0 ? 0 : (uint32_t)found;
  return found >= 0 ? POOL_COUNTED : POOL_NO_SHARE;
}

/* Managed memory is charged in full wherever it prefers to be, as cuMemAllocManaged is: without a device of its own, to
 * the current context's. */
static enum pool_kind kind_of_managed(uint32_t *column) {
  struct place place = {0, 0};
  CUresult result = context_place(&place);
  *column = place.column;
  return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT ? POOL_COUNTED : POOL_NO_SHARE;
}

enum pool_kind pool_place(const CUmemLocation *location, CUmemAllocationType type, uint32_t *column) {
  CUdevice dev = device_of_location(location);
  *column = 0;
  if (dev != LOCATION_HOST) return kind_of_device(dev, column);
  return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? kind_of_managed(column) : POOL_FREE;
}

/* The answer of a driver that has no such pool. */
static int is_refusal(CUresult result) {
  return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE ||
         result == CUDA_ERROR_INVALID_DEVICE;
}

/* 1: HANDLE is this default pool; 0: it is not; UNSAID: the driver does not say. */
enum { UNSAID = -1 };
static int is_default(CUmemoryPool handle, CUmemLocationType where, int id, CUmemAllocationType type) {
  CUmemoryPool found = NULL;
  CUmemLocation location = {.type = where, .id = id};
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (type == CU_MEM_ALLOCATION_TYPE_PINNED)
    result = real_cuda.cuDeviceGetDefaultMemPool(&found, id);
  else if (real_cuda.cuMemGetDefaultMemPool != NULL)
    result = real_cuda.cuMemGetDefaultMemPool(&found, &location, type);
  if (result == CUDA_SUCCESS) return found == handle;
  return is_refusal(result) ? 0 : UNSAID;
}

/* The device whose default pool HANDLE is, *COUNT: none, UNSAID: the driver does not say. */
static CUdevice find_device(CUmemoryPool handle, int *count) {
  *count = device_count();
  if (*count < 0) return UNSAID;
  for (CUdevice dev = 0; dev < *count; dev++) {
    int pinned = is_default(handle, CU_MEM_LOCATION_TYPE_DEVICE, dev, CU_MEM_ALLOCATION_TYPE_PINNED);
    int managed = is_default(handle, CU_MEM_LOCATION_TYPE_DEVICE, dev, CU_MEM_ALLOCATION_TYPE_MANAGED);
    if (pinned == 1 || managed == 1) return dev;
    if (pinned == UNSAID || managed == UNSAID) return UNSAID;
  }
  return *count;
}

/* All else is host memory, and costs nothing. POOL_UNUSED: unknown. */
static enum pool_kind find_default(CUmemoryPool handle, uint32_t *column) {
  static const CUmemLocationType elsewhere[] = {CU_MEM_LOCATION_TYPE_NONE, CU_MEM_LOCATION_TYPE_HOST};
  int count = 0;
  CUdevice dev = find_device(handle, &count);
  *column = 0;
  if (dev == UNSAID) return POOL_UNUSED;
  if (dev < count) return kind_of_device(dev, column);
  for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
    int found = is_default(handle, elsewhere[i], 0, CU_MEM_ALLOCATION_TYPE_MANAGED);
    if (found == UNSAID) return POOL_UNUSED;
    if (found) return kind_of_managed(column);
  }
  return POOL_FREE;
}

static __attribute__((noinline, cold)) CUresult refuse_unknown(void) {
  static _Atomic int said;
  if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "the driver does not say whose memory a pool has: allocations from it are refused; take memory "
                        "from a pool that the program makes itself, or without pools");
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static __attribute__((noinline)) CUresult find_handle(CUmemoryPool handle, struct pool **out) {
  uint32_t column;
  if (real_cuda.cuDeviceGetDefaultMemPool == NULL || real_cuda.cuMemPoolGetAttribute == NULL)
    return CUDA_ERROR_NOT_SUPPORTED;
  enum pool_kind kind = find_default(handle, &column);
  if (kind == POOL_FREE) return CUDA_SUCCESS;
  if (kind == POOL_UNUSED) return refuse_unknown();
  lock_take(&entering);
  *out = pool_known(handle); /* another thread may have come first */
  if (*out == NULL) *out = enter(handle, kind, column);
  lock_give(&entering);
  return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_of_handle(CUmemoryPool handle, struct pool **out) {
  *out = pool_known(handle);
  if (VC_LIKELY(*out != NULL)) return CUDA_SUCCESS;
  return handle != NULL ? find_handle(handle, out) : CUDA_ERROR_INVALID_VALUE;
}

/* --- the current pool of a device -------------------------------------------------------------------------------- */

void pool_current_changed(void) {
  lock_take(&entering);
  atomic_fetch_add(&epoch, 1);
  for (int dev = 0; dev < DEVICES; dev++) atomic_store_explicit(&current[dev], 0, memory_order_relaxed);
  lock_give(&entering);
}

static __attribute__((noinline)) CUresult ask_current(CUdevice dev, struct pool **out) {
  CUmemoryPool handle = NULL;
  uint32_t seen = atomic_load(&epoch);
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (real_cuda.cuDeviceGetMemPool != NULL) result = real_cuda.cuDeviceGetMemPool(&handle, dev);
  if (result == CUDA_SUCCESS) result = pool_of_handle(handle, out);
  if (result != CUDA_SUCCESS || *out == NULL || dev < 0 || dev >= DEVICES) return result;
  lock_take(&entering);
  if (atomic_load(&epoch) == seen) atomic_store_explicit(&current[dev], pool_number(*out) + 1, memory_order_release);
  lock_give(&entering);
  return CUDA_SUCCESS;
}

static __attribute__((noinline)) int count_devices(void) {
  int count = device_count();
  if (count < 0) return 0;
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

struct pool *pool_of_stream_known(CUstream stream) {
  CUdevice dev = 0;
  int devices = atomic_load_explicit(&single, memory_order_relaxed);
  if (devices == 0 || (devices != 1 && device_of_stream(stream, &dev) != CUDA_SUCCESS)) return NULL;
  if (dev < 0 || dev >= DEVICES) return NULL;
  uint32_t known = atomic_load_explicit(&current[dev], memory_order_acquire);
  return VC_LIKELY(known != 0) ? &pools[known - 1] : NULL;
}

__attribute__((noinline, cold)) CUresult pool_of_stream(CUstream stream, struct pool **out) {
  CUdevice dev = 0;
  int devices = atomic_load_explicit(&single, memory_order_relaxed);
  *out = NULL;
  if (devices == 0) devices = count_devices();
  CUresult result = devices != 1 ? device_of_stream(stream, &dev) : CUDA_SUCCESS;
  return result == CUDA_SUCCESS ? ask_current(dev, out) : result;
}

/* --- the library's own pools of managed memory. Two threads that come first may both make one; the second to put it
 * down destroys its own. */

static VC_LARGE _Atomic(struct pool *) managed_pools[VC_MAX_GPUS];

static struct pool *make_managed(uint32_t column) {
  CUdevice dev = device_in_column(column);
  CUmemoryPool handle = dev < 0 ? NULL : managed_pool(dev);
  if (handle == NULL) return NULL;
  struct pool *pool = pool_enter(handle, POOL_COUNTED, column | COLUMN_MANAGED | COLUMN_CONVERTED), *other = NULL;
  if (pool != NULL && atomic_compare_exchange_strong(&managed_pools[column], &other, pool)) return pool;
  if (real_cuda.cuMemPoolDestroy != NULL) real_cuda.cuMemPoolDestroy(handle);
  if (pool != NULL) pool_ended(handle, pool, pool->birth); /* the program never got its handle */
  return other;
}

struct pool *pool_managed_of(uint32_t column) {
  if (column >= VC_MAX_GPUS) return NULL;
  struct pool *pool = atomic_load_explicit(&managed_pools[column], memory_order_acquire);
  return pool != NULL ? pool : make_managed(column);
}

void pool_find_after_fork(void) {
  table_reset(&handles);
  lock_give(&entering);
  memset(pools, 0, atomic_load(&pool_count) * sizeof *pools);
  for (int dev = 0; dev < DEVICES; dev++) atomic_store(&current[dev], 0);
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) atomic_store(&managed_pools[column], NULL);
  atomic_store(&pool_count, 0);
}
