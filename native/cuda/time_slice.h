/* SPDX-License-Identifier: Apache-2.0 */
/* Where work waits for its container's time slice on the GPU. Only containers with host memory have time slices, and
 * only while an agent says so; for all others a call is one load more.
 * Uses the ledger and streams, no particular kind of work. Tests: tests/integration/test_native_time_slices.py. */
#ifndef VC_CUDA_TIME_SLICE_H
#define VC_CUDA_TIME_SLICE_H

#include "ledger.h"
#include "nvidia.h"
#include "runtime_state.h"

/* A stream, and whether 0 means the thread's own default stream (_ptsz, _ptds). */
void time_slice_wait(CUstream stream, int per_thread);

/* Before work goes into STREAM. Never waits in a capture, nor longer than the page says. */
static inline void time_slice_enter(CUstream stream, int per_thread) {
  if (!VC_LIKELY(!ledger_is_split(runtime_ledger))) time_slice_wait(stream, per_thread);
}

/* Around a call that waits for work under way. */
static inline void time_slice_busy(int more) {
  if (!VC_LIKELY(!ledger_is_split(runtime_ledger))) ledger_time_slice_busy(runtime_ledger, more);
}

/* After a query whether work is done. */
static inline void time_slice_queried(CUresult answer) {
  if (!VC_LIKELY(!ledger_is_split(runtime_ledger)) && answer == CUDA_ERROR_NOT_READY)
    ledger_time_slice_queried(runtime_ledger);
}

/* Before a context ends that may leave its events behind. */
void time_slice_drop_event(CUcontext context);
/* The context is gone, or all of the column that KEEPS does not name, and events with it: a handle may soon be a new
 * one's. */
void time_slice_forget_context(CUcontext context);
void time_slice_forget_column(uint32_t column, int (*keeps)(CUcontext context));

#endif
