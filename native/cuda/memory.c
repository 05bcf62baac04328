/* Linear device memory, all ABI versions: each wrapper only computes its size. The driver writes into locals, so the
 * program's variables change only on success.
 * Knows no accounting. Tests: tests/integration/test_native_quota.py. */
#include "cuda_bodies.h"
#include "charge.h"
#include "driver.h"
#include "pool.h"

static CUresult free_v1(CUdeviceptr address) { return real_cuda.cuMemFree((CUdeviceptr_v1)address); }

static CUresult free_any(CUdeviceptr address) {
  if (real_cuda.cuMemFree_v2 != NULL) return real_cuda.cuMemFree_v2(address);
  return real_cuda.cuMemFree != NULL ? free_v1(address) : CUDA_ERROR_NOT_FOUND;
}

CUresult vc_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes) {
  struct charge charge;
  CUdeviceptr block = 0;
  if (dptr == NULL || bytes == 0) return real_cuda.cuMemAlloc_v2(dptr, bytes);
  CUresult result = charge_begin(&charge, bytes);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemAlloc_v2(&block, bytes);
  result = charge_end(&charge, BOOK_LINEAR, result, block, free_any);
  if (result == CUDA_SUCCESS) *dptr = block;
  return result;
}

CUresult vc_cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytes) {
  struct charge charge;
  CUdeviceptr_v1 block = 0;
  if (dptr == NULL || bytes == 0) return real_cuda.cuMemAlloc(dptr, bytes);
  CUresult result = charge_begin(&charge, bytes);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemAlloc(&block, bytes);
  result = charge_end(&charge, BOOK_LINEAR, result, block, free_any);
  if (result == CUDA_SUCCESS) *dptr = block;
  return result;
}

CUresult vc_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags) {
  struct charge charge;
  CUdeviceptr block = 0;
  if (dptr == NULL || bytes == 0) return real_cuda.cuMemAllocManaged(dptr, bytes, flags);
  CUresult result = charge_begin(&charge, bytes);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemAllocManaged(&block, bytes, flags);
  result = charge_end(&charge, BOOK_LINEAR, result, block, free_any);
  if (result == CUDA_SUCCESS) *dptr = block;
  return result;
}

/* More than any limit when the product does not fit into 64 bits. */
static uint64_t area(uint64_t width, uint64_t height) {
  uint64_t product;
  return __builtin_mul_overflow(width, height, &product) ? UINT64_MAX : product;
}

/* The pitch is the driver's to choose and known only afterwards: reserve without padding, then correct. */
static CUresult finish_pitch(struct charge *charge, CUresult result, CUdeviceptr block, uint64_t bytes) {
  if (result == CUDA_SUCCESS) {
    result = charge_correct(charge, bytes);
    if (result != CUDA_SUCCESS) free_any(block);
  }
  return charge_end(charge, BOOK_LINEAR, result, block, free_any);
}

CUresult vc_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element) {
  struct charge charge;
  CUdeviceptr block = 0;
  size_t chosen = 0;
  if (dptr == NULL || pitch == NULL || width == 0 || height == 0)
    return real_cuda.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
  CUresult result = charge_begin(&charge, area(width, height));
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemAllocPitch_v2(&block, &chosen, width, height, element);
  result = finish_pitch(&charge, result, block, area(chosen, height));
  if (result != CUDA_SUCCESS) return result;
  *dptr = block;
  *pitch = chosen;
  return CUDA_SUCCESS;
}

CUresult vc_cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width, unsigned int height,
                            unsigned int element) {
  struct charge charge;
  CUdeviceptr_v1 block = 0;
  unsigned int chosen = 0;
  if (dptr == NULL || pitch == NULL || width == 0 || height == 0)
    return real_cuda.cuMemAllocPitch(dptr, pitch, width, height, element);
  CUresult result = charge_begin(&charge, area(width, height));
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemAllocPitch(&block, &chosen, width, height, element);
  result = finish_pitch(&charge, result, block, area(chosen, height));
  if (result != CUDA_SUCCESS) return result;
  *dptr = block;
  *pitch = chosen;
  return CUDA_SUCCESS;
}

/* Blocks of pools may be freed like linear memory. */
static inline CUresult release(CUdeviceptr address, charge_call *call) {
  struct table_entry entry;
  if (!charge_take(BOOK_LINEAR, address, &entry)) return pool_free(address, call);
  CUresult result = call(address);
  if (VC_LIKELY(result == CUDA_SUCCESS))
    charge_return(entry.column, entry.bytes);
  else
    charge_put_back(BOOK_LINEAR, &entry);
  return result;
}

CUresult vc_cuMemFree_v2(CUdeviceptr dptr) { return release(dptr, real_cuda.cuMemFree_v2); }

CUresult vc_cuMemFree(CUdeviceptr_v1 dptr) { return release(dptr, free_v1); }
