/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: physical memory by handle, address ranges, and mapping one into the other.
 * Must not depend on pools or blocks. Tests: tests/unit/fakedriver/test_vmm.py.
 *
 * Physical memory is charged to its creator; fake_share.c decides who pays once others share it. */
#include "fake_vmm.h"
#include "fake_env.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <unistd.h>

struct slot {
  union {
    struct memory memory;
    char room[256];
  };
};
_Static_assert(sizeof(struct slot) == 256, "memory fits a slot");
static struct handles memories = HANDLES(struct slot, 1 << 18);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void vmm_lock(void) { pthread_mutex_lock(&mutex); }
void vmm_unlock(void) { pthread_mutex_unlock(&mutex); }

struct memory *memory_new(void) {
  struct memory *memory = handle_new(&memories);
  if (!memory) return NULL;
  memory->fd = -1;
  memory->references = 1;
  return memory;
}

struct memory *memory_check(CUmemGenericAllocationHandle handle) {
  struct memory *memory = (struct memory *)(uintptr_t)handle;
  return handle_valid(&memories, memory) && memory->references ? memory : NULL;
}

void memory_settle(struct memory *memory) {
  if (memory->references || memory->mappings) return;
  multicast_forget(memory);
  if (memory->share) share_leave(memory);
  else if (memory->charged) state_uncharge(memory->gpu, memory->charged, memory->level);
  if (memory->fd >= 0) close(memory->fd);
  handle_delete(&memories, memory);
}

int memory_back(struct memory *memory) {
  char name[64];
  if (memory->fd >= 0) return 0;
  snprintf(name, sizeof name, "fakecuda:%c:%u:%llu", memory->multicast ? 'm' : memory->host ? 'h' : 'd', memory->gpu,
           (unsigned long long)memory->size);
  memory->fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC);
  return memory->fd < 0 || ftruncate(memory->fd, (off_t)(memory->size + sizeof(struct fake_share))) ? -1 : 0;
}

struct search {
  struct stat status;
  struct memory *found;
};

static void compare(void *item, void *arg) {
  struct memory *memory = item;
  struct search *search = arg;
  struct stat status;
  if (memory->references && memory->fd >= 0 && !fstat(memory->fd, &status) && status.st_ino == search->status.st_ino)
    search->found = memory;
}

struct memory *memory_of_file(int fd) {
  struct search search = {.found = NULL};
  if (fstat(fd, &search.status)) return NULL;
  handle_each(&memories, compare, &search);
  return search.found;
}

