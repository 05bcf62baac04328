/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and mipmapped arrays in all ABI versions; format.c has their sizes. Levels and planes of an array are views:
 * they are in no table, so destroying one gives nothing back.
 * Charges nothing itself. Tests: tests/integration/test_native_array.py. */
#include "charge.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "format.h"
#include "sparse.h"

static CUresult free_array(CUdeviceptr key) {
  return real_cuda.cuArrayDestroy != NULL ? real_cuda.cuArrayDestroy((CUarray)(uintptr_t)key) : CUDA_ERROR_NOT_FOUND;
}

static CUresult free_mipmap(CUdeviceptr key) {
  if (real_cuda.cuMipmappedArrayDestroy == NULL) return CUDA_ERROR_NOT_FOUND;
  return real_cuda.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)key);
}

static CUresult destroy_array(CUdeviceptr key) { return sparse_destroy(key, free_array); }

static CUresult destroy_mipmap(CUdeviceptr key) { return sparse_destroy(key, free_mipmap); }

#define SHAPE_2D(d)                                                                                        \
  {                                                                                                        \
    .width = (d)->Width, .height = (d)->Height, .format = (unsigned int)(d)->Format, .channels = (d)->NumChannels \
  }
#define SHAPE_3D(d)                                                                                           \
  {                                                                                                           \
    .width = (d)->Width, .height = (d)->Height, .depth = (d)->Depth, .format = (unsigned int)(d)->Format,     \
    .channels = (d)->NumChannels, .flags = (d)->Flags                                                         \
  }

static CUresult made_without_memory(CUresult result, uint64_t array, unsigned int flags) {
  if (result == CUDA_SUCCESS) sparse_begin(array, flags);
  return result;
}

/* The four creators differ in their descriptor alone. */
#define CREATOR(symbol, descriptor, SHAPE)                                                        \
  CUresult vc_##symbol(CUarray *array, const descriptor *desc) {                                  \
    if (array == NULL || desc == NULL) return real_cuda.symbol(array, desc);                      \
    const struct array_shape shape = SHAPE(desc);                                                 \
    struct charge charge;                                                                         \
    CUarray made = NULL;                                                                          \
    uint64_t bytes = array_bytes(&shape);                                                         \
    CUresult result = bytes == 0 ? real_cuda.symbol(array, desc) : charge_begin(&charge, bytes);  \
    if (bytes == 0) return made_without_memory(result, (uintptr_t)*array, shape.flags);           \
    if (result != CUDA_SUCCESS) return result;                                                    \
    result = real_cuda.symbol(&made, desc);                                                       \
    result = charge_end(&charge, ALLOCATION_ARRAY, result, (uintptr_t)made, destroy_array);       \
    if (result == CUDA_SUCCESS) *array = made;                                                    \
    return result;                                                                                \
  }

CREATOR(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, SHAPE_2D)
CREATOR(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, SHAPE_2D)
CREATOR(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, SHAPE_3D)
CREATOR(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, SHAPE_3D)

CUresult vc_cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                                   unsigned int levels) {
  if (mipmap == NULL || desc == NULL) return real_cuda.cuMipmappedArrayCreate(mipmap, desc, levels);
  const struct array_shape shape = SHAPE_3D(desc);
  struct charge charge;
  CUmipmappedArray made = NULL;
  uint64_t bytes = mipmap_bytes(&shape, levels);
  CUresult result = bytes == 0 ? real_cuda.cuMipmappedArrayCreate(mipmap, desc, levels) : charge_begin(&charge, bytes);
  if (bytes == 0) return made_without_memory(result, (uintptr_t)*mipmap, shape.flags);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMipmappedArrayCreate(&made, desc, levels);
  result = charge_end(&charge, ALLOCATION_ARRAY, result, (uintptr_t)made, destroy_mipmap);
  if (result == CUDA_SUCCESS) *mipmap = made;
  return result;
}

CUresult vc_cuArrayDestroy(CUarray array) { return charge_free(ALLOCATION_ARRAY, (uintptr_t)array, destroy_array); }

CUresult vc_cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
  return charge_free(ALLOCATION_ARRAY, (uintptr_t)mipmap, destroy_mipmap);
}
