/* SPDX-License-Identifier: Apache-2.0 */
/* What CUDA programs see of a GPU: the limit as its size, what is left of it as free.
 * Charges nothing itself. Tests: tests/integration/test_native_nvml.py. */
#include <limits.h>

#include "cuda_bodies.h"
#include "device.h"
#include "driver.h"

/* The oldest ABI has 32 bits for a size; the driver answers as much as fits. */
static unsigned int clamp(uint64_t bytes) { return bytes > UINT_MAX ? UINT_MAX : (unsigned int)bytes; }

static CUresult current_memory(uint64_t *avail, uint64_t *total) {
  CUdevice dev;
  CUresult result = real_cuda.cuCtxGetDevice(&dev);
  if (result == CUDA_SUCCESS) device_memory(device_column(dev), avail, total);
  return result;
}

/* With a NULL pointer the driver decides whether that is an error; it never gets to write its own numbers. */
VC_HOT CUresult vc_cuMemGetInfo_v2(size_t *avail, size_t *total) {
  uint64_t left, limit;
  size_t free_physical, physical;
  CUresult result = CUDA_SUCCESS;
  if (avail == NULL || total == NULL)
    result = real_cuda.cuMemGetInfo_v2(avail ? &free_physical : NULL, total ? &physical : NULL);
  if (result == CUDA_SUCCESS) result = current_memory(&left, &limit);
  if (result != CUDA_SUCCESS) return result;
  if (avail != NULL) *avail = left;
  if (total != NULL) *total = limit;
  return CUDA_SUCCESS;
}

CUresult vc_cuMemGetInfo(unsigned int *avail, unsigned int *total) {
  uint64_t left, limit;
  unsigned int free_physical, physical;
  CUresult result = CUDA_SUCCESS;
  if (avail == NULL || total == NULL)
    result = real_cuda.cuMemGetInfo(avail ? &free_physical : NULL, total ? &physical : NULL);
  if (result == CUDA_SUCCESS) result = current_memory(&left, &limit);
  if (result != CUDA_SUCCESS) return result;
  if (avail != NULL) *avail = clamp(left);
  if (total != NULL) *total = clamp(limit);
  return CUDA_SUCCESS;
}

CUresult vc_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  uint64_t left, limit;
  size_t physical;
  CUresult result = real_cuda.cuDeviceTotalMem_v2(bytes == NULL ? NULL : &physical, dev);
  if (result != CUDA_SUCCESS || bytes == NULL) return result;
  device_memory(device_column(dev), &left, &limit);
  *bytes = limit;
  return CUDA_SUCCESS;
}

CUresult vc_cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
  uint64_t left, limit;
  unsigned int physical;
  CUresult result = real_cuda.cuDeviceTotalMem(bytes == NULL ? NULL : &physical, dev);
  if (result != CUDA_SUCCESS || bytes == NULL) return result;
  device_memory(device_column(dev), &left, &limit);
  *bytes = clamp(limit);
  return CUDA_SUCCESS;
}
