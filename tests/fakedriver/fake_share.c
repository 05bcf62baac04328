/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory of several processes: exported and imported by descriptor, as handles and as external memory.
 * Must not depend on mappings. Tests: tests/unit/fakedriver/test_vmm_sharing.py.
 *
 * The first owner pays. When it lets go while others still refer to the memory, one of them pays from then on, as in
 * the kernel driver, where ownership passes to the next duplicate of a memory object. */
#include "fake_env.h"
#include "fake_vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t price(const struct memory *memory) {
  return memory->host || memory->multicast ? 0 : memory_rounded(memory->size);
}

/* PAYS: the caller has paid already. */
static CUresult join(struct memory *memory, int pays) {
  if (memory->share || price(memory) == 0) return CUDA_SUCCESS;
  void *page =
      mmap(NULL, sizeof(struct fake_share), PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, (off_t)memory->size);
  if (page == MAP_FAILED) return CUDA_ERROR_OPERATING_SYSTEM;
  if (state_share_join(page, memory->gpu, price(memory), pays, memory->level)) {
    munmap(page, sizeof(struct fake_share));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory->share = page;
  return CUDA_SUCCESS;
}

void share_leave(struct memory *memory) {
  state_share_leave(memory->share, memory->gpu, price(memory));
  munmap(memory->share, sizeof(struct fake_share));
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  ENTER(cuMemExportToShareableHandle);
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  vmm_lock();
  struct memory *memory = memory_check(handle);
  CUresult result =
      memory && memory->prop.requestedHandleTypes & (unsigned)type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  int fd = -1;
  if (result == CUDA_SUCCESS && memory_back(memory)) result = CUDA_ERROR_OPERATING_SYSTEM;
  if (result == CUDA_SUCCESS) result = join(memory, 1);
  if (result == CUDA_SUCCESS) fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
  vmm_unlock();
  if (result == CUDA_SUCCESS && fd < 0) result = CUDA_ERROR_OPERATING_SYSTEM;
  if (result == CUDA_SUCCESS) *(int *)out = fd;
  return result;
}

/* Under the lock. */
static CUresult fill_in(struct memory *memory, int fd, char kind, unsigned long long size) {
  memory->size = size;
  memory->multicast = kind == 'm';
  memory->host = kind == 'h';
  memory->devices = ~0u; /* of a multicast object: its exporter has seen to that */
  memory->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  memory->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  memory->prop.location.type = memory->host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  memory->prop.location.id = memory->host ? 0 : device_of_gpu(memory->gpu);
  return memory->fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : join(memory, 0);
}

CUresult share_import(int fd, struct memory **out) {
  char path[64], name[128], kind;
  unsigned gpu;
  unsigned long long size;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(path, name, sizeof name - 1);
  name[length > 0 ? length : 0] = '\0';
  if (sscanf(name, "/memfd:fakecuda:%c:%u:%llu", &kind, &gpu, &size) != 3 || device_of_gpu(gpu) < 0)
    return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  struct memory *memory = fake_env_import_is_same() ? memory_of_file(fd) : NULL;
  CUresult result = memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  if (memory) memory->references++;
  else if ((memory = memory_new())) {
    memory->gpu = gpu;
    result = fill_in(memory, fd, kind, size);
    if (result != CUDA_SUCCESS) {
      memory->references = 0;
      memory_settle(memory);
    }
  }
  vmm_unlock();
  if (result == CUDA_SUCCESS) *out = memory;
  return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                        CUmemAllocationHandleType type) {
  ENTER(cuMemImportFromShareableHandle);
  struct memory *memory;
  NONNULL(out);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  TRY(share_import((int)(intptr_t)os_handle, &memory));
  *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
  return CUDA_SUCCESS;
}

/* --- external memory: only what another process of this driver exported ------------------------------------------- */

CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
  ENTER(cuImportExternalMemory);
  struct memory *memory;
  if (!out || !desc || desc->size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  TRY(share_import(desc->handle.fd, &memory));
  close(desc->handle.fd); /* the descriptor belongs to the driver from now on */
  *out = (CUexternalMemory)memory;
  return CUDA_SUCCESS;
}

CUresult cuDestroyExternalMemory(CUexternalMemory external) {
  ENTER(cuDestroyExternalMemory);
  vmm_lock();
  struct memory *memory = memory_check((CUmemGenericAllocationHandle)(uintptr_t)external);
  int failed = !memory;
  if (!failed) {
    memory->references--;
    memory_settle(memory);
  }
  vmm_unlock();
  return failed ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

/* The program frees the buffer with cuMemFree. */
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory external,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
  ENTER(cuExternalMemoryGetMappedBuffer);
  if (!out || !desc || desc->flags || desc->offset % 4096) return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  struct memory *memory = memory_check((CUmemGenericAllocationHandle)(uintptr_t)external);
  CUresult result = memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  if (memory && (!desc->size || desc->offset > memory->size || desc->size > memory->size - desc->offset))
    result = CUDA_ERROR_INVALID_VALUE;
  void *bytes = MAP_FAILED;
  if (result == CUDA_SUCCESS)
    bytes = mmap(NULL, desc->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, (off_t)desc->offset);
  if (result == CUDA_SUCCESS && bytes == MAP_FAILED) result = CUDA_ERROR_OPERATING_SYSTEM;
  if (result == CUDA_SUCCESS) {
    struct range range = {
        .base = (uintptr_t)bytes, .size = desc->size, .kind = RANGE_EXTERNAL, .gpu = memory->gpu, .object = memory};
    range_add(&range);
    memory->mappings++;
    *out = range.base;
  }
  vmm_unlock();
  return result;
}

CUresult external_free(CUdeviceptr address) {
  struct range range;
  if (range_remove(address, RANGE_EXTERNAL, &range)) return CUDA_ERROR_INVALID_VALUE;
  munmap((void *)(uintptr_t)address, range.size);
  vmm_lock();
  struct memory *memory = range.object;
  memory->mappings--;
  memory_settle(memory);
  vmm_unlock();
  return CUDA_SUCCESS;
}
