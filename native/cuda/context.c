/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts come and go: what they cost, and what ends with them. A context takes device memory of its own, hundreds of
 * megabytes on large GPUs, before anything is allocated in it. That cost is measured around the first creation on each
 * GPU, remembered, charged like an allocation and given back with everything else when the context ends.
 * Uses no allocator. Tests: tests/integration/test_native_context.py. */
#include <stdatomic.h>

#include "allocators.h"
#include "charge.h"
#include "context_made.h"
#include "context_table.h"
#include "cuda_bodies.h"
#include "device.h"
#include "driver.h"
#include "growth.h"
#include "ledger.h"
#include "lock.h"
#include "nvml_probe.h"
#include "os.h"
#include "place.h"
#include "runtime_state.h"
#include "stream_state.h"
#include "time_slice.h"
#include "undeclared.h"
#include "view.h"

/* One GPU of the limits page. Guarded by its lock, which is held while the driver creates a context: two creations
 * measured at once would each see both. */
struct gpu {
  struct long_lock lock;
  _Atomic int cost_known;
  uint64_t cost;
  int primary_charged;
  uint64_t primary_context;
};

static struct gpu gpus[VC_MAX_GPUS];
static _Thread_local char self;

/* --- what a context costs ---------------------------------------------------------------------------------------- */

/* No context takes more. */
#define COST_MAX (UINT64_C(2) << 30)

/* NVML's view of the GPU before the creation; growth.c tells what of the difference to the view after it is this
 * process's. In a container NVML may name every process of the host by its host PID, and the own one is not known. */
struct cost {
  int running; /* NVML is there and answered */
  uint32_t column;
  struct growth_view before;
};

/* After nvml_probe_prepare(). Without NVML nothing is measured. */
static void cost_begin(struct cost *cost, uint32_t column) {
  cost->column = column;
  cost->running = nvml_probe_read(column, &cost->before);
}

static void cost_drop(struct cost *cost) {
  if (cost->running) nvml_probe_drop(&cost->before);
  cost->running = 0;
}

/* 1: *GROWN is the growth since cost_begin(), 0 to 2 GiB. 0: it could not be measured and *GROWN is 0. */
static int cost_end(struct cost *cost, uint64_t *grown) {
  struct growth_view after;
  *grown = 0;
  if (!cost->running) return 0;
  int seen = nvml_probe_read(cost->column, &after);
  if (seen) {
    undeclared_learn(&cost->before, &after);
    seen = growth_of((uint32_t)os_pid(), &cost->before, &after, grown);
    nvml_probe_drop(&after);
  }
  cost_drop(cost);
  if (!seen) *grown = 0;
  if (!seen) return 0;
  if (*grown > COST_MAX) *grown = COST_MAX;
  *grown = (*grown + VIEW_GRAIN - 1) & ~(uint64_t)(VIEW_GRAIN - 1);
  return 1;
}

/* Without a lock: it may load NVML, unless nothing is left to be measured. */
static void prepare(struct gpu *gpu, uint32_t column) {
  uint64_t cost;
  if (atomic_load(&gpu->cost_known) && undeclared_is_measurable()) return;
  if (!ledger_learned_context(runtime_ledger, column, &cost)) nvml_probe_prepare();
}

/* Compares what was charged with what NVML shows, if NVML is started: a context of known cost is no reason to start
 * it. */
static void remeasure(uint32_t column) {
  if (nvml_probe_is_started()) undeclared_renew(column);
}

/* What another process of this quota has found out. */
static void adopt_context_cost(struct gpu *gpu, uint32_t column) {
  uint64_t cost;
  if ((gpu->cost_known && undeclared_is_measurable()) || !ledger_learned_context(runtime_ledger, column, &cost)) return;
  if (!gpu->cost_known) gpu->cost = cost < COST_MAX ? cost : COST_MAX;
  gpu->cost_known = 1;
  undeclared_trust();
}

/* Only what is certain: NVML lists this process, and nothing else of it grew meanwhile. */
static void publish_context_cost(const struct gpu *gpu, uint32_t column, const struct ledger_holding *before) {
  struct ledger_holding after;
  if (!gpu->cost_known || !undeclared_is_certain() || before->bytes != 0) return;
  if (ledger_holding(runtime_ledger, column, &after) != VC_OK || after.state == before->state)
    ledger_learn_context(runtime_ledger, column, gpu->cost);
}

