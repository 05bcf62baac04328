/* See poller.h. What a poll charges is decided in shm/bucket.c.
 *
 * Polls come at random instants, so that what they find is true on average: a program whose kernels and pauses
 * alternate within a tick is charged for the kernels only. A process that wakes the thread is charged as if the thread
 * had been polling all along: the poll before lies a random part of a tick back.
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

enum { TICK_NS = 1000000, IDLE_POLLS = 20, SETTLE_NS = 2000000, LEAVING_MS = 100 };

_Atomic uint32_t poller_open[VC_MAX_GPUS];
_Atomic uint32_t poller_awake;

static _Atomic uint32_t started, leaving;

/* Of the thread alone. */
static struct {
  uint64_t chance;
  uint32_t before;                /* columns busy at the last poll */
  uint32_t company[VC_MAX_GPUS];  /* processes busy then */
} own;

static uint64_t random_below(uint64_t limit) {
  own.chance ^= own.chance << 13;
  own.chance ^= own.chance >> 7;
  own.chance ^= own.chance << 17;
  return own.chance % limit;
}

static void pay(uint32_t column, uint32_t busy, uint64_t now_ns, uint64_t now_ms) {
  struct vc_bucket *bucket = ledger_bucket(runtime_ledger, column);
  uint32_t permille = ledger_permille(runtime_ledger, column, now_ms);
  uint32_t flying = ledger_flying(runtime_ledger, column, now_ms);
  uint64_t passed = ledger_poll(runtime_ledger, column, now_ns);
  int now = busy >> column & 1;
  bucket_spend(bucket, poll_charge(passed, own.before >> column & 1, now, own.company[column], flying, TICK_NS));
  bucket_fill(bucket, now_ns, permille, ledger_credit(runtime_ledger, column));
  own.company[column] = flying;
  atomic_store_explicit(&poller_open[column], permille >= 1000 || bucket_level(bucket) >= 0, memory_order_relaxed);
}

static int poll_all(void) {
  struct stream_poll view = stream_states_poll();
  uint64_t now_ns = os_now_ns(), now_ms = os_coarse_ms();
  ledger_fly(runtime_ledger, view.busy, now_ms);
  for (uint32_t column = 0; column < ledger_gpu_count(runtime_ledger); column++)
    pay(column, view.busy, now_ns, now_ms); /* also where nothing is under way: the time until now cost nothing */
  own.before = view.busy;
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

static void begin_ticks(uint64_t *pause) {
  uint64_t phase = random_below(TICK_NS), from = os_now_ns() - phase;
  for (uint32_t column = 0; column < ledger_gpu_count(runtime_ledger); column++)
    if (ledger_flying(runtime_ledger, column, os_coarse_ms()) == 0) ledger_poll_from(runtime_ledger, column, from);
  *pause = TICK_NS - phase;
}

static void *run(void *name) {
  int idle = IDLE_POLLS;
  uint64_t pause = TICK_NS;
  os_thread_name(name);
  capture_relax();
  own.chance = (os_now_ns() ^ (uint64_t)os_pid() << 32) | 1;
  while (!atomic_load(&leaving)) {
    if (idle >= IDLE_POLLS) {
      sleep_until_woken();
      begin_ticks(&pause);
    }
    os_sleep_us((uint32_t)(pause / 1000));
    pause = TICK_NS * 3 / 4 + random_below(TICK_NS / 2);
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
  own.before = 0;
  close_all();
}
