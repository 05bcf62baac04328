/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of contexts: limits, cache preferences, flags, peers.
 * Must not depend on how contexts begin and end. Tests: tests/unit/fakedriver/test_contexts.py. */
#include "fake_work.h"

static int limit_known(CUlimit limit) {
  return (unsigned)limit < CONTEXT_LIMITS && limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
}

/* A larger heap for the device's malloc is taken from the GPU at once, and it never shrinks. */
static CUresult resize_heap(CUcontext context, size_t bytes) {
  size_t *limit = &context->limit[CU_LIMIT_MALLOC_HEAP_SIZE];
  if (bytes > 1ull << 47) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t old = memory_rounded(*limit), new = memory_rounded(bytes);
  if (bytes <= *limit) return CUDA_SUCCESS;
  if (new > old) TRY(memory_charge_bill(context->gpu, new - old, &context->bill));
  context->charged += new - old;
  *limit = new;
  return CUDA_SUCCESS;
}

/* A green context has those of the primary one. */
static CUresult context_of_limits(CUcontext *context) {
  TRY(context_current(context));
  if ((*context)->green_of) *context = (*context)->green_of;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  ENTER(cuCtxSetLimit);
  CUcontext context;
  TRY(context_of_limits(&context));
  if (!limit_known(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) return resize_heap(context, value);
  context->limit[limit] = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  ENTER(cuCtxGetLimit);
  CUcontext context;
  NONNULL(value);
  TRY(context_of_limits(&context));
  if (!limit_known(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = context->limit[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
  ENTER(cuCtxGetCacheConfig);
  CUcontext context;
  NONNULL(config);
  TRY(context_current(&context));
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  ENTER(cuCtxSetCacheConfig);
  CUcontext context;
  TRY(context_current(&context));
  if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config) {
  ENTER(cuCtxGetSharedMemConfig);
  CUcontext context;
  NONNULL(config);
  TRY(context_current(&context));
  *config = context->shared_config;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  ENTER(cuCtxSetSharedMemConfig);
  CUcontext context;
  TRY(context_current(&context));
  if ((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) return CUDA_ERROR_INVALID_VALUE;
  context->shared_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned *flags) {
  ENTER(cuCtxGetFlags);
  CUcontext context;
  NONNULL(flags);
  TRY(context_current(&context));
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags) {
  ENTER(cuCtxSetFlags);
  CUcontext context;
  TRY(context_current(&context));
  if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void) {
  ENTER(cuCtxResetPersistingL2Cache);
  CUcontext context;
  return context_current(&context);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *param, CUexecAffinityType type) {
  ENTER(cuCtxGetExecAffinity);
  CUcontext context;
  NONNULL(param);
  TRY(context_current(&context));
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  param->type = type;
  param->param.smCount.val = fake_state->machine.gpu[context->gpu].multiprocessors;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device) {
  ENTER(cuDeviceGetExecAffinitySupport);
  NONNULL(supported);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  (void)type;
  *supported = 0; /* needs MPS */
  return CUDA_SUCCESS;
}

/* --- peers ------------------------------------------------------------------------------------------------------ */

static _Atomic uint32_t peers[CONTEXTS]; /* bit per GPU whose memory the context may reach */

static CUresult peer_of(CUcontext peer, CUcontext *context, uint32_t *bit) {
  TRY(context_current(context));
  if (!context_valid(peer)) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->gpu == (*context)->gpu) return CUDA_ERROR_INVALID_DEVICE;
  *bit = 1u << peer->gpu;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  ENTER(cuCtxEnablePeerAccess);
  CUcontext context;
  uint32_t bit;
  TRY(peer_of(peer, &context, &bit));
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  uint32_t before = atomic_fetch_or(&peers[context_index(context)], bit);
  return before & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  ENTER(cuCtxDisablePeerAccess);
  CUcontext context;
  uint32_t bit;
  TRY(peer_of(peer, &context, &bit));
  uint32_t before = atomic_fetch_and(&peers[context_index(context)], ~bit);
  return before & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

void settings_drop_context(CUcontext context) { atomic_store(&peers[context_index(context)], 0); }
