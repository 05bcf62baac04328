/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of a context that reserve device memory. The heap of the device's malloc and the buffer of its printf are
 * charged as they are asked for, although the driver may take them only with the first kernel that uses them: a heap
 * that was allowed must not push others out later. What is charged is always the difference between what the driver
 * says that the limit is and what it was when the context was new, which the context has paid: so no order of changes
 * adds up to anything else. What other limits take (stacks, nested launches) is measured.
 * Uses no allocator. Tests: tests/integration/test_native_module.py. */
#include "allocators.h"
#include "charge.h"
#include "context_table.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "ledger.h"
#include "lock.h"
#include "place.h"
#include "runtime_state.h"
#include "shm.h"
#include "undeclared.h"

enum { PATIENCE_MS = 20 };

static struct long_lock changing; /* reading, setting and reading again must be one step */
static struct lock recording;       /* no driver call under it */
static VC_LARGE struct table firsts; /* owner and limit -> value of the new context */
static _Thread_local char self;

/* One limit of one context. */
struct change {
  struct place place;
  CUlimit limit;
  int alone; /* no other thread changes one meanwhile */
  size_t first, before;
  uint64_t reserved; /* charged and in no table */
};

/* Owners are never 0 and limits are small. */
static uint64_t key_of(const struct change *change) {
  return (uint64_t)change->place.owner << 8 | (uint64_t)change->limit;
}

static size_t first_value(const struct change *change) {
  struct table_entry entry, old;
  lock_take(&recording);
  if (!table_get(&firsts, key_of(change), &entry)) {
    entry = (struct table_entry){key_of(change), change->before, change->place.column, change->place.owner};
    table_put(&firsts, &entry, &old);
  }
  lock_give(&recording);
  return entry.bytes;
}

/* What a value costs; the rounding of many small steps adds up to that of one. */
static uint64_t cost(const struct change *change, size_t value) {
  return value > change->first ? charge_round(value) - charge_round(change->first) : 0;
}

/* Records BYTES, less than is recorded only if LOWER, and uses up what was reserved. Returns what is missing for that:
 * then nothing was changed. */
static uint64_t record(const struct change *change, uint64_t bytes, int lower) {
  struct table_entry entry;
  uint64_t missing = 0;
  lock_take(&recording);
  if (!charge_take(ALLOCATION_LIMIT, key_of(change), &entry))
    entry = (struct table_entry){key_of(change), 0, change->place.column, change->place.owner};
  uint64_t have = entry.bytes + change->reserved;
  if (bytes < entry.bytes && !lower) bytes = entry.bytes;
  if (bytes > have)
    missing = bytes - have;
  else
    entry.bytes = bytes;
  if (entry.bytes != 0) charge_put_back(ALLOCATION_LIMIT, &entry);
  lock_give(&recording);
  if (missing == 0 && have != bytes) charge_return(change->place.column, have - bytes);
  return missing;
}

/* The driver's value, else the most that it can be. 1: it is the driver's, and no other thread changed it meanwhile. */
static int ask(const struct change *change, size_t most, size_t *value) {
  if (real_cuda.cuCtxGetLimit(value, change->limit) == CUDA_SUCCESS) return change->alone;
  *value = most;
  return 0;
}

/* The value that the driver chose does not fit. If it keeps that, the memory is held, and charged all the same. */
static void undo(struct change *change, size_t value) {
  size_t after;
  real_cuda.cuCtxSetLimit(change->limit, change->before);
  int lower = ask(change, value, &after);
  uint64_t missing = record(change, cost(change, after), lower);
  if (missing == 0) return;
  ledger_charge_anyway(runtime_ledger, change->place.column, missing);
  change->reserved += missing;
  record(change, cost(change, after), lower);
}

/* The driver has answered RESULT. */
static CUresult settle(struct change *change, CUresult result, size_t value) {
  size_t after;
  int lower = ask(change, result == CUDA_SUCCESS && value > change->before ? value : change->before, &after);
  for (uint64_t missing; (missing = record(change, cost(change, after), lower)) != 0;) { /* the driver rounded */
    CUresult charged = charge_column(change->place.column, missing);
    if (charged != CUDA_SUCCESS) {
      undo(change, after);
      return result == CUDA_SUCCESS ? charged : result;
    }
    change->reserved += missing;
  }
  return result;
}

static CUresult set_charged(struct change *change, size_t value) {
  change->first = first_value(change);
  if (value > change->first && value - change->first > VC_MAX_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t missing = record(change, cost(change, value), 0);
  CUresult result = charge_column(change->place.column, missing);
  if (result != CUDA_SUCCESS) return result;
  change->reserved = missing;
  result = real_cuda.cuCtxSetLimit(change->limit, value);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) charge_driver_refused(change->place.column, missing);
  return settle(change, result, value);
}

static CUresult set_measured(const struct place *place, CUlimit limit, size_t before, size_t value) {
  CUresult result = real_cuda.cuCtxSetLimit(limit, value);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) charge_driver_refused(place->column, 0);
  if (result != CUDA_SUCCESS) return result;
  result = undeclared_take(place->column, charge_column);
  if (result != CUDA_SUCCESS) real_cuda.cuCtxSetLimit(limit, before);
  return result;
}

/* A reserving limit that cannot be read, or of an unknown context, is not set: its memory would be in no table. */
CUresult vc_cuCtxSetLimit(CUlimit limit, size_t value) {
  struct change change = {.limit = limit};
  int reserves = limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE;
  CUresult place = real_cuda.cuCtxGetLimit != NULL ? context_place(&change.place) : CUDA_ERROR_NOT_SUPPORTED;
  if (place != CUDA_SUCCESS) return reserves ? place : real_cuda.cuCtxSetLimit(limit, value);
  undeclared_prepare();
  change.alone = long_lock_try(&changing, &self, PATIENCE_MS);
  CUresult result = real_cuda.cuCtxGetLimit(&change.before, limit);
  if (result == CUDA_SUCCESS)
    result = reserves ? set_charged(&change, value) : set_measured(&change.place, limit, change.before, value);
  else if (!reserves)
    result = real_cuda.cuCtxSetLimit(limit, value); /* the driver's own error */
  if (change.alone) long_lock_give(&changing);
  return result;
}

static void forget(const struct table_entry *entry, void *data) {
  (void)entry;
  (void)data;
}

static void forget_owner(uint32_t owner) { table_take_owner(&firsts, owner, forget, NULL); }

void limit_after_fork(void) {
  table_reset(&firsts);
  lock_give(&recording);
  long_lock_give(&changing);
}

ALLOCATOR(limit) = {.forget_owner = forget_owner};
