/* SPDX-License-Identifier: Apache-2.0 */
/* Linear device memory, all ABI versions: each wrapper only computes its size. The driver writes into locals, so the
 * program's variables change only on success.
 * Beyond the physical share of a container that has one, memory is managed instead (managed.h). The oldest ABI cannot:
 * its addresses have 32 bits.
 * Charges nothing itself. Tests: tests/integration/test_native_quota.py, test_native_oversub.py. */
#include "charge.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "ledger.h"
#include "managed.h"
#include "pool.h"
#include "runtime_state.h"

static CUresult free_v1(CUdeviceptr address) { return real_cuda.cuMemFree((CUdeviceptr_v1)address); }

static CUresult free_any(CUdeviceptr address) {
  if (real_cuda.cuMemFree_v2 != NULL) return real_cuda.cuMemFree_v2(address);
  return real_cuda.cuMemFree != NULL ? free_v1(address) : CUDA_ERROR_NOT_FOUND;
}

/* The GPU may be full although the physical share is not. */
static __attribute__((noinline, cold)) CUresult take_instead(struct charge *charge, CUdeviceptr *block, size_t bytes) {
  uint32_t column = charge->column;
  charge_cancel(charge);
  CUresult result = charge_begin_placed(charge, bytes, CHARGE_MANAGED);
  if (result == CUDA_SUCCESS)
    result = charge_is_managed(charge) ? managed_allocate(block, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) charge_driver_refused(column, bytes);
  return result;
}

/* The ledger has room beyond the physical share and the machine has none: what this process holds in reserve on the GPU
 * is given back before the refusal. */
static __attribute__((noinline, cold)) CUresult take_after_all(struct charge *charge, CUdeviceptr *block,
                                                               size_t bytes) {
  charge_cancel(charge);
  CUresult result = charge_begin(charge, bytes);
  return result == CUDA_SUCCESS ? real_cuda.cuMemAlloc_v2(block, bytes) : result;
}

static CUresult take_managed(struct charge *charge, CUdeviceptr *block, size_t bytes) {
  CUresult result = managed_allocate(block, bytes);
  return VC_LIKELY(result != CUDA_ERROR_OUT_OF_MEMORY) ? result : take_after_all(charge, block, bytes);
}

static CUresult take(struct charge *charge, CUdeviceptr *block, size_t bytes) {
  if (charge_is_managed(charge)) return take_managed(charge, block, bytes);
  CUresult result = real_cuda.cuMemAlloc_v2(block, bytes);
  if (VC_LIKELY(result != CUDA_ERROR_OUT_OF_MEMORY) || !charge_may_be_managed(charge)) return result;
  return take_instead(charge, block, bytes);
}

/* Out of line: what is below is the hot path of containers without host memory. */
static __attribute__((noinline)) CUresult allocate_split(CUdeviceptr *dptr, size_t bytes) {
  struct charge charge;
  CUdeviceptr block = 0;
  CUresult result = charge_begin_placed(&charge, bytes, CHARGE_EITHER);
  if (result != CUDA_SUCCESS) return result;
  result = take(&charge, &block, bytes);
  result = charge_end(&charge, ALLOCATION_LINEAR, result, block, free_any);
  if (result == CUDA_SUCCESS) *dptr = block;
  return result;
}

VC_HOT CUresult vc_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes) {
  struct charge charge;
  CUdeviceptr block = 0;
  if (dptr == NULL || bytes == 0) return real_cuda.cuMemAlloc_v2(dptr, bytes);
  if (!VC_LIKELY(!ledger_is_split(runtime_ledger))) return allocate_split(dptr, bytes);
  CUresult result = charge_begin(&charge, bytes);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemAlloc_v2(&block, bytes);
  result = charge_end(&charge, ALLOCATION_LINEAR, result, block, free_any);
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
  result = charge_end(&charge, ALLOCATION_LINEAR, result, block, free_any);
  if (result == CUDA_SUCCESS) *dptr = block;
  return result;
}

CUresult vc_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags) {
  struct charge charge;
  CUdeviceptr block = 0;
  if (dptr == NULL || bytes == 0) return real_cuda.cuMemAllocManaged(dptr, bytes, flags);
  CUresult result = charge_begin_placed(&charge, bytes, CHARGE_MANAGED_FIRST);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemAllocManaged(&block, bytes, flags);
  result = charge_end(&charge, ALLOCATION_LINEAR, result, block, free_any);
  if (result == CUDA_SUCCESS) *dptr = block;
  return result;
}

