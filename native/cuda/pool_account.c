/* SPDX-License-Identifier: Apache-2.0 */
/* See pool_account.h.
 * Uses the driver's attributes of a pool and the ledger, no stream. Tests: tests/integration/test_native_pool.py. */
#include "pool_account.h"

#include "capture.h"
#include "charge.h"
#include "driver.h"
#include "ledger.h"
#include "os.h"
#include "runtime_state.h"
#include "undeclared.h"

static const uint64_t smallest_step = UINT64_C(2) << 20, largest_step = UINT64_C(32) << 20;

_Atomic int pool_any_dirty;
static _Thread_local char self;

static inline uint64_t charged(const struct pool *pool) {
  return atomic_load_explicit(&pool->charge, memory_order_relaxed);
}

static inline uint32_t column_of(const struct pool *pool) {
  return atomic_load_explicit(&pool->column, memory_order_relaxed);
}

static inline uint32_t number_of(const struct pool *pool) { return column_of(pool) & COLUMN_NUMBER; }

static inline void set_charge(struct pool *pool, uint64_t bytes) {
  atomic_store_explicit(&pool->charge, bytes, memory_order_relaxed);
}

static inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t in_chunks(const struct pool *pool, uint64_t bytes) {
  uint64_t step = pool->step != 0 ? pool->step : smallest_step;
  return (bytes + step - 1) & ~(step - 1);
}

int pool_counts(const struct pool *pool, uint32_t column) {
  return atomic_load_explicit(&pool->kind, memory_order_relaxed) == POOL_COUNTED &&
         (atomic_load_explicit(&pool->column, memory_order_relaxed) & COLUMN_NUMBER) == column;
}

