/* Advice for managed memory, checked and forgotten, and prefetches, which move pages.
 * Must not depend on how memory is laid out. Tests: tests/integration/test_native_oversub.py. */
#include "fake_work.h"

enum { PREFETCH = 3 }; /* pages that are fetched at once come so much faster than those that kernels wait for */

static CUresult managed(CUdeviceptr address, size_t bytes) {
  CUdeviceptr base;
  const struct block *block = arena_find(address, &base);
  if (!block || block->kind != BLOCK_MANAGED || !bytes || bytes > block->size - (address - base))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static CUresult check_device(int device) {
  return device == CU_DEVICE_CPU || device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
static CUresult check_location(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? check_device(location.id) : CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  ENTER(cuMemAdvise);
  (void)advice;
  TRY(managed(address, bytes));
  return check_device(device);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  ENTER(cuMemAdvise_v2);
  (void)advice;
  TRY(managed(address, bytes));
  return check_location(location);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, int device, CUstream stream) {
  CUstream own;
  TRY(stream_check(stream, &own));
  TRY(managed(address, bytes));
  TRY(check_device(device));
  if (device == CU_DEVICE_CPU) return CUDA_SUCCESS;
  CUcontext context;
  TRY(stream_context(stream, &context));
  uint64_t moved = state_fetch_managed(device_gpu[device], bytes) >> 20, each = fake_state->machine.paging_ns;
  if (moved && each) work_launch(context, stream, moved * each / PREFETCH);
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuMemPrefetchAsync, (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream), prefetch,
           (address, bytes, device, stream))

static CUresult prefetch_to(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                            CUstream stream) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  TRY(check_location(location));
  return prefetch(address, bytes, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU, stream);
}
ENTRY_PTSZ(cuMemPrefetchAsync_v2,
           (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream), prefetch_to,
           (address, bytes, location, flags, stream))

static CUresult attach(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  CUstream own;
  TRY(stream_check(stream, &own));
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  return managed(address, bytes ? bytes : 1);
}
ENTRY_PTSZ(cuStreamAttachMemAsync, (CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags), attach,
           (stream, address, bytes, flags))

static CUresult range_attribute(void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address,
                                size_t bytes) {
  if (!data || size % 4 || !size) return CUDA_ERROR_INVALID_VALUE;
  TRY(managed(address, bytes));
  int none = attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : CU_DEVICE_INVALID;
  for (size_t i = 0; i < size / 4; i++) ((int *)data)[i] = none;
  return CUDA_SUCCESS;
}
ENTRY(cuMemRangeGetAttribute,
      (void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address, size_t bytes), range_attribute,
      (data, size, attribute, address, bytes))

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes, size_t count,
                                 CUdeviceptr address, size_t bytes) {
  ENTER(cuMemRangeGetAttributes);
  if (!data || !sizes || !attributes || !count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) TRY(range_attribute(data[i], sizes[i], attributes[i], address, bytes));
  return CUDA_SUCCESS;
}
