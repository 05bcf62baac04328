/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 at every instant. Invariants after each death: the survivor is never allowed more than the limit, gets all of
 * it, and never waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ledger_fixture.h"
#include "os.h"

static void work(struct ledger *ledger, unsigned seed) {
  for (;;) {
    uint64_t bytes = 1 + (uint64_t)rand_r(&seed) % 700;
    if (ledger_charge(ledger, 0, bytes) == 0) ledger_uncharge(ledger, 0, bytes);
  }
}

/* Two workers, one killed at a random instant; the other goes on, and all of the quota is there afterwards. */
TEST(kill_random_instants) {
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  unsigned seed = 42;
  for (int trial = 0; trial < 2000; trial++) {
    pid_t victim = fork();
    if (victim == 0) {
      ledger_after_fork(ledger);
      work(ledger, (unsigned)trial);
    }
    struct timespec pause = {0, 1000 * (rand_r(&seed) % 600)};
    nanosleep(&pause, NULL);
    if (trial % 2) { /* the survivor charges while the victim dies */
      for (int i = 0; i < 20; i++)
        if (ledger_charge(ledger, 0, 400) == 0) ledger_uncharge(ledger, 0, 400);
    }
    kill(victim, SIGKILL);
    CHECK_EQ(waitpid(victim, NULL, 0), victim);
    CHECK_EQ(ledger_charge(ledger, 0, 1000), 0);
    CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
    CHECK_EQ(fixture_sum(ledger, 0), 1000);
    ledger_uncharge(ledger, 0, 1000);
  }
}

/* As many programs do: whatever opens and closes the file takes the record locks of all that the process has along. */
static void work_and_lose(struct ledger *ledger, unsigned seed) {
  for (;;) {
    uint64_t bytes = 1 + (uint64_t)rand_r(&seed) % 700;
    int charged = ledger_charge(ledger, 0, bytes) == 0;
    if (rand_r(&seed) % 2) close(open(ledger->hold.path, O_RDONLY | O_CLOEXEC));
    if (rand_r(&seed) % 8 == 0) os_close(ledger->hold.file.fd);
    if (charged) ledger_uncharge(ledger, 0, bytes);
  }
}

/* The same with victims whose record locks are lost again and again, beside a process that keeps what it has. */
TEST(kill_random_instants_without_locks) {
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 250), 0);
  unsigned seed = 43;
  for (int trial = 0; trial < 1000; trial++) {
    pid_t victims[2];
    for (int i = 0; i < 2; i++) {
      victims[i] = fork();
      if (victims[i] == 0) {
        ledger_after_fork(ledger);
        work_and_lose(ledger, (unsigned)(2 * trial + i));
      }
    }
    close(open(ledger->hold.path, O_RDONLY | O_CLOEXEC));
    for (int i = 0; i < 20; i++) {
      if (ledger_charge(ledger, 0, 300) == 0) ledger_uncharge(ledger, 0, 300);
      usleep((unsigned)rand_r(&seed) % 30);
    }
    CHECK_EQ(used_bytes(atomic_load(&ledger->file->slot[atomic_load(&ledger->slot)].used[0])), 250);
    for (int i = 0; i < 2; i++) {
      kill(victims[i], SIGKILL);
      CHECK_EQ(waitpid(victims[i], NULL, 0), victims[i]);
    }
    CHECK_EQ(ledger_charge(ledger, 0, 750), 0);
    CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
    CHECK_EQ(fixture_sum(ledger, 0), 1000);
    ledger_uncharge(ledger, 0, 750);
  }
}

/* What the victim does under the single-stepper: registration, a charge, a refusal, a free. */
static void stepped(struct ledger *ledger, int registered) {
  if (registered) (void)!ledger_charge(ledger, 0, 1);
  ptrace(PTRACE_TRACEME, 0, NULL, NULL);
  raise(SIGSTOP);
  (void)!ledger_charge(ledger, 0, 600);
  ledger_uncharge(ledger, 0, 600);
  _Exit(0);
}

/* Runs a victim for COUNT instructions and kills it there. Returns 0 when it had ended before. */
static int kill_after(struct ledger *ledger, int registered, long count) {
  int status;
  pid_t victim = fork();
  if (victim == 0) {
    ledger_after_fork(ledger);
    stepped(ledger, registered);
  }
  CHECK_EQ(waitpid(victim, &status, 0), victim);
  CHECK(WIFSTOPPED(status));
  for (long i = 0; i < count; i++) {
    CHECK_EQ(ptrace(PTRACE_SINGLESTEP, victim, NULL, NULL), 0);
    CHECK_EQ(waitpid(victim, &status, 0), victim);
    if (WIFEXITED(status)) return 0;
  }
  kill(victim, SIGKILL);
  CHECK_EQ(waitpid(victim, &status, 0), victim);
  return 1;
}

static int ptrace_is_permitted(void) {
  int status;
  pid_t child = fork();
  if (child == 0) _Exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 ? 0 : 1);
  CHECK_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static long kill_at_strides(struct ledger *ledger, int registered, long stride) {
  long victims = 0;
  for (long count = 1; kill_after(ledger, registered, count); count += stride, victims++) {
    /* The quota minus our 300 is there, no more and no less, for a process that comes now. */
    pid_t heir = fork();
    if (heir == 0) {
      ledger_after_fork(ledger);
      CHECK_EQ(ledger_charge(ledger, 0, 701), VC_ENOMEM);
      CHECK_EQ(ledger_charge(ledger, 0, 700), 0);
      CHECK_EQ(fixture_sum(ledger, 0), 1000);
      _Exit(0);
    }
    expect_exit(heir, 0);
  }
  return victims;
}

/* One victim per instruction would be thousands, most of them in the number parsing of a registration: the stride is
 * a prime, so that successive passes over the loops of a charge die at different instructions of it. Then every single
 * instruction of a charge and a free by a process that is registered already. */
TEST(kill_every_instruction) {
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 300), 0);
  if (!ptrace_is_permitted()) {
    fprintf(stderr, "ptrace is not permitted here: kill_random_instants stands alone\n");
    return;
  }
  long total = kill_at_strides(ledger, 0, 31) + kill_at_strides(ledger, 1, 1);
  fprintf(stderr, "%ld victims\n", total);
  CHECK(total > 100);
}