/* The cost is not known yet: measured around the creation, charged after it. */
static CUresult make_measured(struct gpu *gpu, uint32_t column, const struct creation *creation, CUcontext *context) {
  struct cost view;
  struct ledger_holding before = {0, 0};
  ledger_holding(runtime_ledger, column, &before);
  undeclared_hold(column); /* what the driver takes now is charged below, not as undeclared bytes */
  cost_begin(&view, column);
  CUresult result = creation->make(creation, context);
  if (result == CUDA_SUCCESS) {
    gpu->cost_known = cost_end(&view, &gpu->cost);
    publish_context_cost(gpu, column, &before);
    result = charge_column(column, gpu->cost);
    if (result != CUDA_SUCCESS) creation->unmake(creation, *context);
  } else {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) charge_driver_refused(column, 0);
    cost_drop(&view);
  }
  undeclared_release(column);
  return result;
}

/* A forked child inherits the cost, but has to find out again whether it can measure itself. */
static CUresult make_known(struct gpu *gpu, uint32_t column, const struct creation *creation, CUcontext *context) {
  struct cost view = {.running = 0};
  uint64_t measured;
  CUresult result = charge_column(column, gpu->cost);
  if (result != CUDA_SUCCESS) return result;
  if (!undeclared_is_measurable()) cost_begin(&view, column);
  result = creation->make(creation, context);
  if (result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) charge_driver_refused(column, gpu->cost);
    charge_return(column, gpu->cost);
    cost_drop(&view);
  } else {
    cost_end(&view, &measured);
  }
  return result;
}

static CUresult make_charged(struct gpu *gpu, uint32_t column, const struct creation *creation, CUcontext *context,
                             uint64_t *cost) {
  adopt_context_cost(gpu, column);
  CUresult result = gpu->cost_known ? make_known(gpu, column, creation, context)
                                    : make_measured(gpu, column, creation, context);
  *cost = gpu->cost;
  return result;
}

static void remember(CUcontext context, uint64_t cost, uint32_t column, uint32_t owner) {
  const struct table_entry entry = {(uintptr_t)context, cost, column, owner};
  struct table_entry old;
  if (context_table_put(&entry, &old) == 1 && old.owner != owner) {
    allocators_forget_owner(old.owner); /* that context ended in a call that is not hooked, and its handle came back */
    charge_return(old.column, old.bytes);
  }
  context_table_changed();
}

/* On a device that the driver says it does not have: its own error is the answer. If it made a context all the same,
 * that would be charged to no container. */
static CUresult make_nowhere(CUcontext *pctx, const struct creation *creation) {
  CUcontext context = NULL;
  CUresult result = creation->make(creation, pctx != NULL ? &context : NULL);
  if (result != CUDA_SUCCESS || pctx == NULL) return result;
  creation->unmake(creation, context);
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult context_create(CUcontext *pctx, const struct creation *creation) {
  CUcontext context = NULL;
  uint64_t cost;
  int column = device_column(creation->dev);
  if (pctx == NULL || column == VC_EINVAL) return make_nowhere(pctx, creation);
  if (column < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  struct gpu *gpu = &gpus[column];
  prepare(gpu, (uint32_t)column);
  if (!long_lock_take(&gpu->lock, &self)) return creation->make(creation, pctx);
  CUresult result = make_charged(gpu, (uint32_t)column, creation, &context, &cost);
  if (result == CUDA_SUCCESS) remember(context, cost, (uint32_t)column, context_owner_new());
  long_lock_give(&gpu->lock);
  remeasure((uint32_t)column);
  if (result == CUDA_SUCCESS) *pctx = context;
  return result;
}

static void settle(const struct table_entry *entry) {
  context_table_changed();
  allocators_forget_owner(entry->owner);
  charge_return(entry->column, entry->bytes);
  allocators_context_gone(entry->column);
  undeclared_renew(entry->column);
}

static void forget_work(CUcontext context) {
  stream_states_forget_context(context);
  time_slice_forget_context(context);
}

/* Out of the table first: the driver may give the handle to another thread's new context at once. */
static CUresult destroy(CUcontext context, CUresult (*call)(CUcontext)) {
  struct table_entry entry, old;
  int known = context_table_take((uintptr_t)context, &entry);
  stream_polls_block();
  CUresult result = call(context);
  if (result == CUDA_SUCCESS) forget_work(context);
  stream_polls_unblock();
  if (known && result == CUDA_SUCCESS) settle(&entry);
  if (known && result != CUDA_SUCCESS) context_table_put(&entry, &old);
  return result;
}

CUresult vc_cuCtxDestroy(CUcontext ctx) { return destroy(ctx, real_cuda.cuCtxDestroy); }

CUresult vc_cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx, real_cuda.cuCtxDestroy_v2); }

/* Others may still be attached. The context must have been current, so it is gone when it no longer is; if the driver
 * does not say, it stays charged. */
CUresult vc_cuCtxDetach(CUcontext ctx) {
  struct table_entry entry, old;
  CUcontext now = NULL;
  int known = context_table_take((uintptr_t)ctx, &entry);
  stream_polls_block();
  CUresult result = real_cuda.cuCtxDetach(ctx);
  int attached = result != CUDA_SUCCESS || real_cuda.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now == ctx;
  if (!attached) forget_work(ctx);
  stream_polls_unblock();
  if (!known) return result;
  if (attached)
    context_table_put(&entry, &old);
  else
    settle(&entry);
  return result;
}