/* More than any limit when the product does not fit into 64 bits. */
static uint64_t area(uint64_t width, uint64_t height) {
  uint64_t product;
  return __builtin_mul_overflow(width, height, &product) ? UINT64_MAX : product;
}

/* The driver chooses the pitch, which is known only afterwards: reserve without padding, then raise. */
static CUresult finish_pitch(struct charge *charge, CUresult result, CUdeviceptr block, uint64_t bytes) {
  if (result == CUDA_SUCCESS && (result = charge_raise(charge, bytes)) != CUDA_SUCCESS) {
    free_any(block);
    charge_cancel(charge);
    return result;
  }
  return charge_end(charge, ALLOCATION_LINEAR, result, block, free_any);
}

/* Managed memory has no pitched call, so the pitch is chosen here. */
static CUresult pitch_managed(struct charge *charge, CUdeviceptr *block, size_t *chosen, size_t width, size_t height) {
  *chosen = managed_pitch(width);
  uint64_t bytes = *chosen == 0 ? UINT64_MAX : area(*chosen, height);
  CUresult result = charge_raise(charge, bytes);
  if (result == CUDA_SUCCESS) result = managed_allocate(block, bytes);
  return charge_end(charge, ALLOCATION_LINEAR, result, *block, free_any);
}

static CUresult pitch_real(struct charge *charge, CUdeviceptr *block, size_t *chosen, size_t width, size_t height,
                           unsigned int element) {
  uint32_t column = charge->column;
  int may = charge_may_be_managed(charge);
  CUresult result = real_cuda.cuMemAllocPitch_v2(block, chosen, width, height, element);
  int by_driver = may && result == CUDA_ERROR_OUT_OF_MEMORY; /* and perhaps not the last word */
  if (by_driver)
    charge_cancel(charge);
  else
    result = finish_pitch(charge, result, *block, area(*chosen, height));
  if (VC_LIKELY(result != CUDA_ERROR_OUT_OF_MEMORY) || !may) return result;
  *block = 0;
  if (charge_begin_placed(charge, area(width, height), CHARGE_MANAGED) == CUDA_SUCCESS)
    result = pitch_managed(charge, block, chosen, width, height);
  if (by_driver && result == CUDA_ERROR_OUT_OF_MEMORY) charge_driver_refused(column, area(width, height));
  return result;
}

/* Managed, or after all on the GPU (take_after_all). */
static CUresult pitch_split(struct charge *charge, CUdeviceptr *block, size_t *chosen, size_t width, size_t height,
                            unsigned int element) {
  CUresult result = pitch_managed(charge, block, chosen, width, height);
  if (VC_LIKELY(result != CUDA_ERROR_OUT_OF_MEMORY)) return result;
  *block = 0;
  result = charge_begin(charge, area(width, height));
  return result == CUDA_SUCCESS ? pitch_real(charge, block, chosen, width, height, element) : result;
}

static int is_element(unsigned int bytes) { return bytes == 4 || bytes == 8 || bytes == 16; }

CUresult vc_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element) {
  struct charge charge;
  CUdeviceptr block = 0;
  size_t chosen = 0;
  if (dptr == NULL || pitch == NULL || width == 0 || height == 0 || !is_element(element))
    return real_cuda.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
  CUresult result = charge_begin_placed(&charge, area(width, height), CHARGE_EITHER);
  if (result != CUDA_SUCCESS) return result;
  result = charge_is_managed(&charge) ? pitch_split(&charge, &block, &chosen, width, height, element)
                                      : pitch_real(&charge, &block, &chosen, width, height, element);
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
  if (!charge_take(ALLOCATION_LINEAR, address, &entry)) return pool_free(address, call);
  CUresult result = call(address);
  if (VC_LIKELY(result == CUDA_SUCCESS))
    charge_return(entry.column, entry.bytes);
  else
    charge_put_back(ALLOCATION_LINEAR, &entry);
  return result;
}

VC_HOT CUresult vc_cuMemFree_v2(CUdeviceptr dptr) { return release(dptr, real_cuda.cuMemFree_v2); }

CUresult vc_cuMemFree(CUdeviceptr_v1 dptr) { return release(dptr, free_v1); }
