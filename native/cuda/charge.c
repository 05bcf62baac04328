/* Reservations and the books of live addresses.
 * Knows no particular allocator. Tests: tests/integration/test_native_quota.py. */
#include "charge.h"

#include "context.h"
#include "driver.h"
#include "guest.h"
#include "ledger.h"
#include "log.h"
#include "view.h"

static struct table books;

static CUresult refusal(int status) {
  static _Atomic int said;
  if (status == VC_ENOMEM) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "memory cannot be charged: %s; allocations are refused", status_text(status));
  return status == VC_EFULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_SYSTEM_NOT_READY;
}

static uint64_t round_up(uint64_t bytes) { return (bytes + VIEW_GRAIN - 1) & ~(uint64_t)(VIEW_GRAIN - 1); }

CUresult charge_column(uint32_t column, uint64_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  int status = ledger_charge(guest_ledger, column, bytes);
  return VC_LIKELY(status >= 0) ? CUDA_SUCCESS : refusal(status);
}

CUresult charge_begin(struct charge *charge, uint64_t bytes) {
  struct place place;
  charge->taken = 0;
  int status = context_place(&place);
  if (status == VC_ENOENT) return CUDA_ERROR_OUT_OF_MEMORY;
  if (status != VC_OK) return CUDA_SUCCESS;
  if (bytes > VC_MAX_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
  charge->column = place.column;
  charge->owner = place.owner;
  charge->bytes = round_up(bytes);
  CUresult result = charge_column(charge->column, charge->bytes);
  charge->taken = result == CUDA_SUCCESS;
  return result;
}

static void give_back(struct charge *charge) {
  ledger_uncharge(guest_ledger, charge->column, charge->bytes);
  charge->taken = 0;
}

CUresult charge_end(struct charge *charge, CUresult result, CUdeviceptr address) {
  struct table_entry old;
  if (!charge->taken) return result;
  if (result != CUDA_SUCCESS) {
    give_back(charge);
    return result;
  }
  const struct table_entry entry = {address, charge->bytes, charge->column, charge->owner};
  int status = table_put(&books, &entry, &old);
  if (VC_LIKELY(status == 0)) return CUDA_SUCCESS;
  if (status == 1) { /* the driver hands out an address that we thought live: it was freed where we do not look */
    ledger_uncharge(guest_ledger, old.column, old.bytes);
    return CUDA_SUCCESS;
  }
  if (real_cuda.cuMemFree_v2 != NULL) real_cuda.cuMemFree_v2(address);
  give_back(charge);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_correct(struct charge *charge, uint64_t bytes) {
  if (!charge->taken) return CUDA_SUCCESS;
  if (bytes > VC_MAX_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
  bytes = round_up(bytes);
  if (bytes > charge->bytes) {
    CUresult result = charge_column(charge->column, bytes - charge->bytes);
    if (result != CUDA_SUCCESS) return result;
  } else if (bytes < charge->bytes) {
    ledger_uncharge(guest_ledger, charge->column, charge->bytes - bytes);
  }
  charge->bytes = bytes;
  return CUDA_SUCCESS;
}

/* Out of the books first: once the driver has freed the block, another thread may be given the same address. */
CUresult charge_free(CUdeviceptr address, CUresult (*free_block)(CUdeviceptr)) {
  struct table_entry entry, old;
  if (address == 0 || !table_take(&books, address, &entry)) return free_block(address);
  CUresult result = free_block(address);
  if (VC_LIKELY(result == CUDA_SUCCESS))
    ledger_uncharge(guest_ledger, entry.column, entry.bytes);
  else
    table_put(&books, &entry, &old);
  return result;
}

static void forget(const struct table_entry *entry, void *data) {
  (void)data;
  ledger_uncharge(guest_ledger, entry->column, entry->bytes);
}

void charge_forget_owner(uint32_t owner) { table_take_owner(&books, owner, forget, NULL); }

void charge_after_fork(void) { table_reset(&books); }

uint64_t charge_usage(uint32_t column) { return table_sum(&books, column); }
