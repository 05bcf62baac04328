/* SPDX-License-Identifier: Apache-2.0 */
/* Reservations and the tables of live allocations.
 * Uses no particular allocator. Tests: tests/integration/test_native_quota.py. */
#include "charge.h"

#include "allocators.h"
#include "context_table.h"
#include "driver.h"
#include "ledger.h"
#include "log.h"
#include "place.h"
#include "refusal.h"
#include "runtime_state.h"
#include "undeclared.h"
#include "view.h"

static VC_LARGE_BEGINNING struct table allocations[ALLOCATION_KINDS];

static __attribute__((noinline, cold)) CUresult refusal(uint32_t column, uint64_t bytes, int status) {
  static _Atomic int said;
  if (status == VC_ENOMEM) refusal_note(REFUSAL_QUOTA, column & COLUMN_NUMBER, bytes);
  if (status == VC_ENOMEM) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "memory cannot be charged: %s; allocations are refused", status_text(status));
  return status == VC_EFULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_SYSTEM_NOT_READY;
}

uint64_t charge_round(uint64_t bytes) { return (bytes + VIEW_GRAIN - 1) & ~(uint64_t)(VIEW_GRAIN - 1); }

/* Managed memory, out of line: few programs use it. */
static __attribute__((noinline)) int take_managed(uint32_t column, uint64_t bytes) {
  return ledger_charge_part(runtime_ledger, LEDGER_MANAGED, column & COLUMN_NUMBER, bytes, 1);
}

static inline int is_managed(uint32_t column) { return !VC_LIKELY(column < COLUMN_MANAGED); }

static __attribute__((noinline, cold)) CUresult charge_after_reclaiming(uint32_t column, uint64_t bytes, int status) {
  if (status == VC_ENOMEM && allocators_reclaim(column & COLUMN_NUMBER))
    status = is_managed(column) ? take_managed(column, bytes) : ledger_charge(runtime_ledger, column, bytes);
  return status >= 0 ? CUDA_SUCCESS : refusal(column, bytes, status);
}

static __attribute__((noinline)) CUresult charge_managed(uint32_t column, uint64_t bytes) {
  int status = bytes == 0 ? VC_OK : take_managed(column, bytes);
  return status >= 0 ? CUDA_SUCCESS : charge_after_reclaiming(column, bytes, status);
}

CUresult charge_column(uint32_t column, uint64_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (is_managed(column)) return charge_managed(column, bytes);
  if (bytes >= UNDECLARED_LARGE) undeclared_glance(column);
  int status = ledger_charge(runtime_ledger, column, bytes);
  return VC_LIKELY(status >= 0) ? CUDA_SUCCESS : charge_after_reclaiming(column, bytes, status);
}

CUresult charge_try(uint32_t column, uint64_t bytes) {
  if (is_managed(column)) {
    int managed = bytes == 0 ? VC_OK : take_managed(column, bytes);
    return managed >= 0 ? CUDA_SUCCESS : refusal(column, bytes, managed);
  }
  int status = bytes == 0 ? VC_OK : ledger_charge(runtime_ledger, column, bytes);
  return VC_LIKELY(status >= 0) ? CUDA_SUCCESS : refusal(column, bytes, status);
}

__attribute__((noinline, cold)) void charge_driver_refused(uint32_t column, uint64_t bytes) {
  ledger_driver_refused(runtime_ledger, column & COLUMN_NUMBER, bytes);
  refusal_note(REFUSAL_DRIVER, column & COLUMN_NUMBER, bytes);
}

void charge_return(uint32_t column, uint64_t bytes) {
  if (is_managed(column))
    ledger_uncharge_part(runtime_ledger, LEDGER_MANAGED, column & COLUMN_NUMBER, bytes);
  else
    ledger_uncharge(runtime_ledger, column, bytes);
}

static CUresult begin(struct charge *charge, uint32_t column, uint32_t owner, uint64_t bytes) {
  if (bytes > VC_MAX_BYTES) return refusal(column, bytes, VC_ENOMEM);
  charge->column = column;
  charge->owner = owner;
  charge->bytes = charge_round(bytes);
  CUresult result = charge_column(charge->column, charge->bytes);
  charge->taken = result == CUDA_SUCCESS;
  return result;
}

