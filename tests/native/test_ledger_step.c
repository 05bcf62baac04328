/* SPDX-License-Identifier: Apache-2.0 */
/* A process stopped after every instruction: what must hold between any two of them, and slots that change hands right
 * there. The same steps are those of tests/model/ledger.pml. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger_fixture.h"

enum { PIECE = 1000, STRIDE = 31 };

static void create(void) {
  struct vc_gpu_limit gpus[1] = {{.memory_bytes = 2 * PIECE, .physical_bytes = PIECE}};
  memcpy(gpus[0].uuid, gpu_a, 16);
  CHECK_EQ(ledger_create(test_path("ledger"), fixture_id, gpus, 1, 0666), 0);
  CHECK_EQ(limits_create(test_path("limits"), fixture_id, gpus, 1, 0644), 0);
}

static int ptrace_is_permitted(void) {
  int status;
  pid_t child = fork();
  if (child == 0) _Exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 ? 0 : 1);
  CHECK_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 1;
  fprintf(stderr, "skipped: ptrace is not permitted here\n");
  return 0;
}

/* A child that stands before the first instruction of WORK. */
static pid_t begin_as(struct ledger *ledger, int registered, void (*work)(struct ledger *)) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    ledger_after_fork(ledger);
    if (registered) {
      CHECK_EQ(ledger_charge(ledger, 0, 1), 0);
      ledger_uncharge(ledger, 0, 1);
    }
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    work(ledger);
    _Exit(0);
  }
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFSTOPPED(status));
  return child;
}

static pid_t begin(struct ledger *ledger, void (*work)(struct ledger *)) { return begin_as(ledger, 1, work); }

static pid_t begin_unregistered(struct ledger *ledger, void (*work)(struct ledger *)) { return begin_as(ledger, 0, work); }

/* One instruction more. 0: it has ended. */
static int step(pid_t child) {
  int status;
  CHECK_EQ(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
  CHECK_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) CHECK_EQ(WEXITSTATUS(status), 0);
  return !WIFEXITED(status);
}

static void run_to_its_end(pid_t child) {
  CHECK_EQ(ptrace(PTRACE_DETACH, child, NULL, NULL), 0);
  expect_exit(child, 0);
}

static int32_t slot_of(const struct ledger *ledger, pid_t child) {
  int32_t slot = 0;
  while (slot < VC_MAX_SLOTS && ledger->file->slot[slot].pid != child) slot++;
  CHECK(slot < VC_MAX_SLOTS);
  return slot;
}

static void charge_and_give_back(struct ledger *ledger) {
  for (enum ledger_part part = LEDGER_REAL; part <= LEDGER_MANAGED; part++) {
    CHECK_EQ(ledger_charge_part(ledger, part, 0, PIECE, 0), 0);
    CHECK_EQ(ledger_charge_part(ledger, part, 0, 1, 0), VC_ENOMEM);
    ledger_uncharge_part(ledger, part, 0, PIECE);
  }
}

/* Otherwise a process that was given room in a part could be refused by the whole. */
TEST(step_the_whole_never_holds_what_no_part_holds) {
  create();
  struct ledger *ledger = fixture_attach();
  if (!ptrace_is_permitted()) return;
  pid_t child = begin(ledger, charge_and_give_back);
  int32_t slot = slot_of(ledger, child);
  long instructions = 0, partly = 0;
  for (; step(child); instructions++) {
    uint64_t all = used_bytes(ledger->file->slot[slot].used[0]);
    uint64_t parts = used_bytes(ledger->split[slot].real[0]) + used_bytes(ledger->split[slot].managed[0]);
    CHECK(all <= parts && parts <= PIECE + 1);
    partly += all != parts;
  }
  CHECK(instructions > 100 && partly > 4); /* both ways of both parts have such an instant */
}

