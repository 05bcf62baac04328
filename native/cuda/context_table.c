/* SPDX-License-Identifier: Apache-2.0 */
/* See context_table.h.
 * Tests: tests/integration/test_native_context.py, test_native_context_kinds.py. */
#include "context_table.h"

#include <stdatomic.h>

#include "allocators.h"
#include "device.h"
#include "driver.h"

/* The last context that this thread allocated in. Valid while no context has come or gone in between. */
struct seat {
  CUcontext context;
  uint32_t epoch;
  struct place place;
};

static struct table_small contexts; /* handle -> cost, column, owner */
static _Atomic uint32_t primary_owners[VC_MAX_GPUS]; /* 0: none yet */
static _Atomic uint32_t epoch = 1;
static _Atomic uint32_t last_owner;
static _Thread_local struct seat seat;

int context_table_put(const struct table_entry *entry, struct table_entry *old) {
  return table_small_put(&contexts, entry, old);
}

int context_table_get(uint64_t context, struct table_entry *out) { return table_small_get(&contexts, context, out); }

int context_table_take(uint64_t context, struct table_entry *out) { return table_small_take(&contexts, context, out); }

void context_table_changed(void) { atomic_fetch_add_explicit(&epoch, 1, memory_order_release); }

uint32_t context_owner_new(void) { return atomic_fetch_add_explicit(&last_owner, 1, memory_order_relaxed) + 1; }

uint32_t context_primary_owner(uint32_t column) {
  uint32_t owner = atomic_load_explicit(&primary_owners[column], memory_order_acquire), none = 0;
  if (owner != 0) return owner;
  owner = context_owner_new();
  if (atomic_compare_exchange_strong(&primary_owners[column], &none, owner)) return owner;
  return none;
}

uint32_t context_primary_renew(uint32_t column) {
  return atomic_exchange(&primary_owners[column], context_owner_new());
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
  *out = (struct place){(uint32_t)column, context_primary_owner((uint32_t)column)};
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

int context_is_only(CUcontext context, uint32_t column) {
  struct table_entry entry;
  if (context == NULL && (real_cuda.cuCtxGetCurrent == NULL || real_cuda.cuCtxGetCurrent(&context) != CUDA_SUCCESS))
    return 0;
  if (context == NULL || !table_small_get(&contexts, (uintptr_t)context, &entry)) return 0;
  return entry.column == column && table_small_count(&contexts, column) == 1;
}

static uint64_t usage(uint32_t column) { return table_small_sum(&contexts, column); }

void context_table_after_fork(void) {
  table_small_reset(&contexts);
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) atomic_store(&primary_owners[column], 0);
  context_table_changed();
}

ALLOCATOR(context_table) = {.usage = usage};