void pool_mark_dirty(struct pool *pool) {
  atomic_store_explicit(&pool->dirty, 1, memory_order_relaxed);
  if (!atomic_load_explicit(&pool_any_dirty, memory_order_relaxed))
    atomic_store_explicit(&pool_any_dirty, 1, memory_order_release);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

static inline int is_destroyed(const struct pool *pool) {
  return atomic_load_explicit(&pool->handle, memory_order_relaxed) == NULL;
}

static inline CUresult query(const struct pool *pool, CUmemPool_attribute attribute, cuuint64_t *out) {
  if (real_cuda.cuMemPoolGetAttribute == NULL || is_destroyed(pool)) return CUDA_ERROR_NOT_FOUND;
  return real_cuda.cuMemPoolGetAttribute(atomic_load_explicit(&pool->handle, memory_order_relaxed), attribute, out);
}

/* The largest power of two that divides every size seen. Learned too large it costs nothing but a second try. */
static void learn_chunk_size(struct pool *pool, uint64_t reserved) {
  uint64_t step = reserved & -reserved;
  if (step > largest_step) step = largest_step;
  if (step < smallest_step) step = smallest_step;
  if (reserved != 0 && (pool->step == 0 || step < pool->step)) pool->step = step;
}

/* The next reading corrects it, at the latest when something synchronises. */
static __attribute__((noinline, cold)) void assume_growth(struct pool *pool, uint64_t grown) {
  uint64_t step = pool->step != 0 ? pool->step : largest_step;
  pool->reserved += (grown + step - 1) & ~(step - 1);
  pool->unread = 1;
  pool_mark_dirty(pool);
}

/* When the driver does not answer, a pool keeps its last values, and what an allocation of GROWN may have added. */
static inline void settle_growth(struct pool *pool, uint64_t grown) {
  cuuint64_t reserved;
  if (VC_LIKELY(query(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS)) {
    pool->unread = 0;
    if (VC_LIKELY(reserved == pool->reserved)) return;
    learn_chunk_size(pool, reserved);
    pool->reserved = reserved;
  } else if (!is_destroyed(pool) || grown != 0) {
    assume_growth(pool, grown);
  }
}

/* While others are in the driver the whole chunks that they were charged for stay charged. */
static inline uint64_t chargeable(const struct pool *pool) {
  return larger(pool->reserved, VC_LIKELY(pool->in_flight == 0) ? pool->live : in_chunks(pool, pool->live));
}

static inline void lower_charge(struct pool *pool) {
  uint64_t want = chargeable(pool), have = charged(pool);
  if (VC_LIKELY(have <= want)) return;
  set_charge(pool, want);
  charge_return(column_of(pool), have - want);
}

/* --- debt -------------------------------------------------------------------------------------------------------- */

static inline int is_managed(const struct pool *pool) { return (column_of(pool) & COLUMN_MANAGED) != 0; }

static void charge_anyway(struct pool *pool, uint64_t need) {
  ledger_charge_anyway(runtime_ledger, number_of(pool), need - charged(pool));
  set_charge(pool, need);
}

/* There are no charges beyond a limit for managed memory: there the debt is only remembered, and until it is paid it is
 * the pool's, not undeclared bytes of the process. */
static void set_in_debt(struct pool *pool, int in_debt) {
  if (is_managed(pool) && in_debt && !pool->in_debt) undeclared_hold(number_of(pool));
  if (is_managed(pool) && !in_debt && pool->in_debt) undeclared_release(number_of(pool));
  if (in_debt && !pool->in_debt) pool->allowed = charged(pool);
  pool->in_debt = (uint8_t)in_debt;
}

/* What was charged beyond the limit is gone, or there is room for it by now. */
static CUresult debt_fits(const struct pool *pool) {
  if (is_managed(pool) || charged(pool) <= pool->allowed) return CUDA_SUCCESS;
  return ledger_charge_part(runtime_ledger, LEDGER_REAL, number_of(pool), 0, 0) == VC_OK ? CUDA_SUCCESS
                                                                                       : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What the pool holds is charged; what does not fit all the same, since it is taken from the others. */
static __attribute__((noinline)) CUresult pay_debt(struct pool *pool) {
  if (pool->in_debt) lower_charge(pool);
  uint64_t need = larger(pool->reserved, pool->live), have = charged(pool);
  CUresult result = need <= have ? debt_fits(pool) : charge_try(column_of(pool), need - have);
  if (result == CUDA_SUCCESS && need > have) set_charge(pool, need);
  set_in_debt(pool, result != CUDA_SUCCESS);
  if (result != CUDA_SUCCESS && need > have && !is_managed(pool)) charge_anyway(pool, need);
  return result;
}

/* --- allocating -------------------------------------------------------------------------------------------------- */

/* Charges what NEED lacks, in whole chunks if they fit. */
static __attribute__((noinline)) CUresult charge_chunks(struct pool *pool, uint64_t need) {
  if (pool->in_debt && pay_debt(pool) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t have = charged(pool), want = in_chunks(pool, need);
  if (need <= have) return CUDA_SUCCESS;
  CUresult result = charge_try(column_of(pool), want - have);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && need < want) result = charge_try(column_of(pool), (want = need) - have);
  if (result != CUDA_SUCCESS) return result;
  set_charge(pool, want);
  pool->growing++;
  undeclared_hold(number_of(pool)); /* what the driver takes now may be more, and is charged afterwards */
  return CUDA_SUCCESS;
}

static inline void finish_allocation(struct pool *pool) {
  if (--pool->in_flight != 0) return;
  for (; pool->growing != 0; pool->growing--) undeclared_release(number_of(pool));
}

/* Its debt is charged first: else each refused allocation could leave another chunk behind that waits for its
 * stream. */
CUresult pool_begin(struct pool *pool, uint64_t bytes) {
  CUresult result = CUDA_SUCCESS;
  if (!long_lock_take(&pool->lock, &self)) return CUDA_ERROR_OUT_OF_MEMORY; /* from inside the driver */
  uint64_t need = larger(pool->live + bytes, pool->reserved);
  if (need > charged(pool) || pool->in_debt) result = charge_chunks(pool, need);
  if (VC_LIKELY(result == CUDA_SUCCESS)) {
    pool->live += bytes;
    pool->in_flight++;
  }
  long_lock_give(&pool->lock);
  return result;
}

static CUresult correct(struct pool *pool, uint64_t grown) {
  settle_growth(pool, grown);
  if (VC_LIKELY(larger(pool->reserved, pool->live) <= charged(pool) && !pool->in_debt)) return CUDA_SUCCESS;
  return pay_debt(pool);
}

CUresult pool_settle(struct pool *pool, uint64_t bytes) {
  if (!long_lock_take(&pool->lock, &self)) return CUDA_SUCCESS;
  CUresult result = correct(pool, bytes);
  finish_allocation(pool);
  if (VC_LIKELY(result == CUDA_SUCCESS)) lower_charge(pool);
  long_lock_give(&pool->lock);
  return result;
}

CUresult pool_correct(struct pool *pool) {
  if (!long_lock_take(&pool->lock, &self)) return CUDA_SUCCESS;
  CUresult result = correct(pool, 0);
  long_lock_give(&pool->lock);
  return result;
}

/* With managed memory the pool stays in debt, which is charged before anything else. */
void pool_charge_anyway(struct pool *pool) {
  if (is_managed(pool) || !long_lock_take(&pool->lock, &self)) return;
  correct(pool, 0);
  set_in_debt(pool, 0);
  long_lock_give(&pool->lock);
}

static void forget_bytes(struct pool *pool, uint64_t bytes) { pool->live -= bytes < pool->live ? bytes : pool->live; }

void pool_cancel(struct pool *pool, uint64_t bytes) {
  if (!long_lock_take(&pool->lock, &self)) return;
  finish_allocation(pool);
  forget_bytes(pool, bytes);
  settle_growth(pool, 0);
  lower_charge(pool);
  long_lock_give(&pool->lock);
}

/* --- giving back ------------------------------------------------------------------------------------------------- */

/* 1: its charge would end by itself, and has now. */
static int end_lingering(struct pool *pool) {
  struct ledger_lingering lingering = pool->lingering;
  pool->lingering = (struct ledger_lingering){0, 0};
  ledger_linger_end(runtime_ledger, &lingering);
  return lingering.word != 0;
}

/* A destroyed pool whose last block is freed; the place can be used again. */
static int release_entry(struct pool *pool) {
  uint64_t bytes = charged(pool);
  if (pool->live != 0 || pool->in_flight != 0) return 0;
  set_in_debt(pool, 0);
  set_charge(pool, 0);
  if (!end_lingering(pool) && bytes != 0) charge_return(column_of(pool), bytes);
  pool->reserved = pool->step = pool->line = pool->since_ms = 0;
  pool->unread = pool->doubtful = 0;
  atomic_store_explicit(&pool->dirty, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->kind, POOL_UNUSED, memory_order_release);
  return bytes != 0;
}

/* Destroyed: what waits in it ends at the latest after a while, whatever the program does until then. */
static __attribute__((noinline, cold)) void await_frees(struct pool *pool) {
  pool_mark_dirty(pool);
  if (pool->live != 0 || pool->in_flight != 0) return;
  pool->since_ms = os_coarse_ms();
  if (pool->lingering.word == 0 && !is_managed(pool))
    ledger_linger(runtime_ledger, number_of(pool), charged(pool), &pool->lingering);
}

static int was_long_ago(const struct pool *pool) {
  if (pool->lingering.word == 0) return os_coarse_ms() - pool->since_ms >= LEDGER_LINGER_MS;
  ledger_lapse(runtime_ledger);
  return !ledger_lingers(runtime_ledger, &pool->lingering);
}

void pool_released(struct pool *pool, uint64_t bytes, uint64_t line) {
  int ours = long_lock_take(&pool->lock, &self);
  forget_bytes(pool, bytes);
  if (line != LINE_NONE) pool->line = pool->line == LINE_NONE || pool->line == line ? line : LINE_SEVERAL;
  if (VC_LIKELY(!is_destroyed(pool)))
    pool_mark_dirty(pool);
  else if (pool->line != LINE_NONE || pool->live != 0)
    await_frees(pool);
  else
    release_entry(pool);
  if (ours) long_lock_give(&pool->lock);
}

/* Whether a later synchronisation will still bring something back. */
static int expects_more(struct pool *pool) {
  cuuint64_t threshold = 0;
  if (pool->in_debt || pool->unread || pool->doubtful) return 1;
  if (pool->reserved <= in_chunks(pool, pool->live)) return 0;
  if (query(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) != CUDA_SUCCESS) return 0;
  return pool->reserved > threshold;
}

static inline int is_counted(const struct pool *pool) {
  return atomic_load_explicit(&pool->kind, memory_order_relaxed) == POOL_COUNTED;
}

static void reread(struct pool *pool) {
  if (!is_counted(pool)) return;
  if (!is_destroyed(pool)) {
    correct(pool, 0);
    lower_charge(pool);
    if (pool->reserved == 0) pool->line = LINE_NONE;
  } else if (pool->line == LINE_NONE || was_long_ago(pool)) {
    release_entry(pool);
  }
}

int pool_reread(struct pool *pool) {
  if (!long_lock_take(&pool->lock, &self)) return 0;
  uint64_t before = charged(pool);
  reread(pool);
  int less = charged(pool) < before;
  long_lock_give(&pool->lock);
  return less;
}

int pool_reread_after(struct pool *pool, uint64_t line) {
  if (!long_lock_take(&pool->lock, &self)) return 0;
  uint64_t before = charged(pool);
  atomic_store_explicit(&pool->dirty, 0, memory_order_relaxed);
  if (line == LINE_CONTEXT || line == pool->line) pool->line = LINE_NONE;
  reread(pool);
  if (is_counted(pool) && (is_destroyed(pool) ? pool->line != LINE_NONE : expects_more(pool))) pool_mark_dirty(pool);
  int less = charged(pool) < before;
  long_lock_give(&pool->lock);
  return less;
}

void pool_trim(struct pool *pool) {
  CUmemoryPool handle = atomic_load(&pool->handle);
  CUstreamCaptureMode mode = capture_relax();
  if (handle != NULL && real_cuda.cuMemPoolTrimTo != NULL) real_cuda.cuMemPoolTrimTo(handle, 0);
  capture_restore(mode);
}

int pool_is_in_debt(struct pool *pool) {
  if (!long_lock_take(&pool->lock, &self)) return 0;
  int owes = pool->in_debt;
  long_lock_give(&pool->lock);
  return owes;
}

/* Any other error tells nothing about what the pool holds. */
static int means_gone(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
         result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_DEINITIALIZED;
}

int pool_was_emptied(struct pool *pool) {
  cuuint64_t reserved, used = 0;
  if (is_destroyed(pool) || !long_lock_take(&pool->lock, &self)) return 0;
  int gone = means_gone(query(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  int known = gone || query(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS;
  int emptied = pool->in_flight == 0 && known && used == 0;
  if (pool->in_flight == 0 && known && used < pool->live) pool->live = used;
  if (gone) pool->reserved = 0;
  correct(pool, 0);
  if (gone) pool->unread = 0;
  pool->doubtful = !known;
  if (!known) pool_mark_dirty(pool);
  lower_charge(pool);
  long_lock_give(&pool->lock);
  return emptied;
}

void pool_destroyed(struct pool *pool) {
  if (!long_lock_take(&pool->lock, &self)) return;
  atomic_store_explicit(&pool->handle, NULL, memory_order_relaxed);
  if ((pool->line != LINE_NONE && pool->reserved != 0) || pool->live != 0 || pool->in_flight != 0)
    await_frees(pool);
  else
    release_entry(pool);
  long_lock_give(&pool->lock);
}

int pool_waits(struct pool *pool) {
  if (!long_lock_take(&pool->lock, &self)) return 0;
  int waits = is_destroyed(pool) ? pool->line != LINE_NONE : pool->reserved > in_chunks(pool, pool->live);
  long_lock_give(&pool->lock);
  return waits;
}
