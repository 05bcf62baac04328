/* SPDX-License-Identifier: Apache-2.0 */
/* Pools and their blocks in other processes. The handle of a pool is a file descriptor, that of a block 64 bytes.
 * Must not depend on how bytes are shared (fake_ipc.c). Tests: tests/unit/fakedriver/test_pools.py. */
#include "fake_pool.h"

#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct token { /* content of the file */
  uint64_t magic;
  unsigned gpu;
};
#define MAGIC 0x6c6f6f70656b6166ull

CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  ENTER(cuMemPoolExportToShareableHandle);
  if (!out || flags || !pool_valid(pool) || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (!(pool->handle_types & type)) return CUDA_ERROR_INVALID_VALUE;
  struct token token = {.magic = MAGIC, .gpu = pool->gpu};
  int fd = (int)syscall(SYS_memfd_create, "fakedriver-pool", MFD_CLOEXEC);
  if (fd < 0 || pwrite(fd, &token, sizeof token, 0) != sizeof token) return CUDA_ERROR_OPERATING_SYSTEM;
  *(int *)out = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  ENTER(cuMemPoolImportFromShareableHandle);
  struct token token = {0};
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (pread((int)(uintptr_t)handle, &token, sizeof token, 0) != sizeof token || token.magic != MAGIC)
    return CUDA_ERROR_INVALID_VALUE;
  CUmemoryPool pool = pool_make(token.gpu, POOL_DEVICE);
  if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
  pool->imported = 1;
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address) {
  ENTER(cuMemPoolExportPointer);
  NONNULL(out);
  return ipc_export(out, sizeof *out, address, BLOCK_POOL);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
  ENTER(cuMemPoolImportPointer);
  if (!out || !data || !pool_valid(pool) || !pool->imported) return CUDA_ERROR_INVALID_VALUE;
  return ipc_import(out, data);
}
