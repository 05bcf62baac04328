/* Calls that the program did not make must not disturb what its threads are capturing: around those that may
 * synchronise, the thread's mode is relaxed.
 * Knows no allocator. Tests: tests/integration/test_native_pool.py. */
#ifndef VC_CUDA_CAPTURE_MODE_H
#define VC_CUDA_CAPTURE_MODE_H

#include <stddef.h>

#include "driver.h"

static inline CUstreamCaptureMode capture_relax(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (real_cuda.cuThreadExchangeStreamCaptureMode != NULL) real_cuda.cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

static inline void capture_restore(CUstreamCaptureMode mode) {
  if (real_cuda.cuThreadExchangeStreamCaptureMode != NULL) real_cuda.cuThreadExchangeStreamCaptureMode(&mode);
}

#endif
