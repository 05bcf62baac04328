/* A context takes device memory of its own, hundreds of megabytes on large GPUs, before anything is allocated in it.
 * That cost is measured around the first creation on each GPU, remembered, charged like an allocation and given back
 * with everything else when the context goes.
 * Knows no allocator. Tests: tests/integration/test_native_context.py. */
#include "context.h"

#include <stdatomic.h>

#include "allocators.h"
#include "charge.h"
#include "context_made.h"
#include "cuda_bodies.h"
#include "device.h"
#include "driver.h"
#include "undeclared.h"
#include "nvml_probe.h"
#include "runtime_state.h"
#include "ledger.h"
#include "stream_state.h"
#include "lock.h"
#include "context_cost.h"
#include "place.h"
#include "table.h"
#include "time_slice.h"

/* One GPU of the limits page. Guarded by its lock, which is held while the driver creates a context: two creations
 * measured at once would each see both. */
struct gpu {
  struct long_lock lock;
  _Atomic int cost_known;
  uint64_t cost;
  int primary_charged;
  uint64_t primary_context;
  _Atomic uint32_t primary_owner; /* 0: none yet */
};

/* The last context that this thread allocated in. Valid while no context has come or gone in between. */
struct seat {
  CUcontext context;
  uint32_t epoch;
  struct place place;
};

static struct gpu gpus[VC_MAX_GPUS];
static struct table_small contexts; /* handle -> cost, column, owner */
static _Atomic uint32_t epoch = 1;
static _Atomic uint32_t last_owner;
static _Thread_local struct seat seat;

static uint32_t new_owner(void) { return atomic_fetch_add_explicit(&last_owner, 1, memory_order_relaxed) + 1; }

static void contexts_changed(void) { atomic_fetch_add_explicit(&epoch, 1, memory_order_release); }

static uint32_t primary_owner(struct gpu *gpu) {
  uint32_t owner = atomic_load_explicit(&gpu->primary_owner, memory_order_acquire), none = 0;
  if (owner != 0) return owner;
  owner = new_owner();
  if (atomic_compare_exchange_strong(&gpu->primary_owner, &none, owner)) return owner;
  return none;
}

/* Green contexts, and contexts from calls that are not hooked, count as the primary one, whose memory green contexts
 * share; they are not remembered, because not every end of one is seen. */
