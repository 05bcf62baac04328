/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel launches: counted, and taking time if they were told to.
 * Must not depend on where functions come from. Tests: tests/integration/test_native_share.py. */
#include "fake_code.h"
#include "fake_work.h"

static _Thread_local _Atomic uint64_t *cell; /* this thread's launch counter */
static _Thread_local int cell_is_shared;
static _Atomic unsigned threads;

static void choose_cell(void) {
  unsigned number = atomic_fetch_add(&threads, 1);
  cell_is_shared = number >= FAKE_LAUNCH_CELLS - 1;
  cell = &state_own_slot()->launches[cell_is_shared ? FAKE_LAUNCH_CELLS - 1 : number];
}

void work_reset_after_fork(void) { cell = NULL; }

static void count_launch(void) {
  if (__builtin_expect(!cell, 0)) choose_cell();
  if (__builtin_expect(cell_is_shared, 0)) atomic_fetch_add_explicit(cell, 1, memory_order_relaxed);
  else atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* What the kernel waits for its pages. */
static inline uint64_t paging_ns(unsigned gpu) {
  uint64_t each = fake_state->machine.paging_ns;
  return __builtin_expect(each != 0, 0) ? (state_touch_managed(gpu) >> 20) * each : 0;
}

CUresult launch_now(CUfunction function, CUcontext context, CUstream stream) {
  uint64_t ns = function->run_ns ? function->run_ns : fake_state->machine.launch_ns;
  ns += paging_ns(context->gpu);
  count_launch();
  if (__builtin_expect(ns != 0, 0)) work_launch(context, stream, ns);
  return CUDA_SUCCESS;
}

static inline CUresult launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, CUstream stream) {
  CUcontext context;
  CUstream own = NULL;
  if (!handle_valid_at(&functions, function, __builtin_ctzll(sizeof *function))) return CUDA_ERROR_INVALID_HANDLE;
  if (__builtin_expect(stream != NULL, 0)) TRY(stream_check(stream, &own));
  if (own) context = own->context;
  else TRY(context_current(&context));
  if (!gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (own && own->capture) return graph_capture_launch(own, function);
  stream_launched = (struct stream_launched){own, 1};
  return launch_now(function, context, stream);
}

/* The usual case needs no call and no register saved, as launches of a real driver are measured in nanoseconds too:
 * nothing ordered, the default stream, a thread that has launched before, and a kernel that takes no time. */
static inline int launch_quickly(const struct CUfunc_st *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, CUstream stream) {
  CUcontext context;
  if (*call_armed || stream || !cell || cell_is_shared) return 0;
  if (!handle_valid_at(&functions, f, __builtin_ctzll(sizeof *f)) || f->run_ns || fake_state->machine.launch_ns ||
      fake_state->machine.paging_ns)
    return 0;
  if (!gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024) return 0;
  if (context_current(&context) != CUDA_SUCCESS) return 0;
  atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + 1, memory_order_relaxed);
  stream_launched = (struct stream_launched){NULL, 1};
  return 1;
}

#define LAUNCH(name) \
  __attribute__((noinline)) static CUresult name##_slowly(CUfunction f, unsigned gx, unsigned gy, unsigned gz, \
                                                          unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                                                          CUstream stream, void **params, void **extra) { \
    ENTER(name); \
    (void)shared; \
    if (params && extra) return CUDA_ERROR_INVALID_VALUE; \
    return launch(f, gx, gy, gz, bx, by, bz, stream); \
  } \
  CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                unsigned shared, CUstream stream, void **params, void **extra) { \
    if (__builtin_expect(!extra && launch_quickly(f, gx, gy, gz, bx, by, bz, stream), 1)) return CUDA_SUCCESS; \
    return name##_slowly(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra); \
  }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)

static CUresult launch_config(const CUlaunchConfig *c, CUfunction f) {
  NONNULL(c);
  return launch(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->hStream);
}
#define CONFIG_PARAMETERS (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
#define LAUNCH_EX(name) \
  CUresult name CONFIG_PARAMETERS { \
    ENTER(name); \
    if (params && extra) return CUDA_ERROR_INVALID_VALUE; \
    return launch_config(config, f); \
  }
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)

#define LAUNCH_COOPERATIVE(name) \
  CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                unsigned shared, CUstream stream, void **params) { \
    ENTER(name); \
    (void)shared, (void)params; \
    return launch(f, gx, gy, gz, bx, by, bz, stream); \
  }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags) {
  ENTER(cuLaunchCooperativeKernelMultiDevice);
  if (!list || !count || flags & ~3u) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; i++)
    TRY(launch(list[i].function, list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ, list[i].blockDimX,
               list[i].blockDimY, list[i].blockDimZ, list[i].hStream));
  return CUDA_SUCCESS;
}

/* --- the launches of CUDA 2 ------------------------------------------------------------------------------------- */

CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z) {
  ENTER(cuFuncSetBlockShape);
  if (!handle_valid(&functions, f)) return CUDA_ERROR_INVALID_HANDLE;
  if (x <= 0 || y <= 0 || z <= 0 || (int64_t)x * y * z > 1024) return CUDA_ERROR_INVALID_VALUE;
  f->block[0] = (unsigned)x;
  f->block[1] = (unsigned)y;
  f->block[2] = (unsigned)z;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction f, unsigned bytes) {
  ENTER(cuFuncSetSharedSize);
  (void)bytes;
  return handle_valid(&functions, f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuParamSetSize(CUfunction f, unsigned bytes) {
  ENTER(cuParamSetSize);
  (void)bytes;
  return handle_valid(&functions, f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuParamSetv(CUfunction f, int offset, void *value, unsigned bytes) {
  ENTER(cuParamSetv);
  (void)bytes;
  if (!handle_valid(&functions, f)) return CUDA_ERROR_INVALID_HANDLE;
  return offset < 0 || !value ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult launch_grid(CUfunction f, int width, int height, CUstream stream) {
  if (!handle_valid(&functions, f)) return CUDA_ERROR_INVALID_HANDLE;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  return launch(f, (unsigned)width, (unsigned)height, 1, f->block[0], f->block[1], f->block[2], stream);
}
ENTRY(cuLaunch, (CUfunction f), launch_grid, (f, 1, 1, NULL))
ENTRY(cuLaunchGrid, (CUfunction f, int width, int height), launch_grid, (f, width, height, NULL))
ENTRY(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), launch_grid,
      (f, width, height, stream))
