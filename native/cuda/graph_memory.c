/* SPDX-License-Identifier: Apache-2.0 */
/* Graph memory is taken when a graph is launched or uploaded, kept by the driver when its allocations are free, used
 * again by other graphs, and given back by trimming. The driver tells how much it has (RESERVED_MEM_CURRENT), so after
 * every call the charge is set to that; what must be known before a call is how much it may add at most:
 *
 *   need of the graph - what the driver has and no other graph can be using (= all it has - graph_exec_others())
 *
 * Pages of graphs that run in other streams, and allocations that graphs have left, cannot be used by this launch;
 * charging only need - RESERVED would exceed the limit in exactly these cases. A graph that ran last in this stream
 * keeps its pages until something takes them: a trim, or a graph that leaves allocations in pages it shared. Each of
 * these begins a new epoch; a launch within the epoch and stream of the last one adds nothing ("settled").
 *
 * Everything else happens under one lock, which is held while the driver launches: two launches at once would both
 * count on the same pages, and a trim would take them from under a launch. Settled launches of many threads pass it
 * together, unless the holder of the lock has closed the way (CLOSED).
 * Tests: tests/integration/test_native_graph.py. */
#include "graph_memory.h"

#include "allocators.h"
#include "capture.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "ledger.h"
#include "lock.h"
#include "log.h"
#include "place.h"
#include "runtime_state.h"
#include "status.h"

enum { PATIENCE_MS = 20 }; /* with other threads' launches */

/* Of one GPU. Written under the lock. */
struct column {
  _Atomic uint64_t held; /* charged: what the driver has, and PENDING */
  uint64_t pending;      /* what a launch under way may add */
  uint64_t left;         /* allocations that ended graphs may have left */
  uint64_t chunk;        /* the driver was seen to take more than pages: in multiples of this; 0: pages */
  _Atomic int device;    /* ordinal + 1 */
};

enum { LARGE_CHUNK = 32 << 20 }; /* of memory pools, and of graph memory on some drivers */

static VC_LARGE struct column columns[VC_MAX_GPUS];
static struct long_lock lock;
static _Atomic uint64_t epoch = 1;
static _Atomic uint32_t passing; /* settled launches inside the driver */
static _Atomic int closed;
static _Thread_local char self; /* its address names the thread */

static void new_epoch(void) { atomic_fetch_add_explicit(&epoch, 1, memory_order_release); }

uint64_t graph_stream_key(CUstream stream, int per_thread) {
  if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread)) return (uintptr_t)&self;
  return stream == NULL ? (uintptr_t)CU_STREAM_LEGACY : (uintptr_t)stream;
}

void graph_memory_device(uint32_t column, CUdevice device) {
  atomic_store_explicit(&columns[column].device, device + 1, memory_order_relaxed);
}

static uint64_t held_in(uint32_t column) {
  return atomic_load_explicit(&columns[column].held, memory_order_relaxed);
}

static void hold(uint32_t column, uint64_t bytes) {
  atomic_store_explicit(&columns[column].held, bytes, memory_order_relaxed);
}

static uint64_t usage(uint32_t column) { return held_in(column); }

static int device_of(uint32_t column) {
  return atomic_load_explicit(&columns[column].device, memory_order_relaxed) - 1;
}

/* What the driver has; what was counted here, when it does not say. */
static uint64_t reserved_in(uint32_t column) {
  cuuint64_t bytes = UINT64_MAX;
  int device = device_of(column);
  if (device >= 0 && real_cuda.cuDeviceGetGraphMemAttribute != NULL)
    real_cuda.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
  return bytes < VC_MAX_BYTES ? bytes : held_in(column) - columns[column].pending;
}

static __attribute__((noinline, cold)) void say_over(uint64_t bytes) {
  static _Atomic int said;
  if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "the driver took %llu bytes more for a graph than was left", (unsigned long long)bytes);
}

static void charge_anyway(uint32_t column, uint64_t bytes) {
  if (bytes <= held_in(column)) return;
  say_over(bytes - held_in(column));
  ledger_charge_anyway(runtime_ledger, column, bytes - held_in(column));
  hold(column, bytes);
}