/* Killed anywhere, and a process that comes now gets all of both. */
TEST(step_killed_between_part_and_whole) {
  create();
  struct ledger *ledger = fixture_attach();
  if (!ptrace_is_permitted()) return;
  for (long count = 1, alive = 1; alive; count += STRIDE) {
    pid_t child = begin(ledger, charge_and_give_back);
    for (long i = 0; i < count && alive; i++) alive = step(child);
    if (alive) {
      CHECK_EQ(kill(child, SIGKILL), 0);
      CHECK_EQ(waitpid(child, NULL, 0), child);
    }
    pid_t heir = fork();
    if (heir == 0) {
      ledger_after_fork(ledger);
      charge_and_give_back(ledger);
      _Exit(0);
    }
    expect_exit(heir, 0);
  }
}

/* Another process empties the slot and takes it: all that its old owner sees. */
static void hand_over(struct ledger *ledger, int32_t slot, int32_t to) {
  struct ledger_slot *mine = &ledger->file->slot[to], *its = &ledger->file->slot[slot];
  atomic_fetch_add(&its->generation, 2);
  atomic_store(&its->used[0], USED_TICK);
  if (ledger->split != NULL) atomic_store(&ledger->split[slot].real[0], USED_TICK);
  atomic_store(&its->pid, atomic_load(&mine->pid));
  CHECK_EQ(os_hold_try(ledger->hold.file.fd, LEDGER_HOLDS + (uint32_t)slot), 1);
}

static void charge_real(struct ledger *ledger) {
  ledger_hold_release(&ledger->hold, (uint32_t)ledger->slot); /* as if the program had unmapped it: a slot that is held is not lost */
  CHECK_EQ(ledger_charge_part(ledger, LEDGER_REAL, 0, PIECE, 0), 0);
  CHECK(ledger->slot > 1);
  CHECK_EQ(used_bytes(ledger->file->slot[ledger->slot].used[0]), PIECE);
  CHECK_EQ(used_bytes(ledger->split[ledger->slot].real[0]), PIECE);
}

/* The new slot has the generation that the old one had: a number says nothing without its place. */
TEST(step_a_slot_lost_between_part_and_whole) {
  create();
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 1), 0);
  ledger_uncharge(ledger, 0, 1);
  if (!ptrace_is_permitted()) return;
  pid_t child = begin(ledger, charge_real);
  int32_t slot = slot_of(ledger, child);
  CHECK_EQ(slot, 1);
  while (used_bytes(ledger->split[slot].real[0]) == 0) CHECK(step(child));
  while (atomic_load(&ledger->file->slot[slot].mark[0]) != 0) CHECK(step(child)); /* granted */
  uint32_t generation = ledger->file->slot[slot].generation;
  hand_over(ledger, slot, ledger->slot);
  CHECK_EQ(ledger->file->slot[2].generation + 2, generation);
  run_to_its_end(child);
}

static void charge_whole(struct ledger *ledger) {
  CHECK_EQ(ledger_charge(ledger, 0, PIECE), 0);
  CHECK_EQ(used_bytes(ledger->file->slot[ledger->slot].used[0]), PIECE);
}

/* The process lost its slot and has it again, because another thread registered: what was added before is gone. */
TEST(step_a_slot_taken_again_by_another_thread) {
  fixture_create(4 * PIECE);
  struct ledger *ledger = fixture_attach();
  if (!ptrace_is_permitted()) return;
  for (int late = 0; late < 2; late++) { /* before the addition, and after it */
    pid_t child = begin(ledger, charge_whole);
    int32_t slot = slot_of(ledger, child);
    struct ledger_slot *its = &ledger->file->slot[slot];
    while (atomic_load(&its->mark[0]) == 0) CHECK(step(child));
    while (late && used_bytes(its->used[0]) == 0) CHECK(step(child));
    atomic_fetch_add(&its->generation, 2);
    atomic_store(&its->used[0], 4 * USED_TICK);
    /* As that thread would: the slot's index is the same. */
    long word = ptrace(PTRACE_PEEKDATA, child, &ledger->generation, NULL);
    CHECK_EQ(ptrace(PTRACE_POKEDATA, child, &ledger->generation, word + 2), 0);
    run_to_its_end(child);
  }
}

static void reclaim(struct ledger *ledger) { (void)ledger_reclaim(ledger, NULL); }

