/* SPDX-License-Identifier: Apache-2.0 */
/* See poller.h. When to poll is decided in shm/bucket.c.
 *
 * Polls come at random instants, so that what they find is true on average: a program whose kernels and pauses
 * alternate within a tick is charged for the kernels only. They are the same instants in all processes, so that what is
 * found at once was under way at once. The time between two instants is charged if any process of the container had work
 * under way at the earlier one, by whichever of them is the first to poll.
 * Uses stream states and the ledger's share. Tests: tests/integration/test_native_share.py. */
#define _GNU_SOURCE
#include "poller.h"

#include "capture.h"
#include "ledger.h"
#include "loader.h"
#include "log.h"
#include "os.h"
#include "runtime_state.h"
#include "stream_state.h"

enum { IDLE_POLLS = 20, SETTLE_NS = 2000000, LEAVING_MS = 100 };

_Atomic uint32_t poller_open[VC_MAX_GPUS];
_Atomic uint32_t poller_awake;

static _Atomic uint32_t started, leaving;

static uint32_t busy_before; /* columns, at the thread's last poll */

/* BUSY: the process has had work all the time since its last poll, for all it knows. That counts where the poll is so
 * long ago (a container without processor time) that its word in the ledger is out of date. */
static void pay(uint32_t column, int busy, uint64_t now_ns, uint64_t now_ms) {
  struct vc_bucket *bucket = ledger_bucket(runtime_ledger, column);
  uint32_t permille = ledger_permille(runtime_ledger, column, now_ms);
  uint64_t passed = ledger_poll(runtime_ledger, column, now_ns);
  if (busy || ledger_flying(runtime_ledger, column, now_ms) != 0) bucket_spend(bucket, passed);
  bucket_fill(bucket, now_ns, permille, ledger_credit(runtime_ledger, column));
  atomic_store_explicit(&poller_open[column], permille >= 1000 || bucket_level(bucket) >= 0, memory_order_relaxed);
}

static int poll_all(void) {
  struct stream_poll view = stream_states_poll();
  uint64_t now_ns = os_now_ns(), now_ms = os_coarse_ms();
  for (uint32_t column = 0; column < ledger_gpu_count(runtime_ledger); column++)
    /* Also where nothing was under way: the time until now cost nothing. */
    pay(column, (busy_before & view.busy) >> column & 1, now_ns, now_ms);
  ledger_fly(runtime_ledger, view.busy, now_ms);
  busy_before = view.busy;
  return view.any;
}

static void close_all(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    atomic_store_explicit(&poller_open[column], 0, memory_order_relaxed);
}

/* A launch that came while the thread decided to sleep has noted itself in a stream state, perhaps only in its
 * processor's store buffer: a moment later it is visible. */
static void sleep_until_woken(void) {
  close_all();
  atomic_store(&poller_awake, 0);
  os_wait(&poller_awake, 0, SETTLE_NS);
  if (stream_states_are_dirty()) atomic_store(&poller_awake, 1);
  while (!atomic_load(&poller_awake)) os_wait(&poller_awake, 0, 0);
}

static void sleep_until_instant(void) {
  uint64_t now_ns = os_now_ns();
  os_sleep_us((uint32_t)((poll_instant(now_ns) - now_ns) / 1000 + 1));
}

static void *run(void *name) {
  int idle = IDLE_POLLS;
  os_thread_name(name);
  capture_relax();
  while (!atomic_load(&leaving)) {
    if (idle >= IDLE_POLLS) sleep_until_woken();
    sleep_until_instant();
    if (atomic_load(&leaving)) break;
    idle = poll_all() ? 0 : idle + 1;
  }
  return NULL;
}

/* The program ends, and the driver with it. No poll is under way when this returns; other threads may go on. */
static void leave(void *unused) {
  (void)unused;
  atomic_store(&leaving, 1);
  stream_polls_stop(LEAVING_MS);
}

void poller_wake(void) {
  static _Atomic uint32_t said;
  uint32_t none = 0;
  if (atomic_load(&leaving)) return;
  if (atomic_compare_exchange_strong(&started, &none, 1) && !loader_start_thread(run, "vcuda-share", leave)) {
    atomic_store(&started, 0);
    if (!atomic_exchange(&said, 1))
      log_line(LOG_ERROR, "no thread can be started, so this process's compute share does not hold; raise its limit of "
                          "threads (ulimit -u, pids cgroup)");
    return;
  }
  if (!atomic_exchange(&poller_awake, 1)) os_wake(&poller_awake);
}

void poller_after_fork(void) {
  stream_states_after_fork();
  atomic_store(&started, 0);
  atomic_store(&poller_awake, 0);
  busy_before = 0;
  close_all();
}
