/* Virtual memory management: physical memory by handle, address ranges, and mapping one into the other.
 * Must not know pools or blocks. Tests: tests/unit/fakedriver/test_vmm.py.
 *
 * Physical memory is a file in memory, so that two mappings, or two processes after an export, see the same bytes. It is
 * charged to the process that created it until its last handle and mapping there are gone. */
#include "fake_cuda.h"
#include "fake_handle.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct memory {
  struct handle handle;
  uint64_t size, charged; /* charged: 0 for imported memory */
  unsigned gpu;
  int fd;
  uint32_t references, mappings;
  CUmemAllocationProp prop;
};

enum { GRANULARITY = 2 << 20 };
_Static_assert(sizeof(struct memory) <= 256, "the table below has room for it");
struct slot {
  union {
    struct memory memory;
    char room[256];
  };
};
static struct handles memories = HANDLES(struct slot, 1 << 18);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct memory *check(CUmemGenericAllocationHandle handle) {
  struct memory *memory = (struct memory *)(uintptr_t)handle;
  return handle_valid(&memories, memory) && memory->references + memory->mappings ? memory : NULL;
}

/* Under the mutex. */
static void drop_if_unused(struct memory *memory) {
  if (memory->references || memory->mappings) return;
  if (memory->charged) state_uncharge(memory->gpu, memory->charged);
  if (memory->fd >= 0) close(memory->fd);
  handle_delete(&memories, memory);
}

/* The name carries what an importing process has to know. */
static int back(struct memory *memory) {
  char name[64];
  if (memory->fd >= 0) return 0;
  snprintf(name, sizeof name, "fakecuda:%u:%llu", memory->gpu, (unsigned long long)memory->size);
  memory->fd = memfd_create(name, MFD_CLOEXEC);
  return memory->fd < 0 || ftruncate(memory->fd, (off_t)memory->size) ? -1 : 0;
}

static CUresult check_prop(const CUmemAllocationProp *prop) {
  NONNULL(prop);
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
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
  unsigned gpu = device_gpu[prop->location.id];
  TRY(memory_charge(gpu, memory_rounded(size)));
  struct memory *memory = handle_new(&memories);
  if (!memory) {
    state_uncharge(gpu, memory_rounded(size));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory->size = size;
  memory->charged = memory_rounded(size);
  memory->gpu = gpu;
  memory->fd = -1;
  memory->references = 1;
  memory->prop = *prop;
  *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER(cuMemRelease);
  pthread_mutex_lock(&mutex);
  struct memory *memory = check(handle);
  int failed = !memory || !memory->references;
  if (!failed) {
    memory->references--;
    drop_if_unused(memory);
  }
  pthread_mutex_unlock(&mutex);
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
  ENTER(cuMemGetAllocationPropertiesFromHandle);
  struct memory *memory = check(handle);
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
  struct range *wanted = arg;
  if (range->kind == RANGE_MAPPED && range->base < wanted->base + wanted->size &&
      wanted->base < range->base + range->size)
    wanted->flags = 1;
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
  if (back(memory)) return CUDA_ERROR_OPERATING_SYSTEM;
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
  pthread_mutex_lock(&mutex);
  struct memory *memory = check(handle);
  CUresult result = memory ? map(address, size, offset, memory) : CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_unlock(&mutex);
  return result;
}

/* Takes whole mappings that lie side by side in the range. */
CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  ENTER(cuMemUnmap);
  struct range range;
  CUdeviceptr end = address + size;
  if (!size || end < address) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  int failed = 0;
  for (CUdeviceptr at = address; at < end && !failed; at = range.base + range.size)
    failed = range_find_kind(at, RANGE_MAPPED, &range) || range.base != at || range.base + range.size > end;
  for (CUdeviceptr at = address; at < end && !failed; at = range.base + range.size) {
    range_remove(at, RANGE_MAPPED, &range);
    mmap((void *)(uintptr_t)at, range.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    struct memory *memory = range.object;
    memory->mappings--;
    drop_if_unused(memory);
  }
  pthread_mutex_unlock(&mutex);
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
  pthread_mutex_lock(&mutex);
  int failed = range_find_kind((uintptr_t)address, RANGE_MAPPED, &range);
  if (!failed) {
    struct memory *memory = range.object;
    memory->references++;
    *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  }
  pthread_mutex_unlock(&mutex);
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* --- other processes -------------------------------------------------------------------------------------------- */

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  ENTER(cuMemExportToShareableHandle);
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  pthread_mutex_lock(&mutex);
  struct memory *memory = check(handle);
  CUresult result =
      memory && memory->prop.requestedHandleTypes & (unsigned)type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  int fd = -1;
  if (result == CUDA_SUCCESS && !back(memory)) fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
  pthread_mutex_unlock(&mutex);
  if (result == CUDA_SUCCESS && fd < 0) result = CUDA_ERROR_OPERATING_SYSTEM;
  if (result == CUDA_SUCCESS) *(int *)out = fd;
  return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                        CUmemAllocationHandleType type) {
  ENTER(cuMemImportFromShareableHandle);
  char path[64], name[128];
  unsigned gpu;
  unsigned long long size;
  NONNULL(out);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  int fd = (int)(intptr_t)os_handle;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(path, name, sizeof name - 1);
  name[length > 0 ? length : 0] = '\0';
  if (sscanf(name, "/memfd:fakecuda:%u:%llu", &gpu, &size) != 2 || device_of_gpu(gpu) < 0)
    return CUDA_ERROR_INVALID_VALUE;
  struct memory *memory = handle_new(&memories);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->size = size;
  memory->gpu = gpu;
  memory->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  memory->references = 1;
  memory->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory->prop.requestedHandleTypes = type;
  memory->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory->prop.location.id = device_of_gpu(gpu);
  *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  return CUDA_SUCCESS;
}
