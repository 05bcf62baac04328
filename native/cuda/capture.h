/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: whether a stream is captured, and how calls that the program did not make leave its captures alone.
 * Uses no allocator. Tests: tests/integration/test_native_pool.py, test_native_share.py. */
#ifndef VC_CUDA_CAPTURE_H
#define VC_CUDA_CAPTURE_H

#include <stddef.h>

#include "driver.h"

/* The driver's answer. PER_THREAD: stream 0 is the thread's own default stream (_ptsz), not the one that all share. */
static inline CUresult capture_status(CUstream stream, int per_thread, CUstreamCaptureStatus *status) {
  __typeof__(&cuStreamIsCapturing) ask = per_thread ? real_cuda.cuStreamIsCapturing_ptsz
                                                    : real_cuda.cuStreamIsCapturing;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != NULL ? ask(stream, status) : CUDA_SUCCESS;
}

/* 1: what is submitted becomes a node. The shared default stream cannot be captured. An error is the driver's to
 * report, by the call itself. */
static inline int capture_is_on(CUstream stream, int per_thread) {
  CUstreamCaptureStatus status;
  if ((stream == NULL && !per_thread) || stream == CU_STREAM_LEGACY) return 0;
  return capture_status(stream, per_thread, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* 1: the stream may be queried and waited for. While a stream that blocks is captured, that is forbidden for the shared
 * default stream too, and the driver says so without harm. */
static inline int capture_is_off(CUstream stream, int per_thread) {
  CUstreamCaptureStatus status;
  return capture_status(stream, per_thread, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Around calls that may synchronise: the thread's mode is relaxed. */
static inline CUstreamCaptureMode capture_relax(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (real_cuda.cuThreadExchangeStreamCaptureMode != NULL) real_cuda.cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

static inline void capture_restore(CUstreamCaptureMode mode) {
  if (real_cuda.cuThreadExchangeStreamCaptureMode != NULL) real_cuda.cuThreadExchangeStreamCaptureMode(&mode);
}

#endif