static int host(const CUmemAllocationProp *prop) {
  return prop->location.type >= CU_MEM_LOCATION_TYPE_HOST &&
         prop->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check_prop(const CUmemAllocationProp *prop) {
  NONNULL(prop);
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (host(prop)) return CUDA_SUCCESS;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return device_valid(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  ENTER(cuMemGetAllocationGranularity);
  if (!granularity || (unsigned)option > 1) return CUDA_ERROR_INVALID_VALUE;
  TRY(check_prop(prop));
  *granularity = GRANULARITY;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  ENTER(cuMemCreate);
  if (!out || !size || size % GRANULARITY || flags) return CUDA_ERROR_INVALID_VALUE;
  TRY(check_prop(prop));
  if (size > 1ull << 47) return CUDA_ERROR_OUT_OF_MEMORY;
  unsigned gpu = host(prop) ? 0 : device_gpu[prop->location.id];
  uint64_t charged = host(prop) ? 0 : memory_rounded(size);
  unsigned level = 0;
  TRY(charged ? memory_charge(gpu, charged, &level) : CUDA_SUCCESS);
  struct memory *memory = memory_new();
  if (!memory) {
    if (charged) state_uncharge(gpu, charged, level);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory->size = size;
  memory->charged = charged;
  memory->level = level;
  memory->gpu = gpu;
  memory->host = host(prop);
  memory->prop = *prop;
  *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  return CUDA_SUCCESS;
}

/* Some time between what a call did and its return, for others to do something. */
static void linger(unsigned share) {
  static _Atomic int known;
  static uint64_t ns;
  if (!atomic_load(&known)) {
    ns = fake_env_linger_ns();
    atomic_store(&known, 1);
  }
  if (ns) work_sleep(ns / share);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER(cuMemRelease);
  vmm_lock();
  struct memory *memory = memory_check(handle);
  int failed = !memory;
  if (!failed) {
    memory->references--;
    memory_settle(memory);
  }
  vmm_unlock();
  linger(2);
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
  ENTER(cuMemGetAllocationPropertiesFromHandle);
  struct memory *memory = memory_check(handle);
  if (!prop || !memory) return CUDA_ERROR_INVALID_VALUE;
  *prop = memory->prop;
  return CUDA_SUCCESS;
}

/* --- addresses -------------------------------------------------------------------------------------------------- */

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  ENTER(cuMemAddressReserve);
  if (!out || !size || size % GRANULARITY || flags || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
  if (alignment < GRANULARITY) alignment = GRANULARITY;
  if (size > 1ull << 46 || alignment > 1ull << 40) return CUDA_ERROR_OUT_OF_MEMORY;
  char *memory = mmap((void *)(uintptr_t)(hint & ~(CUdeviceptr)4095), size + alignment, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  uintptr_t base = ((uintptr_t)memory + alignment - 1) & ~(uintptr_t)(alignment - 1);
  size_t before = base - (uintptr_t)memory;
  if (before) munmap(memory, before);
  if (alignment - before) munmap((void *)(base + size), alignment - before);
  struct range range = {.base = base, .size = size, .kind = RANGE_RESERVED};
  if (range_add(&range)) {
    munmap((void *)base, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = base;
  return CUDA_SUCCESS;
}

static void find_mapping(struct range *range, void *arg) {
  struct range *asked = arg;
  if (range->kind == RANGE_MAPPED && range->base < asked->base + asked->size &&
      asked->base < range->base + range->size)
    asked->flags = 1;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  ENTER(cuMemAddressFree);
  struct range range;
  if (range_find_kind(address, RANGE_RESERVED, &range) || range.base != address || range.size != size)
    return CUDA_ERROR_INVALID_VALUE;
  range.flags = 0;
  range_each(find_mapping, &range);
  if (range.flags) return CUDA_ERROR_INVALID_VALUE; /* something is still mapped in it */
  range_remove(address, RANGE_RESERVED, &range);
  munmap((void *)(uintptr_t)address, size);
  return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t size, size_t offset, struct memory *memory) {
  struct range reserved;
  if (range_find_kind(address, RANGE_RESERVED, &reserved) || size > reserved.base + reserved.size - address)
    return CUDA_ERROR_INVALID_VALUE;
  if (offset > memory->size || size > memory->size - offset) return CUDA_ERROR_INVALID_VALUE;
  if (memory_back(memory)) return CUDA_ERROR_OPERATING_SYSTEM;
  struct range range = {.base = address, .size = size, .kind = RANGE_MAPPED, .gpu = memory->gpu, .object = memory};
  if (range_add(&range)) return CUDA_ERROR_INVALID_VALUE;
  if (mmap((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->fd,
           (off_t)offset) == MAP_FAILED) {
    range_remove(address, RANGE_MAPPED, &range);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  memory->mappings++;
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  ENTER(cuMemMap);
  if (!size || size % GRANULARITY || address % GRANULARITY || offset % GRANULARITY || flags)
    return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  struct memory *memory = memory_check(handle);
  CUresult result = memory ? map(address, size, offset, memory) : CUDA_ERROR_INVALID_VALUE;
  vmm_unlock();
  linger(1);
  return result;
}

/* Takes whole mappings that lie side by side in the range. */
CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  ENTER(cuMemUnmap);
  struct range range;
  CUdeviceptr end = address + size;
  if (!size || end < address) return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  int failed = 0;
  for (CUdeviceptr at = address; at < end && !failed; at = range.base + range.size)
    failed = range_find_kind(at, RANGE_MAPPED, &range) || range.base != at || range.base + range.size > end;
  for (CUdeviceptr at = address; at < end && !failed; at = range.base + range.size) {
    range_remove(at, RANGE_MAPPED, &range);
    mmap((void *)(uintptr_t)at, range.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    struct memory *memory = range.object;
    memory->mappings--;
    memory_settle(memory);
  }
  vmm_unlock();
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count) {
  ENTER(cuMemSetAccess);
  struct range range;
  if (!size || !desc || !count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !device_valid(desc[i].location.id))
      return CUDA_ERROR_INVALID_DEVICE;
  for (CUdeviceptr at = address; at < address + size; at = range.base + range.size)
    if (range_find_kind(at, RANGE_MAPPED, &range)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
  ENTER(cuMemGetAccess);
  struct range range;
  if (!flags || !location || range_find_kind(address, RANGE_MAPPED, &range)) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  ENTER(cuMemRetainAllocationHandle);
  struct range range;
  NONNULL(out);
  vmm_lock();
  int failed = range_find_kind((uintptr_t)address, RANGE_MAPPED, &range);
  if (!failed) {
    struct memory *memory = range.object;
    memory->references++;
    *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  }
  vmm_unlock();
  linger(1);
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* --- other processes -------------------------------------------------------------------------------------------- */
