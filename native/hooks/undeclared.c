/* SPDX-License-Identifier: Apache-2.0 */
/* See undeclared.h.
 *
 * The undeclared bytes of a process are what NVML gives for it, less what it has charged, less what an agent has
 * published as measured: what the agent counts already is not counted twice. They are part of the slot's charge, so
 * that old readers and an agent that subtracts declarations from measurements are right without knowing of it.
 * - A reading is used when the slot did not change while NVML was read. Between other threads' charges there is no
 *   such moment: then the undeclared bytes may shrink, not grow. The process's charge is never less than what it holds
 *   by hooked calls (charged before the driver is asked, given back after it), so what is found is never too much.
 * - No driver call is made under the lock, only NVML's, and no thread waits long for it: a module may be loaded from a
 *   callback inside the driver.
 * Uses no allocator. Tests: tests/integration/test_native_undeclared.py. */
#include "undeclared.h"

#include <stdatomic.h>

#include "nvml_probe.h"
#include "runtime_state.h"
#include "ledger.h"
#include "lock.h"

enum { STALE_NS = 200000000, PATIENCE_MS = 20, TRIES = 3 };

struct undeclared {
  struct long_lock lock;
  _Atomic uint64_t bytes; /* written under the lock */
  _Atomic uint64_t measured; /* os_coarse_stamp() */
  _Atomic int held; /* calls of undeclared_hold() without undeclared_release() */
};

static struct undeclared columns[VC_MAX_GPUS];
/* PROMISED: another process of the quota has seen it. Whether that holds for this one is asked when it matters, since
 * the answer takes as long as everything else that a first context is charged. */
enum { UNSEEN, PROMISED, SEEN };
static _Atomic int measurable;
static _Thread_local char self; /* its address is the thread's name */

void undeclared_learn(const struct growth_view *before, const struct growth_view *after) {
  if (growth_proves((uint32_t)os_pid(), before, after)) atomic_store_explicit(&measurable, SEEN, memory_order_release);
}

void undeclared_trust(void) {
  int unseen = UNSEEN;
  atomic_compare_exchange_strong(&measurable, &unseen, PROMISED);
}

int undeclared_is_measurable(void) { return atomic_load_explicit(&measurable, memory_order_acquire) != UNSEEN; }

static __attribute__((noinline, cold)) int check_promise(void) {
  int promised = PROMISED;
  atomic_compare_exchange_strong(&measurable, &promised, ledger_learned_here(runtime_ledger) ? SEEN : UNSEEN);
  return atomic_load_explicit(&measurable, memory_order_acquire) == SEEN;
}

int undeclared_is_certain(void) {
  int known = atomic_load_explicit(&measurable, memory_order_acquire);
  return known == PROMISED ? check_promise() : known == SEEN;
}

void undeclared_prepare(void) {
  if (undeclared_is_certain()) nvml_probe_prepare();
}

void undeclared_hold(uint32_t column) { atomic_fetch_add(&columns[column].held, 1); }

void undeclared_release(uint32_t column) { atomic_fetch_sub(&columns[column].held, 1); }

uint64_t undeclared_bytes(uint32_t column) { return atomic_load_explicit(&columns[column].bytes, memory_order_relaxed); }

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static uint64_t whole_units(uint64_t bytes) {
  uint64_t most = UINT64_C(0xffff) * VC_UNDECLARED_UNIT;
  bytes -= bytes % VC_UNDECLARED_UNIT;
  return bytes < most ? bytes : most;
}

/* What NVML gives for this process. Negative: nothing. */
static int measure_self(uint32_t column, uint64_t *held) {
  struct growth_view view;
  if (!nvml_probe_read(column, &view)) return -1;
  *held = growth_held((uint32_t)os_pid(), &view);
  nvml_probe_drop(&view);
  return view.listed ? 0 : -1;
}

