/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: parts of a GPU's processors, each another handle of the primary context.
 * Must not depend on memory. Tests: tests/unit/fakedriver/test_contexts.py.
 *
 * Processors are only counted: a kernel takes as long in a part as on the whole. */
#include "fake_cuda.h"
#include "fake_handle.h"

struct CUgreenCtx_st {
  struct handle handle;
  CUcontext context;
};
struct CUdevResourceDesc_st {
  struct handle handle;
  uint64_t processors;
};
HANDLE_SIZE_CHECK(struct CUgreenCtx_st);
HANDLE_SIZE_CHECK(struct CUdevResourceDesc_st);
static struct handles green = HANDLES(struct CUgreenCtx_st, 1 << 12);
static struct handles descriptions = HANDLES(struct CUdevResourceDesc_st, 1 << 12);

enum { LEAST = 8 }; /* multiprocessors of a part are a multiple of this */

static CUresult all_of(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
  NONNULL(resource);
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  memset(resource, 0, sizeof *resource);
  resource->type = type;
  resource->sm.smCount = fake_state->machine.gpu[device_gpu[device]].multiprocessors;
  resource->sm.minSmPartitionSize = resource->sm.smCoscheduledAlignment = LEAST;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
  ENTER(cuDeviceGetDevResource);
  return device_valid(device) ? all_of(device, resource, type) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *resource, CUdevResourceType type) {
  ENTER(cuCtxGetDevResource);
  return context_valid(context) ? all_of(context->device, resource, type) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                                     CUdevResource *remaining, unsigned flags, unsigned least) {
  ENTER(cuDevSmResourceSplitByCount);
  (void)flags;
  if (!groups || !input) return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  unsigned size = (least + LEAST - 1) / LEAST * LEAST;
  if (size == 0) size = LEAST;
  unsigned possible = input->sm.smCount / size;
  if (possible == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (!result || *groups > possible) *groups = possible;
  for (unsigned i = 0; result && i < *groups; i++) {
    result[i] = *input;
    result[i].sm.smCount = size;
  }
  if (remaining) {
    *remaining = *input;
    remaining->sm.smCount -= *groups * size;
    if (remaining->sm.smCount == 0) remaining->type = CU_DEV_RESOURCE_TYPE_INVALID;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned count) {
  ENTER(cuDevResourceGenerateDesc);
  if (!out || !resources || !count) return CUDA_ERROR_INVALID_VALUE;
  uint64_t processors = 0;
  for (unsigned i = 0; i < count; i++) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    processors += resources[i].sm.smCount;
  }
  CUdevResourceDesc made = handle_new(&descriptions);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->processors = processors;
  *out = made;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device, unsigned flags) {
  ENTER(cuGreenCtxCreate);
  if (!out || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!handle_valid(&descriptions, description)) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = NULL;
  TRY(context_make_green(device, &context));
  CUgreenCtx made = handle_new(&green);
  if (!made) {
    context_end_green(context);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  made->context = context;
  *out = made;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  ENTER(cuGreenCtxDestroy);
  if (!handle_valid(&green, context)) return CUDA_ERROR_INVALID_CONTEXT;
  context_end_green(context->context);
  handle_delete(&green, context);
  return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx context) {
  ENTER(cuCtxFromGreenCtx);
  NONNULL(out);
  if (!handle_valid(&green, context) || !context_valid(context->context)) return CUDA_ERROR_INVALID_CONTEXT;
  *out = context->context;
  return CUDA_SUCCESS;
}
