/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory the GPU can reach, and what a pointer is.
 * Must not depend on how device memory is laid out. Tests: tests/unit/fakedriver/test_memory.py. */
#include "fake_cuda.h"

#include <sys/mman.h>

static CUresult allocate(void **out, size_t bytes, unsigned flags) {
  CUcontext context;
  TRY(context_current(&context));
  if (!out || !bytes || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > 1ull << 47) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t size = (bytes + 4095) & ~(size_t)4095;
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  struct range range = {.base = (uintptr_t)memory,
                        .size = bytes,
                        .kind = RANGE_HOST,
                        .gpu = context->gpu,
                        .context = context_index(context),
                        .flags = flags};
  if (range_add(&range)) {
    munmap(memory, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = memory;
  return CUDA_SUCCESS;
}
ENTRY(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags), allocate, (out, bytes, flags))
ENTRY(cuMemAllocHost_v2, (void **out, size_t bytes), allocate, (out, bytes, 0))
ENTRY(cuMemAllocHost, (void **out, unsigned bytes), allocate, (out, bytes, 0))

CUresult cuMemFreeHost(void *memory) {
  ENTER(cuMemFreeHost);
  struct range range;
  if (range_remove((uintptr_t)memory, RANGE_HOST, &range)) return CUDA_ERROR_INVALID_VALUE;
  munmap(memory, (range.size + 4095) & ~4095ull);
  return CUDA_SUCCESS;
}

static CUresult register_memory(void *memory, size_t bytes, unsigned flags) {
  CUcontext context;
  TRY(context_current(&context));
  if (!memory || !bytes || flags & ~15u) return CUDA_ERROR_INVALID_VALUE;
  struct range range = {.base = (uintptr_t)memory,
                        .size = bytes,
                        .kind = RANGE_REGISTERED,
                        .gpu = context->gpu,
                        .context = context_index(context),
                        .flags = flags};
  return range_add(&range) ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}
ENTRY(cuMemHostRegister, (void *memory, size_t bytes, unsigned flags), register_memory, (memory, bytes, flags))
ENTRY(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags), register_memory, (memory, bytes, flags))

CUresult cuMemHostUnregister(void *memory) {
  ENTER(cuMemHostUnregister);
  struct range range;
  return range_remove((uintptr_t)memory, RANGE_REGISTERED, &range) ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
                                                                   : CUDA_SUCCESS;
}

static int is_host(const struct range *range) { return range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED; }

static CUresult device_pointer(CUdeviceptr *out, void *memory, unsigned flags) {
  struct range range;
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  if (range_find((uintptr_t)memory, &range) || !is_host(&range)) return CUDA_ERROR_INVALID_VALUE;
  *out = (uintptr_t)memory; /* one address for both sides */
  return CUDA_SUCCESS;
}
ENTRY(cuMemHostGetDevicePointer_v2, (CUdeviceptr *out, void *memory, unsigned flags), device_pointer,
      (out, memory, flags))

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *out, void *memory, unsigned flags) {
  ENTER(cuMemHostGetDevicePointer);
  CUdeviceptr address;
  NONNULL(out);
  TRY(device_pointer(&address, memory, flags));
  if (address > UINT32_MAX) return CUDA_ERROR_INVALID_VALUE; /* not an address of this ABI */
  *out = (CUdeviceptr_v1)address;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *memory) {
  ENTER(cuMemHostGetFlags);
  struct range range;
  NONNULL(flags);
  if (range_find((uintptr_t)memory, &range) || range.kind != RANGE_HOST) return CUDA_ERROR_INVALID_VALUE;
  *flags = range.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

/* --- what is this pointer? -------------------------------------------------------------------------------------- */

struct known {
  CUmemorytype type;
  unsigned gpu;
  CUcontext context; /* NULL: of the device */
  CUdeviceptr base;
  size_t size;
  int managed;
};

static int know(CUdeviceptr address, struct known *out) {
  CUdeviceptr base;
  struct range range;
  struct block *block = arena_find(address, &base);
  if (block) {
    *out = (struct known){CU_MEMORYTYPE_DEVICE,
                          block->gpu,
                          block->kind == BLOCK_POOL ? NULL : context_at(block->owner),
                          base,
                          block->size,
                          block->kind == BLOCK_MANAGED};
    return 0;
  }
  if (range_find(address, &range)) return -1;
  *out = (struct known){is_host(&range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                        range.gpu,
                        range.kind == RANGE_MAPPED || range.kind == RANGE_RESERVED ? NULL : context_at(range.context),
                        range.base,
                        range.size,
                        0};
  return 0;
}

static CUresult attribute_of(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  struct known k;
  NONNULL(data);
  if (know(address, &k)) return CUDA_ERROR_INVALID_VALUE;
  switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (!k.context) return CUDA_ERROR_INVALID_VALUE;
      *(CUcontext *)data = k.context;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)data = k.type;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *(CUdeviceptr *)data = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (k.type != CU_MEMORYTYPE_HOST && !k.managed) return CUDA_ERROR_INVALID_VALUE;
      *(void **)data = (void *)(uintptr_t)address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *(unsigned *)data = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *(unsigned long long *)data = k.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *(unsigned char *)data = (unsigned char)k.managed;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *(int *)data = device_of_gpu(k.gpu);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *(CUdeviceptr *)data = k.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *(size_t *)data = k.size;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *(unsigned char *)data = 1;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
ENTRY(cuPointerGetAttribute, (void *data, CUpointer_attribute attribute, CUdeviceptr address), attribute_of,
      (data, attribute, address))

/* An unknown pointer is no error here: its answers are zero. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address) {
  ENTER(cuPointerGetAttributes);
  if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; i++) {
    static const struct {
      CUpointer_attribute attribute;
      size_t size;
    } sizes[] = {
        {CU_POINTER_ATTRIBUTE_CONTEXT, sizeof(CUcontext)},
        {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, sizeof(unsigned)},
        {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, sizeof(CUdeviceptr)},
        {CU_POINTER_ATTRIBUTE_HOST_POINTER, sizeof(void *)},
        {CU_POINTER_ATTRIBUTE_BUFFER_ID, sizeof(unsigned long long)},
        {CU_POINTER_ATTRIBUTE_IS_MANAGED, 1},
        {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, sizeof(CUdeviceptr)},
        {CU_POINTER_ATTRIBUTE_RANGE_SIZE, sizeof(size_t)},
        {CU_POINTER_ATTRIBUTE_MAPPED, 1},
    };
    CUresult result = attribute_of(data[i], attributes[i], address);
    if (result == CUDA_ERROR_NOT_SUPPORTED || !data[i]) return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) continue;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      *(int *)data[i] = -2; /* the driver's own word for "none" */
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      if (sizes[s].attribute == attributes[i]) memset(data[i], 0, sizes[s].size);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  ENTER(cuPointerSetAttribute);
  struct known k;
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || know(address, &k)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
