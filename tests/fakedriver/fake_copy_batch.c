/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in batches, and single ones with attributes: what CUDA 12.8 to 13.5 brought. What the attributes say of order
 * and places is checked and changes nothing.
 * Must not depend on how bytes are found. Tests: tests/unit/fakedriver/test_copies.py. */
#include "fake_array.h"
#include "fake_copy.h"
#include "fake_work.h"

static CUresult check_attributes(const CUmemcpyAttributes *attributes) {
  NONNULL(attributes);
  return attributes->srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
                 attributes->srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_line(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_on(LINE_OF(bytes, UNIFIED(src, from), UNIFIED(dst, to)), stream);
}

static CUresult copy_with_attributes(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
                                     CUstream stream) {
  TRY(check_attributes(attributes));
  return copy_line(to, from, bytes, stream);
}
ENTRY_PTSZ(cuMemcpyWithAttributesAsync,
           (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes, CUstream stream),
           copy_with_attributes, (to, from, bytes, attributes, stream))

/* --- batches of lines ------------------------------------------------------------------------------------------- */

struct groups {
  CUmemcpyAttributes *attributes;
  size_t *first, number; /* the copy with which each one's begin */
};

static CUresult check_groups(const struct groups *groups, size_t count) {
  if (!groups->attributes || !groups->first || !groups->number || groups->number > count || groups->first[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < groups->number; i++) {
    if (groups->first[i] >= count || (i && groups->first[i] <= groups->first[i - 1])) return CUDA_ERROR_INVALID_VALUE;
    TRY(check_attributes(&groups->attributes[i]));
  }
  return CUDA_SUCCESS;
}

/* FAILED: which copy it was; SIZE_MAX: none of them. */
static CUresult batch(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, struct groups groups,
                      size_t *failed, CUstream stream) {
  if (failed) *failed = SIZE_MAX;
  if (!to || !from || !sizes || !count || !stream) return CUDA_ERROR_INVALID_VALUE;
  TRY(check_groups(&groups, count));
  for (size_t i = 0; i < count; i++) {
    CUresult result = copy_line(to[i], from[i], sizes[i], stream);
    if (result == CUDA_SUCCESS) continue;
    if (failed) *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuMemcpyBatchAsync,
           (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
            size_t *first, size_t number, size_t *failed, CUstream stream),
           batch, (to, from, sizes, count, (struct groups){attributes, first, number}, failed, stream))
ENTRY_PTSZ(cuMemcpyBatchAsync_v2,
           (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
            size_t *first, size_t number, CUstream stream),
           batch, (to, from, sizes, count, (struct groups){attributes, first, number}, NULL, stream))

/* --- boxes ------------------------------------------------------------------------------------------------------ */

/* Bytes of an operand's element; 0: it is a pointer, whose elements are those of the other end. */
static CUresult element_of(const CUmemcpy3DOperand *operand, unsigned *bytes) {
  *bytes = 0;
  if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_SUCCESS;
  if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  const struct CUarray_st *array = array_check(operand->op.array.array);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  *bytes = array->element;
  return array->element ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#define OPERAND(end, operand, element) \
  do { \
    if ((operand)->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) { \
      box->end##MemoryType = CU_MEMORYTYPE_ARRAY; \
      box->end##Array = (operand)->op.array.array; \
      box->end##XInBytes = (operand)->op.array.offset.x * (element); \
      box->end##Y = (operand)->op.array.offset.y; \
      box->end##Z = (operand)->op.array.offset.z; \
    } else { \
      box->end##MemoryType = CU_MEMORYTYPE_UNIFIED; \
      box->end##Device = (operand)->op.ptr.ptr; \
      box->end##Pitch = (operand)->op.ptr.rowLength * (element); \
      box->end##Height = (operand)->op.ptr.layerHeight; \
    } \
  } while (0)

static CUresult box_of(const CUDA_MEMCPY3D_BATCH_OP *op, CUDA_MEMCPY3D *box) {
  unsigned from, to;
  TRY(element_of(&op->src, &from));
  TRY(element_of(&op->dst, &to));
  if (from && to && from != to) return CUDA_ERROR_INVALID_VALUE;
  unsigned element = from ? from : to ? to : 1;
  if (!op->extent.width || !op->extent.height || !op->extent.depth) return CUDA_ERROR_INVALID_VALUE;
  *box = (CUDA_MEMCPY3D){
      .WidthInBytes = op->extent.width * element, .Height = op->extent.height, .Depth = op->extent.depth};
  OPERAND(src, &op->src, element);
  OPERAND(dst, &op->dst, element);
  return check_attributes(&(CUmemcpyAttributes){.srcAccessOrder = op->srcAccessOrder});
}

static CUresult copy_operands(const CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream) {
  CUDA_MEMCPY3D box;
  if (!op || flags) return CUDA_ERROR_INVALID_VALUE;
  TRY(box_of(op, &box));
  return copy_on(&box, stream);
}
ENTRY_PTSZ(cuMemcpy3DWithAttributesAsync,
           (CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream), copy_operands, (op, flags, stream))

static CUresult batch_3d(size_t count, const CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
                         CUstream stream) {
  if (failed) *failed = SIZE_MAX;
  if (!count || !list || flags || !stream) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    CUresult result = copy_operands(&list[i], 0, stream);
    if (result == CUDA_SUCCESS) continue;
    if (failed) *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuMemcpy3DBatchAsync,
           (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags, CUstream stream),
           batch_3d, (count, list, failed, flags, stream))
ENTRY_PTSZ(cuMemcpy3DBatchAsync_v2,
           (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream), batch_3d,
           (count, list, NULL, flags, stream))

/* --- over a fabric ---------------------------------------------------------------------------------------------- */

/* Between pointers only: a logical endpoint has no bytes here. */
static CUresult fabric(size_t count, const CUDA_FABRIC_COPY_BATCH_OP *list, unsigned long long flags, CUstream stream) {
  if (!count || !list || flags || !stream) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    if (list[i].flags) return CUDA_ERROR_INVALID_VALUE;
    if (list[i].src.type != CU_FABRIC_COPY_OPERAND_TYPE_POINTER ||
        list[i].dst.type != CU_FABRIC_COPY_OPERAND_TYPE_POINTER)
      return CUDA_ERROR_NOT_SUPPORTED;
    TRY(copy_line(list[i].dst.op.ptr.ptr, list[i].src.op.ptr.ptr, list[i].size, stream));
  }
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuFabricCpyBatchAsync,
           (size_t count, CUDA_FABRIC_COPY_BATCH_OP *list, unsigned long long flags, CUstream stream), fabric,
           (count, list, flags, stream))

/* --- decompression ---------------------------------------------------------------------------------------------- */

/* The simulated GPUs have no engine for it, as all before Blackwell: CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK
 * is 0. */
static CUresult decompress(const CUmemDecompressParams *list, size_t count, unsigned flags, size_t *failed,
                           CUstream stream) {
  CUcontext context;
  TRY(stream_context(stream, &context));
  if (!list || !count || flags) return CUDA_ERROR_INVALID_VALUE;
  if (failed) *failed = SIZE_MAX;
  return CUDA_ERROR_NOT_SUPPORTED;
}
ENTRY_PTSZ(cuMemBatchDecompressAsync,
           (CUmemDecompressParams *list, size_t count, unsigned flags, size_t *failed, CUstream stream), decompress,
           (list, count, flags, failed, stream))
