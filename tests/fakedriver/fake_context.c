/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: creation, the primary one, the stack of each thread.
 * Must not depend on how memory is laid out. Tests: tests/unit/fakedriver/test_contexts.py. */
#include "fake_array.h"
#include "fake_graph.h"
#include "fake_code.h"
#include "fake_symbols.h"
#include "fake_work.h"

#include <pthread.h>

static struct CUctx_st contexts[CONTEXTS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long last_id;
static CUcontext primary[FAKE_MAX_GPUS];
static unsigned primary_flags[FAKE_MAX_GPUS];
_Thread_local struct context_stack context_stack;

int context_valid(CUcontext context) {
  uintptr_t offset = (uintptr_t)context - (uintptr_t)contexts;
  return offset < sizeof contexts && offset % sizeof *contexts == 0 && atomic_load(&context->alive);
}

unsigned context_index(CUcontext context) { return (unsigned)(context - contexts); }
CUcontext context_at(unsigned index) { return &contexts[index]; }

void context_reset_after_fork(void) {
  for (unsigned i = 0; i < CONTEXTS; i++) atomic_store(&contexts[i].alive, 0);
  memset(primary, 0, sizeof primary);
  context_stack.depth = 0;
  work_reset_after_fork();
  pthread_mutex_init(&mutex, NULL);
}

/* --- life ------------------------------------------------------------------------------------------------------- */

static void set_default_limits(CUcontext context) {
  context->limit[CU_LIMIT_STACK_SIZE] = 1024;
  context->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 7ull << 20;
  context->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8ull << 20;
  context->limit[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  context->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  context->limit[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  context->limit[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

static CUresult create(CUdevice device, unsigned flags, unsigned api_version, CUcontext *out) {
  unsigned gpu = device_gpu[device];
  uint64_t cost = memory_rounded(fake_state->machine.context_bytes);
  if (atomic_load(&fake_state->gpu[gpu].lost)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  CUcontext context = NULL;
  for (unsigned i = 0; i < CONTEXTS && !context; i++)
    if (!atomic_load(&contexts[i].alive)) context = &contexts[i];
  if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
  struct fake_bill bill = {0};
  TRY(memory_charge_bill(gpu, cost, &bill));
  memset(context, 0, sizeof *context);
  context->bill = bill;
  context->device = device;
  context->gpu = gpu;
  context->flags = flags;
  context->api_version = api_version;
  context->references = 1;
  context->id = ++last_id;
  context->charged = cost;
  context->cache_config = CU_FUNC_CACHE_PREFER_NONE;
  context->shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  set_default_limits(context);
  atomic_fetch_add(&state_own_slot()->contexts[gpu], 1);
  atomic_store(&context->alive, 1);
  *out = context;
  return CUDA_SUCCESS;
}

static void drop_green(CUcontext primary_context) {
  for (unsigned i = 0; i < CONTEXTS; i++)
    if (atomic_load(&contexts[i].alive) && contexts[i].green_of == primary_context) atomic_store(&contexts[i].alive, 0);
}

static void destroy(CUcontext context) {
  drop_green(context);
  work_wait(context);
  module_drop_context(context);
  stream_drop_context(context);
  array_drop_context(context);
  graph_drop_context(context, atomic_load(&state_own_slot()->contexts[context->gpu]) == 1);
  settings_drop_context(context);
  memory_drop_context(context); /* last: it takes what the others left */
  state_uncharge_bill(context->gpu, context->charged, &context->bill);
  if (atomic_fetch_sub(&state_own_slot()->contexts[context->gpu], 1) == 1) pool_drop_device(context->device);
  atomic_store(&context->alive, 0);
}

static CUresult push(CUcontext context) {
  if (context_stack.depth == CONTEXT_STACK) return CUDA_ERROR_OUT_OF_MEMORY;
  context_stack.at[context_stack.depth++] = context;
  return CUDA_SUCCESS;
}

static CUresult create_current(CUcontext *out, unsigned flags, CUdevice device, unsigned api_version) {
  NONNULL(out);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
  if (context_stack.depth == CONTEXT_STACK) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&mutex);
  CUcontext context = NULL;
  CUresult result = create(device, flags, api_version, &context);
  pthread_mutex_unlock(&mutex);
  if (result != CUDA_SUCCESS) return result;
  push(context);
  *out = context;
  return CUDA_SUCCESS;
}

ENTRY(cuCtxCreate, (CUcontext *out, unsigned flags, CUdevice device), create_current, (out, flags, device, 3010))
ENTRY(cuCtxCreate_v2, (CUcontext *out, unsigned flags, CUdevice device), create_current, (out, flags, device, 3020))

/* OpenGL's and VDPAU's are contexts like any other; there is no window system to share anything with. */
ENTRY(cuGLCtxCreate, (CUcontext *out, unsigned flags, CUdevice device), create_current, (out, flags, device, 3010))
ENTRY(cuGLCtxCreate_v2, (CUcontext *out, unsigned flags, CUdevice device), create_current, (out, flags, device, 3020))

#define VDPAU(symbol, version) \
  CUresult symbol(CUcontext *out, unsigned flags, CUdevice device, unsigned vdpau, void *lookup) { \
    ENTER(symbol); \
    (void)vdpau; \
    return lookup ? create_current(out, flags, device, version) : CUDA_ERROR_INVALID_VALUE; \
  }
VDPAU(cuVDPAUCtxCreate, 3010)
VDPAU(cuVDPAUCtxCreate_v2, 3020)

CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int count, unsigned flags, CUdevice device) {
  ENTER(cuCtxCreate_v3);
  if (count < 0 || (count > 0 && !params)) return CUDA_ERROR_INVALID_VALUE;
  return create_current(out, flags, device, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned flags, CUdevice device) {
  ENTER(cuCtxCreate_v4);
  if (params && params->numExecAffinityParams > 0 && !params->execAffinityParams) return CUDA_ERROR_INVALID_VALUE;
  return create_current(out, flags, device, 3020);
}

static CUresult destroy_context(CUcontext context) {
  if (!context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->primary || context->green_of) return CUDA_ERROR_INVALID_CONTEXT;
  int depth = context_stack.depth;
  if (depth && context_stack.at[depth - 1] == context) context_stack.depth--;
  pthread_mutex_lock(&mutex);
  if (atomic_load(&context->alive)) destroy(context);
  pthread_mutex_unlock(&mutex);
  return CUDA_SUCCESS;
}
ENTRY(cuCtxDestroy, (CUcontext context), destroy_context, (context))
ENTRY(cuCtxDestroy_v2, (CUcontext context), destroy_context, (context))

CUresult cuCtxAttach(CUcontext *out, unsigned flags) {
  ENTER(cuCtxAttach);
  NONNULL(out);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context;
  TRY(context_current(&context));
  context->references++;
  *out = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context) {
  ENTER(cuCtxDetach);
  if (!context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
  return --context->references > 0 ? CUDA_SUCCESS : destroy_context(context);
}

/* --- the primary context of a device ---------------------------------------------------------------------------- */

static CUresult retain_locked(CUdevice device) {
  if (primary[device]) {
    primary[device]->references++;
    return CUDA_SUCCESS;
  }
  TRY(create(device, primary_flags[device], 3020, &primary[device]));
  primary[device]->primary = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  ENTER(cuDevicePrimaryCtxRetain);
  NONNULL(out);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&mutex);
  CUresult result = retain_locked(device);
  if (result == CUDA_SUCCESS) *out = primary[device];
  pthread_mutex_unlock(&mutex);
  return result;
}

static CUresult release_primary(CUdevice device, int all) {
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&mutex);
  CUcontext context = primary[device];
  if (context && (all || --context->references == 0)) {
    destroy(context);
    primary[device] = NULL;
  }
  pthread_mutex_unlock(&mutex);
  return context || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult context_make_green(CUdevice device, CUcontext *out) {
  pthread_mutex_lock(&mutex);
  CUcontext context = NULL;
  CUresult result = retain_locked(device);
  for (unsigned i = 0; i < CONTEXTS && !context && result == CUDA_SUCCESS; i++)
    if (!atomic_load(&contexts[i].alive)) context = &contexts[i];
  if (result == CUDA_SUCCESS && context) {
    *context = (struct CUctx_st){.device = device, .gpu = primary[device]->gpu, .id = ++last_id, .api_version = 3020};
    context->green_of = primary[device];
    atomic_store(&context->alive, 1);
    *out = context;
  }
  pthread_mutex_unlock(&mutex);
  if (result != CUDA_SUCCESS || context) return result;
  release_primary(device, 0);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

void context_end_green(CUcontext context) {
  if (!context_valid(context)) return; /* the primary one was reset */
  atomic_store(&context->alive, 0);
  release_primary(context->device, 0);
}

ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device), release_primary, (device, 0))
ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), release_primary, (device, 0))
ENTRY(cuDevicePrimaryCtxReset, (CUdevice device), release_primary, (device, 1))
ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device), release_primary, (device, 1))

