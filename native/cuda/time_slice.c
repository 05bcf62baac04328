/* SPDX-License-Identifier: Apache-2.0 */
/* See time_slice.h.
 *
 * A container must not fill its queues for seconds ahead in its time slice: what is in them when the slice ends runs
 * on, and moves the next container's pages away. So while there are time slices, or may soon be, an event is recorded
 * behind every so many pieces of work, and before the next one is recorded, that one is waited for: two such bundles
 * are the longest queue. A bundle is as large as takes about ten milliseconds. A queue that does not move for seconds
 * may be waiting for what this thread does next: then a bundle goes. A thread that is held reports whether what it had
 * queued still runs, and fetches its pages at once when the time slice comes. Without time slices nothing of this
 * happens.
 * Tests: tests/integration/test_native_time_slices.py. */
#include "time_slice.h"

#include <stdatomic.h>

#include "capture.h"
#include "context_table.h"
#include "driver.h"
#include "lock.h"
#include "managed.h"
#include "os.h"
#include "place.h"

enum { NAP_US = 500, LONG_NS = 20000000, SHORT_NS = 5000000, STUCK_NS = 2000000000, LARGEST = 4096 };

/* By column: the last event, and its context. */
struct pace {
  struct long_lock lock;
  _Atomic(CUcontext) context; /* of the event */
  CUevent event;     /* NULL: none */
  int set;
  uint64_t last_ns;         /* when it was set */
  _Atomic uint32_t pieces;  /* since then */
  _Atomic uint32_t largest; /* bundle; 0: one piece */
};

static VC_LARGE struct pace paces[VC_MAX_GPUS];
static _Thread_local char self;

static void drop_event(struct pace *pace) {
  if (pace->event != NULL && real_cuda.cuEventDestroy_v2 != NULL) real_cuda.cuEventDestroy_v2(pace->event);
  pace->event = NULL;
  pace->set = 0;
}