/* One reading. 1: nothing was charged or given back meanwhile. Negative: unknown. */
static int measure_once(uint32_t column, uint64_t counted, uint64_t *undeclared) {
  struct ledger_holding before, after;
  uint64_t held;
  if (ledger_holding(runtime_ledger, column, &before) != VC_OK || measure_self(column, &held) < 0 ||
      ledger_holding(runtime_ledger, column, &after) != VC_OK)
    return -1;
  uint64_t charged = before.bytes > after.bytes ? before.bytes : after.bytes;
  uint64_t beyond = less(held, less(charged, counted));
  *undeclared = whole_units(less(beyond, ledger_unhooked(runtime_ledger, column)));
  return before.state == after.state;
}

/* What should be counted instead of what is. Under the lock. */
static uint64_t measure(uint32_t column) {
  struct undeclared *own = &columns[column];
  uint64_t counted = undeclared_bytes(column), undeclared = counted;
  atomic_store_explicit(&own->measured, os_coarse_stamp(), memory_order_relaxed);
  if (atomic_load(&own->held)) return counted;
  for (int tries = 0; tries < TRIES; tries++) {
    int quiet = measure_once(column, counted, &undeclared);
    if (quiet < 0) return counted;
    if (quiet > 0 || undeclared <= counted) return undeclared;
  }
  return counted;
}

/* What was counted is now what is charged. */
static void note(uint32_t column, uint64_t bytes) {
  atomic_store_explicit(&columns[column].bytes, bytes, memory_order_relaxed);
  ledger_note_undeclared(runtime_ledger, column, bytes);
}

static void count(uint32_t column, uint64_t bytes) {
  uint64_t counted = undeclared_bytes(column);
  if (bytes > counted)
    ledger_charge_anyway(runtime_ledger, column, bytes - counted);
  else
    ledger_uncharge(runtime_ledger, column, counted - bytes);
  note(column, bytes);
}

static int begin(uint32_t column, unsigned int patience_ms) {
  return undeclared_is_certain() && long_lock_try(&columns[column].lock, &self, patience_ms);
}

static void end(uint32_t column) { long_lock_give(&columns[column].lock); }

void undeclared_renew(uint32_t column) {
  if (!begin(column, PATIENCE_MS)) return;
  count(column, measure(column));
  end(column);
}

void undeclared_renew_all(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (undeclared_bytes(column) != 0) undeclared_renew(column);
}

static int is_stale(const struct undeclared *own) {
  return os_coarse_stamp() - atomic_load_explicit(&own->measured, memory_order_relaxed) >= STALE_NS;
}

/* Without NVML there is nothing to measure. */
static __attribute__((noinline, cold)) void renew(uint32_t column) {
  atomic_store_explicit(&columns[column].measured, os_coarse_stamp(), memory_order_relaxed);
  if (!nvml_probe_is_prepared() || !begin(column, 0)) return;
  count(column, measure(column));
  end(column);
}

static __attribute__((noinline, cold)) void prepare_and_measure(uint32_t column) {
  undeclared_prepare();
  renew(column);
}

void undeclared_glance(uint32_t column) {
  if (undeclared_is_measurable() && is_stale(&columns[column])) renew(column);
}

void undeclared_show(uint32_t column) {
  if (undeclared_is_measurable() && is_stale(&columns[column])) prepare_and_measure(column);
}

CUresult undeclared_take(uint32_t column, undeclared_charge *charge) {
  CUresult result = CUDA_SUCCESS;
  if (!begin(column, PATIENCE_MS)) return CUDA_SUCCESS;
  uint64_t counted = undeclared_bytes(column), found = measure(column);
  if (found <= counted)
    count(column, found);
  else if ((result = charge(column, found - counted)) == CUDA_SUCCESS)
    note(column, found);
  end(column);
  return result;
}

int undeclared_shrink(uint32_t column) {
  if (undeclared_bytes(column) == 0 || !begin(column, PATIENCE_MS)) return 0;
  uint64_t counted = undeclared_bytes(column), found = measure(column);
  count(column, found);
  end(column);
  return found < counted;
}

void undeclared_after_fork(void) {
  atomic_store(&measurable, UNSEEN);
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++) columns[column] = (struct undeclared){.held = 0};
  nvml_probe_after_fork();
}
