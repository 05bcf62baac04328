/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and events of other processes by handle.
 * Must not depend on VMM. Tests: tests/unit/fakedriver/test_sharing.py.
 *
 * A shared block's bytes move to a file beside the state file; the handle names it. The file goes with the process that
 * opened it first, as the block does. */
#include "fake_cuda.h"
#include "fake_env.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct token { /* the 64 bytes of a handle */
  uint64_t magic;
  uint64_t size;
  uint64_t serial;
  int32_t owner;
  uint32_t gpu;
};
_Static_assert(sizeof(struct token) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");
#define MAGIC 0x6370696b63616b65ull

static int open_shared(const struct token *token, int flags) {
  char path[4200];
  const char *state = fake_env_state();
  if (!state) return -1;
  snprintf(path, sizeof path, "%s.ipc.%d.%llu", state, token->owner, (unsigned long long)token->serial);
  return open(path, flags | O_RDWR | O_CLOEXEC, 0666);
}

/* Moves the bytes of a block into a file that others can map. */
static CUresult share(CUdeviceptr base, struct block *block, const struct token *token) {
  size_t size = (block->size + 4095) & ~4095ull;
  int fd = open_shared(token, O_CREAT);
  if (fd < 0) return CUDA_ERROR_NOT_SUPPORTED;
  int failed = ftruncate(fd, (off_t)size);
  if (!failed && block->flags & BLOCK_TOUCHED && !(block->flags & BLOCK_SHARED))
    failed = pwrite(fd, (void *)(uintptr_t)base, block->size, 0) != (ssize_t)block->size;
  if (!failed && !(block->flags & BLOCK_SHARED))
    failed = mmap((void *)(uintptr_t)base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED;
  close(fd);
  if (failed) return CUDA_ERROR_OPERATING_SYSTEM;
  block->flags |= BLOCK_SHARED;
  return CUDA_SUCCESS;
}

CUresult ipc_export(void *out, size_t size, CUdeviceptr address, enum block_kind kind) {
  CUdeviceptr base;
  struct block *block = arena_find(address, &base);
  if (!block || block->kind != kind) return CUDA_ERROR_INVALID_VALUE;
  if (block->size < 4096) return CUDA_ERROR_NOT_SUPPORTED; /* shares its page with other blocks */
  struct token token = {
      .magic = MAGIC, .size = block->size, .serial = base, .owner = state_own_slot()->pid_inside, .gpu = block->gpu};
  TRY(share(base, block, &token));
  memset(out, 0, size);
  memcpy(out, &token, sizeof token);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
  ENTER(cuIpcGetMemHandle);
  NONNULL(out);
  return ipc_export(out, sizeof *out, address, BLOCK_DEVICE);
}

CUresult ipc_import(CUdeviceptr *out, const void *handle) {
  struct token token;
  CUcontext context;
  TRY(context_current(&context));
  memcpy(&token, handle, sizeof token);
  if (token.magic != MAGIC) return CUDA_ERROR_INVALID_VALUE;
  if (token.owner == state_own_slot()->pid_inside)
    return CUDA_ERROR_INVALID_CONTEXT; /* not in the process it is from */
  int fd = open_shared(&token, 0);
  if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
  size_t size = (token.size + 4095) & ~4095ull;
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  struct range range = {.base = (uintptr_t)memory,
                        .size = token.size,
                        .kind = RANGE_IPC,
                        .gpu = token.gpu,
                        .context = context_index(context)};
  if (range_add(&range)) {
    munmap(memory, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = range.base;
  return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
  return !out || flags & ~1u ? CUDA_ERROR_INVALID_VALUE : ipc_import(out, &handle);
}
ENTRY(cuIpcOpenMemHandle, (CUdeviceptr *out, CUipcMemHandle handle, unsigned flags), open_handle, (out, handle, flags))
ENTRY(cuIpcOpenMemHandle_v2, (CUdeviceptr *out, CUipcMemHandle handle, unsigned flags), open_handle,
      (out, handle, flags))

CUresult ipc_close(CUdeviceptr address) {
  struct range range;
  if (range_remove(address, RANGE_IPC, &range)) return CUDA_ERROR_INVALID_VALUE;
  munmap((void *)(uintptr_t)address, (range.size + 4095) & ~4095ull);
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  ENTER(cuIpcCloseMemHandle);
  return ipc_close(address);
}

/* Removes the file of a block that is being freed. */
void ipc_forget(CUdeviceptr address) {
  char path[4200];
  const char *state = fake_env_state();
  if (state && state_own_slot()) {
    snprintf(path, sizeof path, "%s.ipc.%d.%llu", state, state_own_slot()->pid_inside, (unsigned long long)address);
    unlink(path);
  }
}