/* A dead process's slot is taken while a process empties it that lost the lock meanwhile: the new owner's marks
 * stay. */
TEST(step_who_empties_a_slot_clears_no_other_marks) {
  fixture_create(4 * PIECE);
  struct ledger *ledger = fixture_attach();
  if (!ptrace_is_permitted()) return;
  pid_t holder = fork();
  if (holder == 0) {
    ledger_after_fork(ledger);
    CHECK_EQ(ledger_charge(ledger, 0, PIECE), 0);
    _Exit(0); /* as if killed: nothing is given back */
  }
  expect_exit(holder, 0);
  struct ledger_slot *its = &ledger->file->slot[0];
  CHECK_EQ(used_bytes(its->used[0]), PIECE);
  int32_t dead = its->pid;
  for (long count = 0, ended = 0; !ended; count += 5) {
    atomic_store(&its->used[0], PIECE);
    atomic_store(&its->pid, dead);
    atomic_store(&its->mark[0], 0);
    atomic_store(&its->shared_marks, 0);
    uint32_t generation = its->generation;
    pid_t child = begin_unregistered(ledger, reclaim);
    while (its->generation == generation) CHECK(step(child));
    for (long i = 0; i < count && its->generation == generation + 1; i++) CHECK(step(child));
    ended = its->generation != generation + 1;
    atomic_fetch_add(&its->generation, 3);
    atomic_store(&its->mark[0], 1);
    atomic_store(&its->shared_marks, 1);
    run_to_its_end(child);
    CHECK_EQ(its->mark[0], 1);
    CHECK_EQ(its->shared_marks, 1);
    CHECK(count < 3000);
  }
}

static void charge_and_end(struct ledger *ledger) { (void)!ledger_charge(ledger, 0, PIECE); }

/* After a charge has read all others for itself, another process takes the rest: that was never there beside it. */
TEST(step_the_peak_is_no_more_than_was_charged) {
  fixture_create(4 * PIECE);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 1), 0);
  if (!ptrace_is_permitted()) return;
  used_t *ours = &ledger->file->slot[ledger->slot].used[0];
  for (long count = 0, more = 1; more && count < 150; count += 3) {
    pid_t child = begin(ledger, charge_and_end);
    used_t *its = &ledger->file->slot[slot_of(ledger, child)].used[0];
    while (used_bytes(atomic_load(its)) == 0) CHECK(step(child));
    for (long i = 0; i < count && more; i++) more = step(child);
    if (!more) break;
    atomic_fetch_add(ours, 4 * PIECE + USED_TICK);
    run_to_its_end(child);
    atomic_fetch_sub(ours, 4 * PIECE - USED_TICK);
    CHECK(used_bytes(atomic_load(&ledger->file->peak[0])) <= 4 * PIECE);
  }
}

/* Another process takes the slot and loses its locks, where locks do not last, while a process is about to fill it in:
 * it stays that one's. */
TEST(step_who_fills_a_slot_in_takes_no_others) {
  const uint64_t may_be_lost = UINT64_C(1) << 63;
  fixture_create(4 * PIECE);
  struct ledger *ledger = fixture_attach();
  if (!ptrace_is_permitted()) return;
  struct ledger_slot *its = &ledger->file->slot[0];
  long tried = 0;
  for (long count = 0, before = 1; before; count += 3 * STRIDE) {
    atomic_store(&its->pid, 0);
    atomic_store(&its->used[0], USED_TICK);
    atomic_store(&its->hold, 0);
    pid_t child = begin_unregistered(ledger, charge_and_end);
    for (long i = 0; i < count && (before = atomic_load(&its->pid) != child); i++) CHECK(step(child));
    if (before) {
      atomic_store(&its->pid, os_pid());
      atomic_store(&its->hold, may_be_lost);
      atomic_fetch_add(&its->generation, 2);
      atomic_store(&its->used[0], PIECE + 2 * USED_TICK);
      tried++;
    }
    run_to_its_end(child);
    if (!before) break;
    CHECK_EQ(its->pid, os_pid());
    CHECK_EQ(used_bytes(its->used[0]), PIECE);
  }
  CHECK(tried > 10);
}
