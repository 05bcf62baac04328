/* Limits of a context that reserve device memory. The heap of the device's malloc and the buffer of its printf are
 * charged as they are asked for, although the driver may take them only with the first kernel that uses them: a heap that
 * was granted must not push others out later. What other limits take (stacks, nested launches) is measured.
 * Knows no allocator. Tests: tests/integration/test_native_module.py. */
#include "charge.h"
#include "context.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "excess.h"
#include "limit.h"
#include "lock.h"
#include "shm.h"

enum { PATIENCE_MS = 20 };

static struct long_lock changing; /* reading, setting and reading again must be one step */
static _Thread_local char self;

/* Owners are never 0 and limits are small. */
static uint64_t key_of(const struct place *place, CUlimit limit) { return (uint64_t)place->owner << 8 | (uint64_t)limit; }

/* Of a value that rises; the rounding of many small steps adds up to that of one. */
static uint64_t grain(uint64_t from, uint64_t to) { return to > from ? charge_round(to) - charge_round(from) : 0; }

/* What is booked for the limit changes by what its value changed: RESERVED is what was charged for that before. */
static CUresult book(const struct place *place, CUlimit limit, uint64_t before, uint64_t after, uint64_t reserved) {
  struct table_entry entry;
  uint64_t more = grain(before, after), gone = grain(after, before);
  if (more > reserved) { /* the driver rounded */
    CUresult result = charge_column(place->column, more - reserved);
    if (result != CUDA_SUCCESS) return result;
  } else if (reserved > more) {
    charge_return(place->column, reserved - more);
  }
  if (!charge_take(BOOK_LIMIT, key_of(place, limit), &entry))
    entry = (struct table_entry){key_of(place, limit), 0, place->column, place->owner};
  if (gone > entry.bytes) gone = entry.bytes; /* a value below the first one, which was never charged */
  charge_return(place->column, gone);
  entry.bytes += more;
  entry.bytes -= gone;
  if (entry.bytes != 0) charge_put_back(BOOK_LIMIT, &entry);
  return CUDA_SUCCESS;
}

static CUresult set_charged(const struct place *place, CUlimit limit, size_t before, size_t value) {
  size_t after = value;
  if (value > before && value - before > VC_MAX_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t reserved = grain(before, value);
  CUresult result = charge_column(place->column, reserved);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuCtxSetLimit(limit, value);
  if (result != CUDA_SUCCESS) {
    charge_return(place->column, reserved);
    return result;
  }
  real_cuda.cuCtxGetLimit(&after, limit);
  result = book(place, limit, before, after, reserved);
  if (result == CUDA_SUCCESS) return result;
  real_cuda.cuCtxSetLimit(limit, before);
  charge_return(place->column, reserved);
  return result;
}

static CUresult set_measured(const struct place *place, CUlimit limit, size_t before, size_t value) {
  CUresult result = real_cuda.cuCtxSetLimit(limit, value);
  if (result != CUDA_SUCCESS) return result;
  result = excess_take(place->column, charge_column);
  if (result != CUDA_SUCCESS) real_cuda.cuCtxSetLimit(limit, before);
  return result;
}

CUresult vc_cuCtxSetLimit(CUlimit limit, size_t value) {
  struct place place;
  size_t before;
  if (real_cuda.cuCtxGetLimit == NULL || context_place(&place) != VC_OK) return real_cuda.cuCtxSetLimit(limit, value);
  excess_prepare();
  int alone = long_lock_try(&changing, &self, PATIENCE_MS);
  CUresult result = real_cuda.cuCtxGetLimit(&before, limit);
  if (result != CUDA_SUCCESS)
    result = real_cuda.cuCtxSetLimit(limit, value); /* the driver's own error */
  else if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE)
    result = set_charged(&place, limit, before, value);
  else
    result = set_measured(&place, limit, before, value);
  if (alone) long_lock_give(&changing);
  return result;
}

void limit_after_fork(void) { long_lock_give(&changing); }
