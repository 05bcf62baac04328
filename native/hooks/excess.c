/* See excess.h.
 *
 * The excess of a process is what NVML gives for it, less what it has charged, less what an agent has published as
 * measured: what the agent counts already is not counted twice. It is part of the slot's charge, so that old readers and
 * an agent that subtracts declarations from measurements are right without knowing of it.
 * - A look is believed when the slot did not change while NVML was asked. Between other threads' charges there is no
 *   such moment: then the excess may shrink, not grow. The process's charge is never less than what it holds by hooked
 *   calls (charged before the driver is asked, given back after it), so what is found is never too much.
 * - No driver call is made under the lock, only NVML's, and nobody waits long for it: a module may be loaded from a
 *   callback inside the driver.
 * Knows no allocator. Tests: tests/integration/test_native_excess.py. */
#include "excess.h"

#include <stdatomic.h>

#include "gauge.h"
#include "guest.h"
#include "ledger.h"
#include "lock.h"

enum { STALE_NS = 200000000, PATIENCE_MS = 20, TRIES = 3 };

struct excess {
  struct long_lock lock;
  _Atomic uint64_t bytes; /* written under the lock */
  _Atomic uint64_t measured; /* os_coarse_stamp() */
  _Atomic int held; /* calls of excess_hold() without excess_release() */
};

static struct excess columns[VC_MAX_GPUS];
/* PROMISED: another process of the quota has seen it. Whether that holds for this one is asked when it matters, since the
 * answer takes as long as everything else that a first context is charged. */
enum { UNSEEN, PROMISED, SEEN };
static _Atomic int measurable;
static _Thread_local char self; /* its address is the thread's name */

void excess_learn(const struct growth_view *before, const struct growth_view *after) {
  if (growth_proves((uint32_t)os_pid(), before, after)) atomic_store_explicit(&measurable, SEEN, memory_order_release);
}

void excess_trust(void) {
  int unseen = UNSEEN;
  atomic_compare_exchange_strong(&measurable, &unseen, PROMISED);
}

int excess_is_measurable(void) { return atomic_load_explicit(&measurable, memory_order_acquire) != UNSEEN; }

static __attribute__((noinline, cold)) int look_after_promise(void) {
  int promised = PROMISED;
  atomic_compare_exchange_strong(&measurable, &promised, ledger_learned_here(guest_ledger) ? SEEN : UNSEEN);
  return atomic_load_explicit(&measurable, memory_order_acquire) == SEEN;
}

int excess_is_certain(void) {
  int known = atomic_load_explicit(&measurable, memory_order_acquire);
  return known == PROMISED ? look_after_promise() : known == SEEN;
}

void excess_prepare(void) {
  if (excess_is_certain()) gauge_prepare();
}

void excess_hold(uint32_t column) { atomic_fetch_add(&columns[column].held, 1); }

void excess_release(uint32_t column) { atomic_fetch_sub(&columns[column].held, 1); }

uint64_t excess_bytes(uint32_t column) { return atomic_load_explicit(&columns[column].bytes, memory_order_relaxed); }

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static uint64_t whole_units(uint64_t bytes) {
  uint64_t most = UINT64_C(0xffff) * VC_EXCESS_UNIT;
  bytes -= bytes % VC_EXCESS_UNIT;
  return bytes < most ? bytes : most;
}

/* What NVML gives for this process. Negative: nothing. */
static int look_at_self(uint32_t column, uint64_t *held) {
  struct growth_view view;
  if (!gauge_look(column, &view)) return -1;
  *held = growth_held((uint32_t)os_pid(), &view);
  gauge_drop(&view);
  return view.listed ? 0 : -1;
}