/* The primary context has no known handle when a green context brought it about. */
static void know_primary_as(struct gpu *gpu, CUcontext context) {
  struct table_entry entry, old;
  if (gpu->primary_context == (uintptr_t)context || !context_table_take(gpu->primary_context, &entry)) return;
  entry.key = gpu->primary_context = (uintptr_t)context;
  context_table_put(&entry, &old);
  context_table_changed();
}

static CUresult retain(struct gpu *gpu, uint32_t column, const struct creation *creation, CUcontext *context) {
  uint64_t cost;
  if (gpu->primary_charged) {
    CUresult again = creation->make(creation, context);
    if (again == CUDA_SUCCESS && creation->makes_primary_handle) know_primary_as(gpu, *context);
    return again;
  }
  CUresult result = make_charged(gpu, column, creation, context, &cost);
  if (result != CUDA_SUCCESS) return result;
  /* A green context does not tell the primary one's handle, and its own may come again while the primary one lives. */
  CUcontext known_as = creation->makes_primary_handle ? *context : (CUcontext)((uintptr_t)gpu | 1);
  gpu->primary_charged = 1;
  gpu->primary_context = (uintptr_t)known_as;
  remember(known_as, cost, column, context_primary_owner(column));
  return CUDA_SUCCESS;
}

CUresult context_retain(CUcontext *pctx, const struct creation *creation) {
  CUcontext context = NULL;
  int column = device_column(creation->dev);
  if (pctx == NULL || column == VC_EINVAL) return make_nowhere(pctx, creation);
  if (column < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  struct gpu *gpu = &gpus[column];
  prepare(gpu, (uint32_t)column);
  if (!long_lock_take(&gpu->lock, &self)) return creation->make(creation, pctx);
  int first = !gpu->primary_charged;
  CUresult result = retain(gpu, (uint32_t)column, creation, &context);
  long_lock_give(&gpu->lock);
  if (first) remeasure((uint32_t)column);
  if (result == CUDA_SUCCESS) *pctx = context;
  return result;
}

static int primary_is_active(CUdevice dev) {
  unsigned int flags;
  int active = 1;
  if (real_cuda.cuDevicePrimaryCtxGetState == NULL) return 1;
  return real_cuda.cuDevicePrimaryCtxGetState(dev, &flags, &active) != CUDA_SUCCESS || active;
}

static void forget_primary(struct gpu *gpu, uint32_t column) {
  struct table_entry entry;
  uint32_t owner = context_primary_renew(column);
  int known = gpu->primary_charged && context_table_take(gpu->primary_context, &entry);
  context_table_changed();
  if (owner != 0) allocators_forget_owner(owner);
  if (known) charge_return(column, entry.bytes);
  gpu->primary_charged = 0;
  allocators_context_gone(column);
}

static int is_created(CUcontext context) {
  struct table_entry entry;
  return context != NULL && context_table_get((uintptr_t)context, &entry) &&
         gpus[entry.column].primary_context != (uintptr_t)context;
}

/* Its parts end with it. Their handles are in no table, nor is its own when a part brought it about: retain(). */
static void forget_primary_work(uint32_t column) {
  stream_states_forget_column(column, is_created);
  time_slice_forget_column(column, is_created);
}

/* Streams outlive a part, and its events may: those set in it are destroyed while their handles are good. */
static CUresult let_go(const struct letting_go *what) {
  if (what->part != NULL) {
    stream_states_drop_events(what->part);
    time_slice_drop_event(what->part);
  }
  CUresult result = what->call(what);
  if (what->part != NULL && result == CUDA_SUCCESS) forget_work(what->part);
  return result;
}

CUresult context_let_go(const struct letting_go *what) {
  int column = device_column(what->dev);
  if (column < 0) return what->call(what);
  struct gpu *gpu = &gpus[column];
  if (!long_lock_take(&gpu->lock, &self)) return what->call(what);
  stream_polls_block();
  CUresult result = let_go(what);
  int gone = result == CUDA_SUCCESS && (what->always || !primary_is_active(what->dev));
  if (gone) forget_primary_work((uint32_t)column);
  stream_polls_unblock();
  if (gone) forget_primary(gpu, (uint32_t)column);
  long_lock_give(&gpu->lock);
  if (gone) undeclared_renew((uint32_t)column);
  return result;
}

void context_after_fork(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) {
    struct gpu *gpu = &gpus[column];
    uint64_t cost = gpu->cost;
    int known = gpu->cost_known;
    *gpu = (struct gpu){.cost = cost, .cost_known = known};
  }
}