static __attribute__((noinline, cold)) CUresult place_slowly(CUcontext context, uint32_t seen, struct place *out) {
  struct table_entry entry;
  CUdevice dev;
  if (table_small_get(&contexts, (uintptr_t)context, &entry)) {
    *out = (struct place){entry.column, entry.owner};
    seat = (struct seat){context, seen, *out};
    return CUDA_SUCCESS;
  }
  if (real_cuda.cuCtxGetDevice == NULL) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = real_cuda.cuCtxGetDevice(&dev);
  if (result != CUDA_SUCCESS) return result;
  int column = device_column(dev);
  if (column < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = (struct place){(uint32_t)column, primary_owner(&gpus[column])};
  return CUDA_SUCCESS;
}

static __attribute__((noinline, cold)) CUresult no_place(CUresult result) {
  return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult context_place(struct place *out) {
  CUcontext context = NULL;
  uint32_t seen = atomic_load_explicit(&epoch, memory_order_acquire);
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (real_cuda.cuCtxGetCurrent == NULL || (result = real_cuda.cuCtxGetCurrent(&context)) != CUDA_SUCCESS ||
      context == NULL)
    return no_place(result);
  if (VC_LIKELY(context == seat.context && seen == seat.epoch)) {
    *out = seat.place;
    return CUDA_SUCCESS;
  }
  return place_slowly(context, seen, out);
}

/* Without a lock: it may load NVML, unless nothing is left to be measured. */
static void prepare(struct gpu *gpu, uint32_t column) {
  uint64_t cost;
  if (atomic_load(&gpu->cost_known) && undeclared_is_measurable()) return;
  if (!ledger_learned_context(runtime_ledger, column, &cost)) nvml_probe_prepare();
}

/* What was charged against what is there. A context of known cost is no reason to start NVML for it. */
static void review(uint32_t column) {
  if (nvml_probe_is_started()) undeclared_renew(column);
}

/* What another process of this quota has found out. */
static void learn(struct gpu *gpu, uint32_t column) {
  uint64_t cost;
  if ((gpu->cost_known && undeclared_is_measurable()) || !ledger_learned_context(runtime_ledger, column, &cost)) return;
  if (!gpu->cost_known) gpu->cost = cost < CONTEXT_COST_MAX ? cost : CONTEXT_COST_MAX;
  gpu->cost_known = 1;
  undeclared_trust();
}

/* Only what is certain: NVML names us, and nothing else of this process grew meanwhile. */
static void teach(const struct gpu *gpu, uint32_t column, const struct ledger_holding *before) {
  struct ledger_holding after;
  if (!gpu->cost_known || !undeclared_is_certain() || before->bytes != 0) return;
  if (ledger_holding(runtime_ledger, column, &after) != VC_OK || after.state == before->state)
    ledger_learn_context(runtime_ledger, column, gpu->cost);
}

/* The cost is not known yet: measured around the creation, charged after it. */
static CUresult make_measured(struct gpu *gpu, uint32_t column, const struct creation *creation, CUcontext *context) {
  struct context_cost cost_of;
  struct ledger_holding before = {0, 0};
  ledger_holding(runtime_ledger, column, &before);
  undeclared_hold(column); /* what the driver takes now is charged below, not as undeclared bytes */
  context_cost_begin(&cost_of, column);
  CUresult result = creation->make(creation, context);
  if (result == CUDA_SUCCESS) {
    gpu->cost_known = context_cost_end(&cost_of, &gpu->cost);
    teach(gpu, column, &before);
    result = charge_column(column, gpu->cost);
    if (result != CUDA_SUCCESS) creation->unmake(creation, *context);
  } else {
    context_cost_drop(&cost_of);
  }
  undeclared_release(column);
  return result;
}

/* A forked child inherits the cost, but has to find out again whether it can measure itself. */
static CUresult make_known(struct gpu *gpu, uint32_t column, const struct creation *creation, CUcontext *context) {
  struct context_cost cost_of = {.running = 0};
  uint64_t measured;
  CUresult result = charge_column(column, gpu->cost);
  if (result != CUDA_SUCCESS) return result;
  if (!undeclared_is_measurable()) context_cost_begin(&cost_of, column);
  result = creation->make(creation, context);
  if (result != CUDA_SUCCESS) {
    charge_return(column, gpu->cost);
    context_cost_drop(&cost_of);
  } else {
    context_cost_end(&cost_of, &measured);
  }
  return result;
}

static CUresult make_charged(struct gpu *gpu, uint32_t column, const struct creation *creation, CUcontext *context,
                             uint64_t *cost) {
  learn(gpu, column);
  CUresult result = gpu->cost_known ? make_known(gpu, column, creation, context)
                                    : make_measured(gpu, column, creation, context);
  *cost = gpu->cost;
  return result;
}

static void remember(CUcontext context, uint64_t cost, uint32_t column, uint32_t owner) {
  const struct table_entry entry = {(uintptr_t)context, cost, column, owner};
  struct table_entry old;
  if (table_small_put(&contexts, &entry, &old) == 1 && old.owner != owner) {
    allocators_forget_owner(old.owner); /* that context ended in a call that is not hooked, and its handle came back */
    charge_return(old.column, old.bytes);
  }
  contexts_changed();
}

/* On a device that the driver says it does not have: its own error is the answer. Were it to make a context all the
 * same, it would be charged to no container. */
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
  if (!long_lock_take(&gpu->lock, &seat)) return creation->make(creation, pctx);
  CUresult result = make_charged(gpu, (uint32_t)column, creation, &context, &cost);
  if (result == CUDA_SUCCESS) remember(context, cost, (uint32_t)column, new_owner());
  long_lock_give(&gpu->lock);
  review((uint32_t)column);
  if (result == CUDA_SUCCESS) *pctx = context;
  return result;
}

static void settle(const struct table_entry *entry) {
  contexts_changed();
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
  int known = table_small_take(&contexts, (uintptr_t)context, &entry);
  stream_polls_block();
  CUresult result = call(context);
  if (result == CUDA_SUCCESS) forget_work(context);
  stream_polls_unblock();
  if (known && result == CUDA_SUCCESS) settle(&entry);
  if (known && result != CUDA_SUCCESS) table_small_put(&contexts, &entry, &old);
  return result;
}

CUresult vc_cuCtxDestroy(CUcontext ctx) { return destroy(ctx, real_cuda.cuCtxDestroy); }

CUresult vc_cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx, real_cuda.cuCtxDestroy_v2); }

