/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a compute share: bucket, pace, and the window of a stream.
 *
 * A container's bucket of GPU time is filled as time passes at the rate of its share, emptied by what its work took. A
 * launch goes when the bucket is not in debt. Debt is kept, so the share is exact in the long run however long single
 * kernels are; what an idle container earns is kept for one period (200 ms) only, so no container saves up and then
 * takes the GPU.
 *
 * Three words, changed by all processes of the container at once and by none under a lock:
 * - the process that moves the time forward (a compare-and-swap has one winner) adds what was earned in between;
 * - the first process that sees new credit adds it, likewise;
 * - what is spent is only added.
 * A process killed between winning and adding loses its container the earnings of one tick, about a millisecond.
 * Everything errs to the side of having less. The file is the container's own, so absurd numbers only have to be
 * harmless: a debt has a largest size, and a clock that jumped back starts again.
 * Uses no clock, no GPU. Tests: tests/unit/native/test_bucket.py and test_window.py,
 * tests/unit/gigaslice/core/limits/test_compute_shares.py. */
#include "shm.h"

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

static int swap(uint64_t *word, uint64_t seen, uint64_t next) {
  return __atomic_compare_exchange_n(word, &seen, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static const uint64_t most_ns = UINT64_C(1000000000) * VC_BUCKET_DEBT_MAX_S;

/* What was earned since the last time; 0 for all callers but the first. */
static uint64_t earned(struct vc_bucket *bucket, uint64_t now, uint32_t permille) {
  uint64_t last = load(&bucket->last_ns);
  if (last == now) return 0;
  if (last == 0 || (last > now && last - now > most_ns)) {
    swap(&bucket->last_ns, last, now);
    return 0;
  }
  if (last > now || !swap(&bucket->last_ns, last, now)) return 0;
  uint64_t passed = now - last < most_ns * 1000 ? now - last : most_ns * 1000;
  return passed / 1000 * permille + passed % 1000 * permille / 1000;
}

static uint64_t credited(struct vc_bucket *bucket, uint64_t credit_us) {
  uint64_t seen = load(&bucket->credit_us);
  if (seen == credit_us || !swap(&bucket->credit_us, seen, credit_us) || credit_us < seen) return 0;
  uint64_t ns = (credit_us - seen) * 1000;
  return ns < most_ns ? ns : most_ns;
}

/* What a bucket holds at most: a period's earnings, and never less than a few ticks of measuring. A container that
 * always has work but must share the GPU with others that run alternately earns more than it spends for a while, and
 * the other way round: a shorter period would lose what it has to get back. */
static int64_t room(uint32_t permille) {
  int64_t period = (int64_t)VC_BUCKET_PERIOD_MS * 1000 * permille;
  return period > 4000000 ? period : 4000000;
}

void bucket_fill(struct vc_bucket *bucket, uint64_t now_ns, uint32_t permille, uint64_t credit_us) {
  uint64_t more = earned(bucket, now_ns, permille) + credited(bucket, credit_us);
  for (;;) {
    uint64_t earned = load(&bucket->earned_ns), spent = load(&bucket->spent_ns);
    int64_t level = (int64_t)(earned - spent + more);
    if (level > room(permille)) level = room(permille);
    if (level < -(int64_t)most_ns) level = -(int64_t)most_ns;
    uint64_t next = spent + (uint64_t)level;
    if (next == earned || swap(&bucket->earned_ns, earned, next)) return;
  }
}

void bucket_spend(struct vc_bucket *bucket, uint64_t ns) {
  __atomic_fetch_add(&bucket->spent_ns, ns, __ATOMIC_SEQ_CST);
}

/* splitmix64's finalizer: instants that no program can fall into step with. */
static uint64_t scattered(uint64_t number) {
  number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
  return number ^ number >> 31;
}

static uint64_t instant_of(uint64_t tick) { return tick * VC_POLL_TICK_NS + scattered(tick) % VC_POLL_TICK_NS; }

/* Processes take turns on the GPU, so what a process got at an instant depends on how many others had work at that same
 * instant. Polls at instants of each process's own were tried: of processes whose kernels and pauses alternate within a
 * tick they show too many at once and a container's work too long, and a neighbour was given back up to 6 % of a GPU
 * that it had had. */
uint64_t poll_instant(uint64_t now_ns) {
  uint64_t tick = now_ns / VC_POLL_TICK_NS, instant = instant_of(tick);
  return instant > now_ns ? instant : instant_of(tick + 1);
}

int64_t bucket_level(const struct vc_bucket *bucket) {
  return (int64_t)(load(&bucket->earned_ns) - load(&bucket->spent_ns));
}

static int64_t gathered(uint32_t permille) { return (int64_t)VC_PACE_GATHER_MS * 1000 * permille; }

void pace_begin(struct vc_pace *pace, int64_t level, uint32_t permille, uint64_t now_ns) {
  pace->owed_ns = level < 0 ? gathered(permille) - level : 0;
  pace->since_ns = now_ns;
}

uint64_t pace_nap(struct vc_pace *pace, int64_t level, uint32_t permille, uint64_t now_ns) {
  uint64_t passed = now_ns > pace->since_ns ? now_ns - pace->since_ns : 0;
  pace->since_ns = now_ns;
  if (passed > most_ns) passed = most_ns;
  pace->owed_ns -= (int64_t)(passed * permille / 1000);
  int64_t missing = gathered(permille) - level;
  if (pace->owed_ns > missing) pace->owed_ns = missing;
  if (pace->owed_ns <= 0) return 0;
  uint64_t nap = (uint64_t)pace->owed_ns * 1000 / (permille != 0 ? permille : 1);
  if (nap > VC_PACE_NAP_MAX_NS) return VC_PACE_NAP_MAX_NS;
  return nap > VC_PACE_NAP_MIN_NS ? nap : VC_PACE_NAP_MIN_NS;
}

/* How far a stream may run ahead. A share is kept by holding launches back, which only helps while the work that was
 * launched already is short: a thousand kernels of a millisecond in the queue are a second of the GPU that cannot be
 * taken back. A kernel's length is not known beforehand, so the queue is measured: a fence behind N launches that is
 * passed after D gives D / N for each (including the wait for other containers, which is part of the queue's length).
 * The number of launches follows from the longest of these times lately, which counts at once and fades by a quarter
 * with every fence. A mean of the last fence alone would be that of one short kernel, and open the window for the long
 * ones behind it: the processes of a container would queue a second of them, and a neighbour whose bucket is full
 * meanwhile would never get back what it earned. A stream begins as if its kernels were long, and has thousands after
 * some thirty fences if they are short. A queue that stood still for seconds says nothing about kernels, so no more
 * than two windows are remembered. */
enum { FADING = 4, LONGEST_WINDOWS = 2 };

void window_reset(struct vc_window *window) { *window = (struct vc_window){.allowed = 1, .each_ns = VC_WINDOW_NS}; }

void window_passed(struct vc_window *window, uint32_t outstanding, uint64_t delay_ns) {
  uint64_t each = delay_ns / (outstanding != 0 ? outstanding : 1), most = (uint64_t)LONGEST_WINDOWS * VC_WINDOW_NS;
  uint64_t faded = window->each_ns - window->each_ns / FADING;
  if (each < faded) each = faded;
  window->each_ns = each < most ? each : most;
  uint64_t fit = (uint64_t)VC_WINDOW_NS / (window->each_ns != 0 ? window->each_ns : 1);
  if (fit > VC_WINDOW_MAX) fit = VC_WINDOW_MAX;
  window->allowed = fit != 0 ? (uint32_t)fit : 1;
}