CUresult charge_begin_at(struct charge *charge, int column, uint32_t owner, uint64_t bytes) {
  charge->taken = 0;
  return VC_LIKELY(column >= 0) ? begin(charge, (uint32_t)column, owner, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_begin(struct charge *charge, uint64_t bytes) {
  struct place place;
  charge->taken = 0;
  CUresult result = context_place(&place);
  return VC_LIKELY(result == CUDA_SUCCESS) ? begin(charge, place.column, place.owner, bytes) : result;
}

/* One try without reclaiming. COUNTED: a refusal is counted as one, since nothing else will be tried. */
static int take_placed(struct charge *charge, enum charge_placement placement, int counted) {
  uint32_t column = charge->column & COLUMN_NUMBER;
  int managed_first = placement != CHARGE_EITHER;
  int status = ledger_charge_part(runtime_ledger, managed_first ? LEDGER_MANAGED : LEDGER_REAL, column, charge->bytes,
                                  counted && placement == CHARGE_MANAGED);
  int managed = managed_first;
  if (status == VC_ENOMEM && placement != CHARGE_MANAGED) {
    managed = !managed_first;
    status = ledger_charge_part(runtime_ledger, managed ? LEDGER_MANAGED : LEDGER_REAL, column, charge->bytes, counted);
  }
  charge->column = column | (managed ? COLUMN_MANAGED : 0);
  if (managed && placement != CHARGE_MANAGED_FIRST) charge->column |= COLUMN_CONVERTED;
  return status;
}

static __attribute__((noinline)) CUresult begin_placed(struct charge *charge, const struct place *place, uint64_t bytes,
                                                     enum charge_placement placement) {
  if (bytes > VC_MAX_BYTES) return refusal(place->column, bytes, VC_ENOMEM);
  *charge = (struct charge){.column = place->column, .owner = place->owner, .bytes = charge_round(bytes)};
  if (charge->bytes >= UNDECLARED_LARGE) undeclared_glance(place->column);
  int status = take_placed(charge, placement, 0);
  if (status == VC_ENOMEM) {
    allocators_reclaim(place->column);
    status = take_placed(charge, placement, 1);
  }
  charge->taken = status == VC_OK;
  return status == VC_OK ? CUDA_SUCCESS : refusal(charge->column, charge->bytes, status);
}

CUresult charge_begin_placed(struct charge *charge, uint64_t bytes, enum charge_placement placement) {
  struct place place;
  charge->taken = 0;
  CUresult result = context_place(&place);
  if (result != CUDA_SUCCESS) return result;
  if (VC_LIKELY(!ledger_is_split(runtime_ledger))) return begin(charge, place.column, place.owner, bytes);
  return begin_placed(charge, &place, bytes, placement);
}

int charge_may_be_managed(const struct charge *charge) {
  return charge->taken && ledger_is_split(runtime_ledger) && ledger_host_budget(runtime_ledger, charge->column) != 0;
}

void charge_cancel(struct charge *charge) {
  if (charge->taken) charge_return(charge->column, charge->bytes);
  charge->taken = 0;
}

CUresult charge_end(struct charge *charge, enum allocation_kind kind, CUresult result, uint64_t key, charge_call *undo) {
  struct table_entry old;
  if (!charge->taken) return result;
  if (result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !is_managed(charge->column))
      charge_driver_refused(charge->column, charge->bytes);
    charge_cancel(charge);
    return result;
  }
  const struct table_entry entry = {key, charge->bytes, charge->column, charge->owner};
  int status = table_put(&allocations[kind], &entry, &old);
  refusal_passed();
  if (VC_LIKELY(status == 0)) return CUDA_SUCCESS;
  if (status == 1) { /* the driver gave out a key that is in the table: it was freed by a call that is not hooked */
    charge_return(old.column, old.bytes);
    return CUDA_SUCCESS;
  }
  undo(key);
  charge_cancel(charge);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_raise(struct charge *charge, uint64_t bytes) {
  if (!charge->taken) return CUDA_SUCCESS;
  if (bytes > VC_MAX_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
  bytes = charge_round(bytes);
  if (bytes <= charge->bytes) return CUDA_SUCCESS;
  CUresult result = charge_column(charge->column, bytes - charge->bytes);
  if (result == CUDA_SUCCESS) charge->bytes = bytes;
  return result;
}

int charge_take(enum allocation_kind kind, uint64_t key, struct table_entry *out) {
  return key != 0 && table_take(&allocations[kind], key, out);
}

__attribute__((noinline, cold)) void charge_put_back(enum allocation_kind kind, const struct table_entry *entry) {
  struct table_entry old;
  table_put_back(&allocations[kind], entry, &old);
}

/* Out of the table first: once the driver has freed the block, another thread may be given the same address. */
CUresult charge_free(enum allocation_kind kind, uint64_t key, charge_call *call) {
  struct table_entry entry;
  if (!charge_take(kind, key, &entry)) return call(key);
  CUresult result = call(key);
  if (VC_LIKELY(result == CUDA_SUCCESS))
    charge_return(entry.column, entry.bytes);
  else
    charge_put_back(kind, &entry);
  return result;
}

static void forget(const struct table_entry *entry, void *data) {
  (void)data;
  charge_return(entry->column, entry->bytes);
}

static void forget_owner(uint32_t owner) {
  for (int kind = 0; kind < ALLOCATION_KINDS; kind++) table_take_owner(&allocations[kind], owner, forget, NULL);
}

int charge_is_converted(uint64_t key) {
  struct table_entry entry;
  return key != 0 && table_get(&allocations[ALLOCATION_LINEAR], key, &entry) && (entry.column & COLUMN_CONVERTED) != 0;
}

uint32_t charge_converted(uint32_t column, struct table_entry *out, uint32_t max) {
  return table_collect(&allocations[ALLOCATION_LINEAR], column | COLUMN_MANAGED | COLUMN_CONVERTED, out, max);
}

void charge_after_fork(void) {
  for (int kind = 0; kind < ALLOCATION_KINDS; kind++) table_reset(&allocations[kind]);
}

static uint64_t managed_usage(uint32_t column) {
  struct table *linear = &allocations[ALLOCATION_LINEAR];
  return table_sum(linear, column | COLUMN_MANAGED) + table_sum(linear, column | COLUMN_MANAGED | COLUMN_CONVERTED);
}

static uint64_t usage(uint32_t column) {
  uint64_t sum = managed_usage(column);
  for (int kind = 0; kind < ALLOCATION_KINDS; kind++) sum += table_sum(&allocations[kind], column);
  return sum;
}

ALLOCATOR(charge) = {.usage = usage, .managed_usage = managed_usage, .forget_owner = forget_owner};