static CUresult set_primary_flags(CUdevice device, unsigned flags) {
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  primary_flags[device] = flags;
  if (primary[device]) primary[device]->flags = flags;
  pthread_mutex_unlock(&mutex);
  return CUDA_SUCCESS;
}
ENTRY(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags), set_primary_flags, (device, flags))
ENTRY(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), set_primary_flags, (device, flags))

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  ENTER(cuDevicePrimaryCtxGetState);
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = primary_flags[device];
  *active = primary[device] != NULL;
  return CUDA_SUCCESS;
}

/* --- the thread's stack ----------------------------------------------------------------------------------------- */

static CUresult push_current(CUcontext context) {
  return context_valid(context) ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}
ENTRY(cuCtxPushCurrent, (CUcontext context), push_current, (context))
ENTRY(cuCtxPushCurrent_v2, (CUcontext context), push_current, (context))

static CUresult pop_current(CUcontext *out) {
  if (context_stack.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  CUcontext top = context_stack.at[--context_stack.depth];
  if (out) *out = top;
  return CUDA_SUCCESS;
}
ENTRY(cuCtxPopCurrent, (CUcontext *out), pop_current, (out))
ENTRY(cuCtxPopCurrent_v2, (CUcontext *out), pop_current, (out))

CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER(cuCtxSetCurrent);
  if (context && !context_valid(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context_stack.depth == 0) return context ? push(context) : CUDA_SUCCESS;
  if (context) context_stack.at[context_stack.depth - 1] = context;
  else context_stack.depth--;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out) {
  ENTER(cuCtxGetCurrent);
  NONNULL(out);
  *out = context_stack.depth ? context_stack.at[context_stack.depth - 1] : NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  ENTER(cuCtxGetDevice);
  CUcontext context;
  NONNULL(device);
  TRY(context_current(&context));
  *device = context->device;
  return CUDA_SUCCESS;
}

/* NULL stands for the current context. */
static CUresult context_or_current(CUcontext *context) {
  if (!*context) return context_current(context);
  return context_valid(*context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
  ENTER(cuCtxGetDevice_v2);
  NONNULL(device);
  TRY(context_or_current(&context));
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
  ENTER(cuCtxGetId);
  NONNULL(id);
  TRY(context_or_current(&context));
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
  ENTER(cuCtxGetApiVersion);
  NONNULL(version);
  TRY(context_or_current(&context));
  *version = context->api_version;
  return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext context) {
  TRY(context_or_current(&context));
  TRY(capture_forbids_unsafe());
  work_wait(context);
  pool_trim_after_sync(context);
  return CUDA_SUCCESS;
}
ENTRY(cuCtxSynchronize, (void), synchronize, (NULL))
ENTRY(cuCtxSynchronize_v2, (CUcontext context), synchronize, (context))