/* Others may still be attached. The context must have been current, so it is gone when it no longer is; if the
 * driver does not say, it is still paid. */
CUresult vc_cuCtxDetach(CUcontext ctx) {
  struct table_entry entry, old;
  CUcontext now = NULL;
  int known = table_small_take(&contexts, (uintptr_t)ctx, &entry);
  stream_polls_block();
  CUresult result = real_cuda.cuCtxDetach(ctx);
  int attached = result != CUDA_SUCCESS || real_cuda.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now == ctx;
  if (!attached) forget_work(ctx);
  stream_polls_unblock();
  if (!known) return result;
  if (attached)
    table_small_put(&contexts, &entry, &old);
  else
    settle(&entry);
  return result;
}

/* The primary context has no known handle when a green context brought it about. */
static void know_primary_as(struct gpu *gpu, CUcontext context) {
  struct table_entry entry, old;
  if (gpu->primary_context == (uintptr_t)context || !table_small_take(&contexts, gpu->primary_context, &entry)) return;
  entry.key = gpu->primary_context = (uintptr_t)context;
  table_small_put(&contexts, &entry, &old);
  contexts_changed();
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
  remember(known_as, cost, column, primary_owner(gpu));
  return CUDA_SUCCESS;
}

CUresult context_retain(CUcontext *pctx, const struct creation *creation) {
  CUcontext context = NULL;
  int column = device_column(creation->dev);
  if (pctx == NULL || column == VC_EINVAL) return make_nowhere(pctx, creation);
  if (column < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  struct gpu *gpu = &gpus[column];
  prepare(gpu, (uint32_t)column);
  if (!long_lock_take(&gpu->lock, &seat)) return creation->make(creation, pctx);
  int first = !gpu->primary_charged;
  CUresult result = retain(gpu, (uint32_t)column, creation, &context);
  long_lock_give(&gpu->lock);
  if (first) review((uint32_t)column);
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
  uint32_t owner = atomic_exchange(&gpu->primary_owner, new_owner());
  int known = gpu->primary_charged && table_small_take(&contexts, gpu->primary_context, &entry);
  contexts_changed();
  if (owner != 0) allocators_forget_owner(owner);
  if (known) charge_return(column, entry.bytes);
  gpu->primary_charged = 0;
  allocators_context_gone(column);
}

static int is_created(CUcontext context) {
  struct table_entry entry;
  return context != NULL && table_small_get(&contexts, (uintptr_t)context, &entry) &&
         gpus[entry.column].primary_context != (uintptr_t)context;
}

/* Its parts go with it, whose handles are in no table, nor is its own when a part brought it about: retain(). */
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
  if (!long_lock_take(&gpu->lock, &seat)) return what->call(what);
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
  table_small_reset(&contexts);
  context_made_after_fork();
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) {
    struct gpu *gpu = &gpus[column];
    uint64_t cost = gpu->cost;
    int known = gpu->cost_known;
    *gpu = (struct gpu){.cost = cost, .cost_known = known};
  }
  contexts_changed();
}

int context_is_only(CUcontext context, uint32_t column) {
  struct table_entry entry;
  if (context == NULL && (real_cuda.cuCtxGetCurrent == NULL || real_cuda.cuCtxGetCurrent(&context) != CUDA_SUCCESS))
    return 0;
  if (context == NULL || !table_small_get(&contexts, (uintptr_t)context, &entry)) return 0;
  return entry.column == column && table_small_count(&contexts, column) == 1;
}

uint64_t context_usage(uint32_t column) { return table_small_sum(&contexts, column); }
