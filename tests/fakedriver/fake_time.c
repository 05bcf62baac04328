/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated time of a GPU: work of one process runs in order, and the GPU goes round among the processes that have
 * work, in rounds too short to notice, as a real one does without MPS.
 *
 * So that no process has to compute for another, each GPU has a time of its own. It runs like the clock while at most
 * one process has work, half as fast with two, and so on: it is the time that every process with work has been given.
 * Work is done when that time reaches what it was when the work was submitted, or when the work before it ends, plus
 * what it takes. A process that reads it moves it forward, from one end of a process's work to the next. The last
 * changes of pace are remembered, to say when an instant was on the clock. A process that dies leaves the round when
 * its slot is freed. Must not depend on what work is. Tests: tests/unit/fakedriver/test_time.py. */
#include "fake_work.h"

#include <time.h>

enum { LONGEST_NAP = 500000 };

static void remember(struct fake_gpu_state *gpu) {
  unsigned index = gpu->rounds++ % FAKE_ROUNDS;
  gpu->round[index].real_ns = gpu->real_ns;
  gpu->round[index].own_ns = gpu->own_ns;
}

struct round {
  unsigned processes;
  uint64_t first_end;
};

static struct round find_round(unsigned index) {
  struct round round = {0, UINT64_MAX};
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++) {
    uint64_t end = atomic_load_explicit(&fake_state->slot[i].ends[index], memory_order_relaxed);
    if (end <= fake_state->gpu[index].own_ns || !atomic_load(&fake_state->slot[i].generation)) continue;
    round.processes++;
    if (end < round.first_end) round.first_end = end;
  }
  return round;
}

static void give(unsigned index, uint64_t ns) {
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++) {
    struct fake_slot *slot = &fake_state->slot[i];
    if (atomic_load_explicit(&slot->ends[index], memory_order_relaxed) > fake_state->gpu[index].own_ns)
      atomic_fetch_add(&slot->busy_ns[index], ns);
  }
}

/* Under the lock. Returns how many processes have work now. */
static unsigned move_on(unsigned index) {
  struct fake_gpu_state *gpu = &fake_state->gpu[index];
  uint64_t now = state_now_ns();
  if (gpu->own_ns == 0) gpu->own_ns = gpu->real_ns = now;
  for (;;) {
    struct round round = find_round(index);
    uint64_t passed = now > gpu->real_ns ? now - gpu->real_ns : 0, pace = round.processes ? round.processes : 1;
    uint64_t step = passed / pace;
    int ends = round.processes != 0 && step >= round.first_end - gpu->own_ns;
    if (ends) step = round.first_end - gpu->own_ns;
    give(index, step);
    gpu->own_ns += step;
    gpu->real_ns += step * pace;
    if (!ends) return round.processes;
    remember(gpu);
  }
}

static struct fake_gpu_state *begin(unsigned index, unsigned *processes) {
  struct fake_gpu_state *gpu = &fake_state->gpu[index];
  state_reap_if_hinted();
  state_lock(&gpu->time_lock);
  *processes = move_on(index);
  return gpu;
}

static void end(struct fake_gpu_state *gpu) { atomic_store(&gpu->time_lock, 0); }

uint64_t time_now(unsigned index) {
  unsigned processes;
  struct fake_gpu_state *gpu = begin(index, &processes);
  uint64_t now = gpu->own_ns;
  end(gpu);
  return now;
}

uint64_t time_reserve(unsigned index, uint64_t ns) {
  unsigned processes;
  struct fake_gpu_state *gpu = begin(index, &processes);
  _Atomic uint64_t *ends = &state_own_slot()->ends[index];
  uint64_t after = atomic_load(ends);
  if (after <= gpu->own_ns) {
    after = gpu->own_ns;
    remember(gpu);
  }
  atomic_store(ends, after + ns);
  end(gpu);
  return after + ns;
}

int time_is_over(unsigned index, uint64_t until) { return until == 0 || time_now(index) >= until; }

/* Alone, the rest is known. With others, it is at most as long as if all of them went on, and they may end sooner. */
void time_wait(unsigned index, uint64_t until) {
  if (until == 0) return;
  for (;;) {
    unsigned processes;
    struct fake_gpu_state *gpu = begin(index, &processes);
    uint64_t rest = until > gpu->own_ns ? until - gpu->own_ns : 0;
    end(gpu);
    if (rest == 0) return;
    work_sleep(processes > 1 && rest > LONGEST_NAP ? LONGEST_NAP : rest);
  }
}

uint64_t time_real(unsigned index, uint64_t at) {
  unsigned processes;
  struct fake_gpu_state *gpu = begin(index, &processes);
  uint64_t own = gpu->own_ns, real = gpu->real_ns;
  uint64_t known = gpu->rounds < FAKE_ROUNDS ? gpu->rounds : FAKE_ROUNDS;
  for (uint64_t back = 1; back <= known && own > at; back++) {
    unsigned at = (unsigned)((gpu->rounds - back) % FAKE_ROUNDS);
    uint64_t before_own = gpu->round[at].own_ns, before_real = gpu->round[at].real_ns;
    if (before_own <= at) {
      /* Between two changes the pace is even. */
      if (own > before_own)
        real = before_real + (uint64_t)((double)(real - before_real) * (double)(at - before_own) / (double)(own - before_own));
      own = at;
    } else {
      own = before_own;
      real = before_real;
    }
  }
  if (own > at) real -= own - at;
  end(gpu);
  return real;
}
