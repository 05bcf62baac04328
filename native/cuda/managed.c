/* SPDX-License-Identifier: Apache-2.0 */
/* See managed.h.
 *
 * Managed memory is created without pages: its success says nothing about room. Without concurrent access a GPU's
 * managed memory is bound to its size and no page moves while a kernel runs, and one such GPU among several moves the
 * memory of all to the host: so every visible GPU must have it. Managed pages may escape the memory limits of a
 * container, and a host without memory stands still: so what /proc/meminfo calls available is read first.
 * Charges nothing itself. Tests: tests/integration/test_native_oversub.py. */
#include "managed.h"

#include <stdatomic.h>

#include "charge.h"
#include "device.h"
#include "driver.h"
#include "log.h"
#include "os.h"
#include "status.h"
#include "text.h"

enum { PITCH = 512 };
enum { UNKNOWN, POSSIBLE, IMPOSSIBLE };

static _Atomic int support; /* of all visible GPUs; they do not change while the driver is loaded */
static _Atomic int any;

static int once(_Atomic int *said) { return !atomic_exchange_explicit(said, 1, memory_order_relaxed); }

static int gpu_moves_pages(CUdevice dev) {
  int value = 0;
  return real_cuda.cuDeviceGetAttribute != NULL &&
         real_cuda.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, dev) == CUDA_SUCCESS &&
         value == 1;
}

static int gpus_move_pages(void) {
  int known = atomic_load_explicit(&support, memory_order_relaxed);
  if (VC_LIKELY(known != UNKNOWN)) return known == POSSIBLE;
  int count = device_count();
  if (count < 0) return 0;
  known = real_cuda.cuMemAllocManaged != NULL ? POSSIBLE : IMPOSSIBLE;
  for (int dev = 0; dev < count && known == POSSIBLE; dev++)
    if (!gpu_moves_pages(dev)) {
      log_line(LOG_ERROR,
               "GPU %d has no concurrentManagedAccess: nothing can be kept in host memory, allocations beyond the "
               "physical share are refused; use a GPU of compute capability 6.0 or newer with a full driver on Linux, "
               "or hide this one with CUDA_VISIBLE_DEVICES",
               dev);
      known = IMPOSSIBLE;
    }
  atomic_store_explicit(&support, known, memory_order_relaxed);
  return known == POSSIBLE;
}

static int host_has(uint64_t bytes) {
  static _Atomic int unread, full;
  uint64_t available;
  if (os_memory_available(&available) != VC_OK) {
    if (once(&unread))
      log_line(LOG_ERROR, "/proc/meminfo does not say how much memory the host has: allocations beyond the physical "
                          "share are refused; mount /proc");
    return 0;
  }
  if (bytes <= available) return 1;
  char left[TEXT_SIZE], asked[TEXT_SIZE];
  if (once(&full))
    log_line(LOG_ERROR,
             "the host has %s of memory left and %s beyond the physical share were asked for: refused; free some, or "
             "lower the share of host memory", text_size(available, left), text_size(bytes, asked));
  return 0;
}

int managed_is_possible(uint64_t bytes) { return gpus_move_pages() && host_has(bytes); }

/* The two ABIs pass the place differently, and a driver may lack either: each has its own name here. Advice that is
 * refused changes the speed and nothing else. */
static void advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice dev) {
  const CUmemLocation place = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev};
  if (real_cuda.cuMemAdvise != NULL)
    real_cuda.cuMemAdvise(address, bytes, advice, dev);
  else if (real_cuda.cuMemAdvise_v2 != NULL)
    real_cuda.cuMemAdvise_v2(address, bytes, advice, place);
}

CUresult managed_allocate(CUdeviceptr *out, size_t bytes) {
  CUdevice dev;
  if (!managed_is_possible(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = real_cuda.cuMemAllocManaged(out, bytes, CU_MEM_ATTACH_GLOBAL);
  if (result != CUDA_SUCCESS || real_cuda.cuCtxGetDevice(&dev) != CUDA_SUCCESS) return result;
  advise(*out, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, dev);
  advise(*out, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, dev);
  managed_note();
  return CUDA_SUCCESS;
}

size_t managed_pitch(size_t width) {
  size_t pitch;
  return __builtin_add_overflow(width, PITCH - 1, &pitch) ? 0 : pitch & ~(size_t)(PITCH - 1);
}

CUmemoryPool managed_pool(CUdevice dev) {
  static _Atomic int said;
  CUmemoryPool pool = NULL;
  cuuint64_t keep = UINT64_MAX; /* what is given back at each synchronisation has to be faulted in again */
  const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev}};
  int version = 0;
  if (!gpus_move_pages()) return NULL;
  if (real_cuda.cuDriverGetVersion == NULL || real_cuda.cuDriverGetVersion(&version) != CUDA_SUCCESS ||
      version < 13000 || real_cuda.cuMemPoolCreate(&pool, &props) != CUDA_SUCCESS) {
    if (once(&said))
      log_line(LOG_ERROR, "this driver has no pools of managed memory (CUDA 13 brings them): stream-ordered "
                          "allocations beyond the physical share are refused");
    return NULL;
  }
  real_cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
  return pool;
}

void managed_note(void) {
  if (!atomic_load_explicit(&any, memory_order_relaxed)) atomic_store_explicit(&any, 1, memory_order_release);
}

int managed_is_there(void) { return atomic_load_explicit(&any, memory_order_acquire); }

static CUresult fetch(CUdeviceptr address, size_t bytes, CUdevice dev, CUstream stream, int per_thread) {
  const CUmemLocation place = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev};
  __typeof__(&cuMemPrefetchAsync) old = per_thread ? real_cuda.cuMemPrefetchAsync_ptsz : real_cuda.cuMemPrefetchAsync;
  __typeof__(&cuMemPrefetchAsync_v2) new = per_thread ? real_cuda.cuMemPrefetchAsync_v2_ptsz
                                                      : real_cuda.cuMemPrefetchAsync_v2;
  if (old != NULL) return old(address, bytes, dev, stream);
  return new != NULL ? new(address, bytes, place, 0, stream) : CUDA_ERROR_NOT_FOUND;
}

/* No more than the GPU surely has room for: more would push out what has just come. When another thread frees a block
 * meanwhile, the driver's error is ignored. */
void managed_fetch(uint32_t column, CUstream stream, int per_thread) {
  struct table_entry blocks[128];
  CUdevice dev;
  size_t room;
  if (!atomic_load_explicit(&any, memory_order_acquire) || real_cuda.cuCtxGetDevice(&dev) != CUDA_SUCCESS) return;
  if (real_cuda.cuDeviceTotalMem_v2 == NULL || real_cuda.cuDeviceTotalMem_v2(&room, dev) != CUDA_SUCCESS) return;
  room = room / 4 * 3;
  uint32_t count = charge_converted(column, blocks, sizeof blocks / sizeof *blocks);
  for (uint32_t i = 0; i < count; i++) {
    if (blocks[i].bytes > room) continue;
    if (fetch(blocks[i].key, blocks[i].bytes, dev, stream, per_thread) != CUDA_SUCCESS) continue;
    room -= blocks[i].bytes;
  }
}

void managed_after_fork(void) { atomic_store(&any, 0); }
