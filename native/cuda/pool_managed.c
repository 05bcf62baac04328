/* See pool_managed.h. Two threads that come first may both make one; the second to put it down destroys his.
 * Knows no sizes. Tests: tests/integration/test_native_oversub.py. */
#include "pool_managed.h"

#include "charge.h"
#include "device.h"
#include "driver.h"
#include "managed.h"
#include "place.h"
#include "pool_find.h"

static VC_LARGE _Atomic(struct pool *) own[VC_MAX_GPUS];

static CUdevice device_of(uint32_t column) {
  int count = 0;
  if (real_cuda.cuDeviceGetCount == NULL || real_cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return -1;
  for (CUdevice dev = 0; dev < count; dev++)
    if (device_column(dev) == (int)column) return dev;
  return -1;
}

static struct pool *make(uint32_t column) {
  CUdevice dev = device_of(column);
  CUmemoryPool handle = dev < 0 ? NULL : managed_pool(dev);
  if (handle == NULL) return NULL;
  struct pool *pool = pool_enter(handle, POOL_COUNTED, column | COLUMN_MANAGED | COLUMN_CONVERTED), *other = NULL;
  if (pool != NULL && atomic_compare_exchange_strong(&own[column], &other, pool)) return pool;
  if (real_cuda.cuMemPoolDestroy != NULL) real_cuda.cuMemPoolDestroy(handle);
  if (pool != NULL) pool_ended(handle, pool, pool->birth); /* the program never got its handle */
  return other;
}

struct pool *pool_managed_of(uint32_t column) {
  if (column >= VC_MAX_GPUS) return NULL;
  struct pool *pool = atomic_load_explicit(&own[column], memory_order_acquire);
  return pool != NULL ? pool : make(column);
}

void pool_managed_after_fork(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) atomic_store(&own[column], NULL);
}
