/* SPDX-License-Identifier: Apache-2.0 */
/* What a program may ask about an address: converted memory (managed.h) answers like the GPU's own.
 * Charges nothing itself. Tests: tests/integration/test_native_oversub.py. */
#include <stdatomic.h>

#include "charge.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "log.h"
#include "managed.h"
#include "pool_blocks.h"

/* --- converted memory -------------------------------------------------------------------------------------------- */

/* A thread without a context, of a communication library for example, may ask for attributes and not for the range. */
static int base_of(CUdeviceptr address, CUdeviceptr *base) {
  size_t size;
  if (real_cuda.cuMemGetAddressRange_v2 != NULL &&
      real_cuda.cuMemGetAddressRange_v2(base, &size, address) == CUDA_SUCCESS)
    return 1;
  return real_cuda.cuPointerGetAttribute != NULL &&
         real_cuda.cuPointerGetAttribute(base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) == CUDA_SUCCESS;
}

/* Whether ADDRESS lies in memory that the program takes for the GPU's own and that is managed. */
static int is_converted(CUdeviceptr address) {
  CUdeviceptr base = 0;
  if (VC_LIKELY(!managed_is_there())) return 0;
  return base_of(address, &base) && (charge_is_converted(base) || pool_is_converted(base));
}

/* --- attributes -------------------------------------------------------------------------------------------------- */

static int is_flag(CUpointer_attribute attribute) { return attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED; }

CUresult vc_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (data == NULL || !is_converted(ptr)) return real_cuda.cuPointerGetAttribute(data, attribute, ptr);
  if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = real_cuda.cuPointerGetAttribute(data, attribute, ptr);
  if (result != CUDA_SUCCESS) return result;
  if (is_flag(attribute)) *(unsigned char *)data = 0;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *(unsigned int *)data = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

CUresult vc_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr) {
  CUresult result = real_cuda.cuPointerGetAttributes(count, attributes, data, ptr);
  if (result != CUDA_SUCCESS || !is_converted(ptr)) return result;
  for (unsigned int i = 0; i < count; i++) {
    if (is_flag(attributes[i])) *(unsigned char *)data[i] = 0;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *(unsigned int *)data[i] = CU_MEMORYTYPE_DEVICE;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) *(void **)data[i] = NULL;
  }
  return CUDA_SUCCESS;
}

/* --- what only the GPU's own memory can do ---------------------------------------------------------------------- */

static CUresult refuse(_Atomic int *said, CUresult code, const char *what) {
  if (!atomic_exchange_explicit(said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "memory beyond the physical share cannot be shared %s; take what is to be shared first, or ask "
                        "for a larger physical share", what);
  return code;
}

/* The code that the driver has for managed memory, which programs know and answer by copying. */
CUresult vc_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr) {
  static _Atomic int said;
  if (is_converted(ptr)) return refuse(&said, CUDA_ERROR_INVALID_VALUE, "with other processes");
  return real_cuda.cuIpcGetMemHandle(handle, ptr);
}

CUresult vc_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                                          unsigned long long flags) {
  static _Atomic int said;
  if (is_converted(ptr)) return refuse(&said, CUDA_ERROR_NOT_SUPPORTED, "with other devices");
  return real_cuda.cuMemGetHandleForAddressRange(handle, ptr, size, type, flags);
}

/* --- what only managed memory can do ----------------------------------------------------------------------------- */

CUresult vc_cuMemAdvise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUdevice dev) {
  return is_converted(ptr) ? CUDA_ERROR_INVALID_VALUE : real_cuda.cuMemAdvise(ptr, bytes, advice, dev);
}

CUresult vc_cuMemAdvise_v2(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return is_converted(ptr) ? CUDA_ERROR_INVALID_VALUE : real_cuda.cuMemAdvise_v2(ptr, bytes, advice, location);
}

CUresult vc_cuMemPrefetchAsync(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream) {
  return is_converted(ptr) ? CUDA_ERROR_INVALID_VALUE : real_cuda.cuMemPrefetchAsync(ptr, bytes, dev, stream);
}

CUresult vc_cuMemPrefetchAsync_ptsz(CUdeviceptr ptr, size_t bytes, CUdevice dev, CUstream stream) {
  if (is_converted(ptr)) return CUDA_ERROR_INVALID_VALUE;
  return real_cuda.cuMemPrefetchAsync_ptsz(ptr, bytes, dev, stream);
}

CUresult vc_cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t bytes, CUmemLocation location, unsigned int flags,
                                  CUstream stream) {
  if (is_converted(ptr)) return CUDA_ERROR_INVALID_VALUE;
  return real_cuda.cuMemPrefetchAsync_v2(ptr, bytes, location, flags, stream);
}

CUresult vc_cuMemPrefetchAsync_v2_ptsz(CUdeviceptr ptr, size_t bytes, CUmemLocation location, unsigned int flags,
                                       CUstream stream) {
  if (is_converted(ptr)) return CUDA_ERROR_INVALID_VALUE;
  return real_cuda.cuMemPrefetchAsync_v2_ptsz(ptr, bytes, location, flags, stream);
}

CUresult vc_cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr ptr,
                                   size_t bytes) {
  if (is_converted(ptr)) return CUDA_ERROR_INVALID_VALUE;
  return real_cuda.cuMemRangeGetAttribute(data, size, attribute, ptr, bytes);
}

CUresult vc_cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes, size_t count,
                                    CUdeviceptr ptr, size_t bytes) {
  if (is_converted(ptr)) return CUDA_ERROR_INVALID_VALUE;
  return real_cuda.cuMemRangeGetAttributes(data, sizes, attributes, count, ptr, bytes);
}

CUresult vc_cuStreamAttachMemAsync(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned int flags) {
  if (is_converted(ptr)) return CUDA_ERROR_INVALID_VALUE;
  return real_cuda.cuStreamAttachMemAsync(stream, ptr, bytes, flags);
}

CUresult vc_cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned int flags) {
  if (is_converted(ptr)) return CUDA_ERROR_INVALID_VALUE;
  return real_cuda.cuStreamAttachMemAsync_ptsz(stream, ptr, bytes, flags);
}