/* Sets the charge to what the driver has, and what is pending. Returns the sum. Charging may trim, and so come back
 * here once, hence no number is kept across it. What does not fit is held, and so charged, all the same. */
static uint64_t adjust(uint32_t column) {
  uint64_t bytes;
  while ((bytes = reserved_in(column) + columns[column].pending) > held_in(column)) {
    uint64_t more = bytes - held_in(column);
    if (charge_column(column, more) == CUDA_SUCCESS)
      hold(column, held_in(column) + more);
    else
      charge_anyway(column, bytes = reserved_in(column) + columns[column].pending);
  }
  charge_return(column, held_in(column) - bytes);
  hold(column, bytes);
  if (columns[column].left > bytes) columns[column].left = bytes;
  if (bytes == 0) graph_exec_unmap(column);
  return bytes;
}

static uint64_t most_that_may_come(const struct graph_exec *exec, uint32_t column, uint64_t stream) {
  uint64_t need = exec->need[column].bytes, chunk = columns[column].chunk;
  uint64_t has = reserved_in(column), others = columns[column].left + graph_exec_others(exec, column, stream);
  uint64_t usable = has > others ? has - others : 0;
  if (chunk != 0) need = (need + chunk - 1) / chunk * chunk;
  return need > usable ? need - usable : 0;
}

/* Room for the launch in one column. Making room may trim the very pages that were counted on, hence the loop: a second
 * trim finds nothing, so it ends. */
static CUresult reserve(const struct graph_exec *exec, uint32_t column, uint64_t stream) {
  uint64_t *pending = &columns[column].pending;
  for (uint64_t wanted; (wanted = most_that_may_come(exec, column, stream)) > *pending;) {
    uint64_t more = wanted - *pending;
    if (charge_column(column, more) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
    hold(column, held_in(column) + more);
    *pending = wanted;
  }
  return CUDA_SUCCESS;
}

/* Nothing is pending any more: the driver has it now, or it is given back. Returns what the driver has. */
static uint64_t finish(uint32_t column) {
  columns[column].pending = 0;
  return adjust(column);
}

static __attribute__((noinline, cold)) CUresult deny(const struct graph_exec *exec) {
  static _Atomic int said;
  if ((exec->denied & GRAPH_UNREAD) && !atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "the driver does not tell what a graph allocates: it is not launched; make the graph again, or "
                        "allocate outside of it");
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult reserve_all(const struct graph_exec *exec, uint64_t stream) {
  CUresult result = exec->denied ? deny(exec) : CUDA_SUCCESS;
  for (uint32_t column = 0; column < VC_MAX_GPUS && result == CUDA_SUCCESS; column++)
    if (exec->columns >> column & 1) result = reserve(exec, column, stream);
  for (uint32_t column = 0; column < VC_MAX_GPUS && result != CUDA_SUCCESS; column++)
    if (columns[column].pending != 0) finish(column);
  return result;
}

/* Waits for those that are passing, but not for ever: a launch may stand in the driver until another of the program's
 * threads has done something. */
static void hold_back_launches(void) {
  atomic_store(&closed, 1);
  for (int tries = 0; atomic_load(&passing) != 0 && tries < PATIENCE_MS * 20; tries++) os_sleep_us(50);
}

/* 0: this thread is inside already, the driver having called back (a profiler); the call that entered first adjusts. */
static int enter(void) {
  if (!long_lock_take(&lock, &self)) return 0;
  hold_back_launches();
  return 1;
}

static void leave(void) {
  atomic_store(&closed, 0);
  long_lock_give(&lock);
}

static int is_settled(const struct graph_exec *exec, uint64_t stream) {
  return atomic_load_explicit(&exec->stream, memory_order_relaxed) == stream &&
         atomic_load_explicit(&exec->epoch, memory_order_relaxed) == atomic_load_explicit(&epoch, memory_order_acquire);
}

int graph_memory_pass(const struct graph_exec *exec, uint64_t stream) {
  if (!is_settled(exec, stream)) return 0;
  atomic_fetch_add(&passing, 1);
  if (VC_LIKELY(!atomic_load(&closed) && is_settled(exec, stream))) return 1;
  atomic_fetch_sub(&passing, 1);
  return 0;
}

CUresult graph_memory_begin(struct graph_exec *exec, uint64_t stream, int *locked) {
  *locked = enter();
  if (!*locked) return CUDA_SUCCESS;
  CUresult result = reserve_all(exec, stream);
  if (result == CUDA_SUCCESS) return result;
  leave();
  *locked = 0;
  return result;
}

static int leaves_allocations(const struct graph_exec *exec) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (exec->need[column].unfreed != 0) return 1;
  return 0;
}

void graph_memory_end(struct graph_exec *exec, uint64_t stream, CUresult result) {
  if (result == CUDA_SUCCESS) {
    if (leaves_allocations(exec)) new_epoch();
    atomic_store_explicit(&exec->mapped, exec->columns, memory_order_relaxed);
    atomic_store_explicit(&exec->stream, stream, memory_order_relaxed);
    atomic_store_explicit(&exec->epoch, atomic_load_explicit(&epoch, memory_order_relaxed), memory_order_relaxed);
  } else {
    atomic_store_explicit(&exec->epoch, 0, memory_order_relaxed);
  }
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) {
    if (!(exec->columns >> column & 1)) continue;
    uint64_t expected = held_in(column);
    if (finish(column) > expected) columns[column].chunk = LARGE_CHUNK;
  }
  leave();
}