/* One look. 1: nothing was charged or given back meanwhile. Negative: nothing can be said. */
static int look(uint32_t column, uint64_t counted, uint64_t *excess) {
  struct ledger_holding before, after;
  uint64_t held;
  if (ledger_holding(guest_ledger, column, &before) != VC_OK || look_at_self(column, &held) < 0 ||
      ledger_holding(guest_ledger, column, &after) != VC_OK)
    return -1;
  uint64_t charged = before.bytes > after.bytes ? before.bytes : after.bytes;
  uint64_t beyond = less(held, less(charged, counted));
  *excess = whole_units(less(beyond, ledger_unhooked(guest_ledger, column)));
  return before.state == after.state;
}

/* What should be counted instead of what is. Under the lock. */
static uint64_t measure(uint32_t column) {
  struct excess *own = &columns[column];
  uint64_t counted = excess_bytes(column), excess = counted;
  atomic_store_explicit(&own->measured, os_coarse_stamp(), memory_order_relaxed);
  if (atomic_load(&own->held)) return counted;
  for (int tries = 0; tries < TRIES; tries++) {
    int quiet = look(column, counted, &excess);
    if (quiet < 0) return counted;
    if (quiet > 0 || excess <= counted) return excess;
  }
  return counted;
}

/* What was counted is now what is charged. */
static void note(uint32_t column, uint64_t bytes) {
  atomic_store_explicit(&columns[column].bytes, bytes, memory_order_relaxed);
  ledger_note_excess(guest_ledger, column, bytes);
}

static void count(uint32_t column, uint64_t bytes) {
  uint64_t counted = excess_bytes(column);
  if (bytes > counted)
    ledger_charge_anyway(guest_ledger, column, bytes - counted);
  else
    ledger_uncharge(guest_ledger, column, counted - bytes);
  note(column, bytes);
}

static int begin(uint32_t column, unsigned int patience_ms) {
  return excess_is_certain() && long_lock_try(&columns[column].lock, &self, patience_ms);
}

static void end(uint32_t column) { long_lock_give(&columns[column].lock); }

void excess_renew(uint32_t column) {
  if (!begin(column, PATIENCE_MS)) return;
  count(column, measure(column));
  end(column);
}

void excess_renew_all(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (excess_bytes(column) != 0) excess_renew(column);
}

static int is_stale(const struct excess *own) {
  return os_coarse_stamp() - atomic_load_explicit(&own->measured, memory_order_relaxed) >= STALE_NS;
}

/* Without NVML there is nothing to look at. */
static __attribute__((noinline, cold)) void look_again(uint32_t column) {
  atomic_store_explicit(&columns[column].measured, os_coarse_stamp(), memory_order_relaxed);
  if (!gauge_is_prepared() || !begin(column, 0)) return;
  count(column, measure(column));
  end(column);
}

static __attribute__((noinline, cold)) void prepare_and_look(uint32_t column) {
  excess_prepare();
  look_again(column);
}

void excess_glance(uint32_t column) {
  if (excess_is_measurable() && is_stale(&columns[column])) look_again(column);
}

void excess_show(uint32_t column) {
  if (excess_is_measurable() && is_stale(&columns[column])) prepare_and_look(column);
}

CUresult excess_take(uint32_t column, excess_charge *charge) {
  CUresult result = CUDA_SUCCESS;
  if (!begin(column, PATIENCE_MS)) return CUDA_SUCCESS;
  uint64_t counted = excess_bytes(column), found = measure(column);
  if (found <= counted)
    count(column, found);
  else if ((result = charge(column, found - counted)) == CUDA_SUCCESS)
    note(column, found);
  end(column);
  return result;
}

int excess_shrink(uint32_t column) {
  if (excess_bytes(column) == 0 || !begin(column, PATIENCE_MS)) return 0;
  uint64_t counted = excess_bytes(column), found = measure(column);
  count(column, found);
  end(column);
  return found < counted;
}

void excess_after_fork(void) {
  atomic_store(&measurable, UNSEEN);
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) columns[column] = (struct excess){.held = 0};
  gauge_after_fork();
}