static void make_event(struct pace *pace, CUcontext context) {
  if (pace->event != NULL && pace->context == context) return;
  drop_event(pace);
  if (real_cuda.cuEventCreate != NULL && real_cuda.cuEventCreate(&pace->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
    pace->context = context;
  else
    pace->event = NULL;
}

/* An event of another stream's context cannot be set here; then this piece is not bounded, and the next one is. */
static void set_event(struct pace *pace, CUstream stream, int per_thread) {
  __typeof__(&cuEventRecord) record = per_thread ? real_cuda.cuEventRecord_ptsz : real_cuda.cuEventRecord;
  pace->set = record != NULL && record(pace->event, stream) == CUDA_SUCCESS;
}

/* Another thread that has the lock waits for the event itself, and reports it. */
static int queue_runs(struct pace *pace) {
  if (real_cuda.cuEventQuery == NULL || !long_lock_try(&pace->lock, &self, 0)) return 0;
  CUstreamCaptureMode mode = capture_relax();
  int runs = pace->set && real_cuda.cuEventQuery(pace->event) == CUDA_ERROR_NOT_READY;
  capture_restore(mode);
  long_lock_give(&pace->lock);
  return runs;
}

static void fence_queue(struct pace *pace, CUstream stream, int per_thread) {
  CUcontext context = NULL;
  if (real_cuda.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !long_lock_try(&pace->lock, &self, 0)) return;
  CUstreamCaptureMode mode = capture_relax();
  make_event(pace, context);
  if (pace->event != NULL) set_event(pace, stream, per_thread);
  capture_restore(mode);
  long_lock_give(&pace->lock);
}

static void hold(uint32_t column, CUstream stream, int per_thread) {
  uint64_t began = os_now_ns();
  int runs = 1;
  fence_queue(&paces[column], stream, per_thread);
  ledger_time_slice_busy(runtime_ledger, 1);
  do {
    if (runs && !(runs = queue_runs(&paces[column]))) ledger_time_slice_busy(runtime_ledger, 0);
    ledger_time_slice_waiting(runtime_ledger, column);
    os_sleep_us(NAP_US);
  } while (ledger_time_slice(runtime_ledger, column) == VC_TIME_SLICE_HELD);
  if (runs) ledger_time_slice_busy(runtime_ledger, 0);
  ledger_time_slice_held(runtime_ledger, column, (os_now_ns() - began) / 1000);
}

static void resize(struct pace *pace) {
  uint64_t now = os_now_ns(), passed = now - pace->last_ns;
  uint32_t largest = atomic_load_explicit(&pace->largest, memory_order_relaxed);
  if (passed > LONG_NS) largest /= 2;
  if (passed < SHORT_NS && largest < LARGEST) largest = largest * 2 + 1;
  pace->last_ns = now;
  atomic_store_explicit(&pace->largest, largest, memory_order_relaxed);
  atomic_store_explicit(&pace->pieces, 0, memory_order_relaxed);
}

/* 1: the bundle before is done. 0: there are no time slices any more, or it is stuck. */
static int wait_for_bundle(const struct pace *pace, uint32_t column) {
  uint64_t began = os_now_ns();
  uint32_t nap = 20;
  while (real_cuda.cuEventQuery(pace->event) == CUDA_ERROR_NOT_READY) {
    if (ledger_time_slice(runtime_ledger, column) == VC_TIME_SLICE_FREE || os_now_ns() - began >= STUCK_NS) return 0;
    os_sleep_us(nap);
    nap = nap * 2 < NAP_US ? nap * 2 : NAP_US;
  }
  return 1;
}

static void bound_queue(uint32_t column, CUstream stream, int per_thread) {
  struct pace *pace = &paces[column];
  CUcontext context = NULL;
  uint32_t pieces = atomic_fetch_add_explicit(&pace->pieces, 1, memory_order_relaxed);
  if (pieces < atomic_load_explicit(&pace->largest, memory_order_relaxed) || real_cuda.cuEventQuery == NULL) return;
  if (real_cuda.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !long_lock_try(&pace->lock, &self, 0)) return;
  CUstreamCaptureMode mode = capture_relax();
  make_event(pace, context);
  int done = 1;
  if (pace->set) {
    ledger_time_slice_busy(runtime_ledger, 1);
    done = wait_for_bundle(pace, column);
    ledger_time_slice_busy(runtime_ledger, 0);
  }
  if (pace->event != NULL && done) set_event(pace, stream, per_thread);
  if (done)
    resize(pace);
  else
    atomic_store_explicit(&pace->pieces, 0, memory_order_relaxed);
  capture_restore(mode);
  long_lock_give(&pace->lock);
}

void time_slice_wait(CUstream stream, int per_thread) {
  struct place place;
  if (context_place(&place) != CUDA_SUCCESS) return;
  int slice = ledger_time_slice(runtime_ledger, place.column);
  if (slice != VC_TIME_SLICE_FREE && !capture_is_on(stream, per_thread)) {
    if (slice == VC_TIME_SLICE_HELD) {
      hold(place.column, stream, per_thread);
      if (ledger_time_slice(runtime_ledger, place.column) == VC_TIME_SLICE_YOURS)
        managed_fetch(place.column, stream, per_thread);
    }
    bound_queue(place.column, stream, per_thread);
  }
  ledger_time_slice_progress(runtime_ledger, place.column);
}

static void forget_event(struct pace *pace) {
  int taken = long_lock_take(&pace->lock, &self);
  pace->event = NULL;
  pace->set = 0;
  if (taken) long_lock_give(&pace->lock);
}

void time_slice_forget_context(CUcontext context) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (atomic_load(&paces[column].context) == context) forget_event(&paces[column]);
}

void time_slice_forget_column(uint32_t column, int (*keeps)(CUcontext context)) {
  if (!keeps(atomic_load(&paces[column].context))) forget_event(&paces[column]);
}

void time_slice_drop_event(CUcontext context) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) {
    struct pace *pace = &paces[column];
    if (atomic_load(&pace->context) != context || !long_lock_take(&pace->lock, &self)) continue;
    drop_event(pace);
    long_lock_give(&pace->lock);
  }
}

void time_slice_after_fork(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) {
    long_lock_give(&paces[column].lock);
    paces[column].event = NULL;
    paces[column].set = 0;
  }
}