void graph_memory_passed(struct graph_exec *exec, CUresult result) {
  atomic_fetch_sub(&passing, 1);
  if (result != CUDA_SUCCESS) atomic_store_explicit(&exec->epoch, 0, memory_order_relaxed);
  if (!long_lock_try(&lock, &self, 0)) return; /* the thread that has it adjusts when it is done */
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (exec->columns >> column & 1) adjust(column);
  long_lock_give(&lock);
}

void graph_memory_forget(const struct graph_exec *exec) {
  uint32_t mapped = atomic_load_explicit(&exec->mapped, memory_order_relaxed);
  if (mapped == 0 || !leaves_allocations(exec)) return;
  int locked = enter();
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (mapped >> column & 1) columns[column].left += exec->need[column].unfreed;
  if (locked) leave();
}

/* Under the lock. 1: the driver has less than before. */
static int adjust_after_trim(uint32_t column) {
  uint64_t before = held_in(column);
  if (adjust(column) >= before) return 0;
  new_epoch();
  return 1;
}

CUresult graph_memory_trim(CUdevice device) {
  int column = device_column(device);
  if (column < 0 || !enter()) return real_cuda.cuDeviceGraphMemTrim(device);
  CUresult result = real_cuda.cuDeviceGraphMemTrim(device);
  graph_memory_device((uint32_t)column, device);
  adjust_after_trim((uint32_t)column);
  leave();
  return result;
}

/* Not allowed while a stream of this thread is being captured, unless the thread's mode is relaxed. */
static CUresult trim_even_in_capture(CUdevice device) {
  CUstreamCaptureMode mode = capture_relax();
  CUresult result = real_cuda.cuDeviceGraphMemTrim(device);
  capture_restore(mode);
  return result;
}

static int reclaim(uint32_t column) {
  int device = device_of(column);
  if (held_in(column) == 0 || device < 0 || real_cuda.cuDeviceGraphMemTrim == NULL) return 0;
  /* The caller may hold locks of its own that a launch waits for while it makes room: not for ever. */
  int taken = !long_lock_is_mine(&lock, &self);
  if (taken && !long_lock_try(&lock, &self, PATIENCE_MS)) return 0;
  if (taken) hold_back_launches();
  int given_back = trim_even_in_capture(device) == CUDA_SUCCESS && adjust_after_trim(column);
  if (taken) leave();
  return given_back;
}

static void context_gone(uint32_t column) {
  if (held_in(column) == 0) return;
  int taken = enter();
  adjust_after_trim(column);
  if (taken) leave();
}

void graph_memory_after_fork(void) {
  graph_exec_after_fork();
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) {
    hold(column, 0);
    columns[column].pending = columns[column].left = 0;
  }
  new_epoch();
  atomic_store(&passing, 0);
  leave();
}

ALLOCATOR(graph_memory) = {.usage = usage, .reclaim = reclaim, .context_gone = context_gone};
