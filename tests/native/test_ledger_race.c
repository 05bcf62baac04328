/* SPDX-License-Identifier: Apache-2.0 */
/* Many at once: the sum is never over the limit at any instant at which a charge is held, and no process is refused
 * what fits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger_fixture.h"

/* The oracle: charged bytes counted outside the ledger, in memory all test processes share. */
struct shared {
  _Atomic int64_t charged;
  _Atomic uint64_t worst, charges, refusals, winners;
  _Atomic uint32_t ready, go;
};

static struct shared *shared_new(void) {
  void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  return p;
}

static void note_charge(struct shared *shared, uint64_t bytes) {
  uint64_t now = (uint64_t)(atomic_fetch_add(&shared->charged, (int64_t)bytes) + (int64_t)bytes);
  uint64_t worst = atomic_load(&shared->worst);
  while (worst < now && !atomic_compare_exchange_weak(&shared->worst, &worst, now)) continue;
  atomic_fetch_add(&shared->charges, 1);
}

static void hammer(struct ledger *ledger, struct shared *shared, uint64_t limit, unsigned seed, int rounds) {
  for (int i = 0; i < rounds; i++) {
    uint64_t bytes = 1 + (uint64_t)rand_r(&seed) % (limit / 3);
    if (ledger_charge(ledger, 0, bytes) == 0) {
      note_charge(shared, bytes);
      if (i % 16 == 0) sched_yield();
      atomic_fetch_sub(&shared->charged, (int64_t)bytes); /* before giving back: the oracle is never above the truth */
      ledger_uncharge(ledger, 0, bytes);
    } else {
      atomic_fetch_add(&shared->refusals, 1);
    }
  }
}

static struct {
  struct ledger *ledger;
  struct shared *shared;
  const char *path;
} thread_world;

static void *thread_main(void *seed) {
  hammer(thread_world.ledger, thread_world.shared, 1000000, (unsigned)(uintptr_t)seed, 20000);
  return NULL;
}

TEST(race_threads_never_over) {
  pthread_t threads[24]; /* more than there are marks for */
  fixture_create(1000000);
  thread_world.ledger = fixture_attach();
  thread_world.shared = shared_new();
  for (size_t i = 0; i < 24; i++) CHECK_EQ(pthread_create(&threads[i], NULL, thread_main, (void *)(i + 1)), 0);
  for (size_t i = 0; i < 24; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
  CHECK(atomic_load(&thread_world.shared->worst) <= 1000000);
  CHECK(atomic_load(&thread_world.shared->charges) > 1000);
  CHECK_EQ(fixture_sum(thread_world.ledger, 0), 0);
  CHECK_EQ(ledger_charge(thread_world.ledger, 0, 1000000), 0);
}

TEST(race_processes_never_over) {
  struct shared *shared = shared_new();
  pid_t children[8];
  fixture_create(1000000);
  struct ledger *ledger = fixture_attach();
  for (unsigned i = 0; i < 8; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      ledger_after_fork(ledger);
      hammer(ledger, shared, 1000000, i + 1, 50000);
      _Exit(0);
    }
  }
  for (int i = 0; i < 8; i++) expect_exit(children[i], 0);
  CHECK(atomic_load(&shared->worst) <= 1000000);
  CHECK(atomic_load(&shared->charges) > 1000);
  CHECK_EQ(fixture_used(ledger, 0), 0);
}

/* Eight processes ask for the last piece at the same instant: exactly one gets it, in every round. */
TEST(race_last_piece_has_one_winner) {
  struct shared *shared = shared_new();
  pid_t children[8];
  enum { ROUNDS = 2000 };
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  for (unsigned i = 0; i < 8; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      ledger_after_fork(ledger);
      for (uint32_t round = 1; round <= ROUNDS; round++) {
        atomic_fetch_add(&shared->ready, 1);
        while (atomic_load(&shared->go) < round) sched_yield();
        int won = ledger_charge(ledger, 0, 600) == 0;
        if (won) atomic_fetch_add(&shared->winners, 1);
        atomic_fetch_add(&shared->ready, 1);
        while (atomic_load(&shared->ready) < (2 * round) * 8) sched_yield();
        if (won) ledger_uncharge(ledger, 0, 600);
      }
      _Exit(0);
    }
  }
  for (uint32_t round = 1; round <= ROUNDS; round++) {
    while (atomic_load(&shared->ready) < (2 * round - 1) * 8) sched_yield();
    atomic_store(&shared->go, round);
    while (atomic_load(&shared->ready) < (2 * round) * 8) sched_yield();
    if (atomic_load(&shared->winners) != round)
      fprintf(stderr, "round %u: %lu winners in all\n", round, (unsigned long)atomic_load(&shared->winners));
    CHECK_EQ(atomic_load(&shared->winners), round);
  }
  for (int i = 0; i < 8; i++) expect_exit(children[i], 0);
}

/* Six processes with 150 each always fit into 1000: none may ever be refused, however their requests overlap, and
 * although a seventh keeps asking for what never fits. */
TEST(race_no_false_refusal) {
  struct shared *shared = shared_new();
  pid_t children[7];
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  for (unsigned i = 0; i < 6; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      ledger_after_fork(ledger);
      for (int round = 0; round < 30000; round++) {
        if (ledger_charge(ledger, 0, 150) != 0) _Exit(1);
        ledger_uncharge(ledger, 0, 150);
      }
      _Exit(0);
    }
  }
  children[6] = fork();
  if (children[6] == 0) {
    ledger_after_fork(ledger);
    while (!atomic_load(&shared->go))
      if (ledger_charge(ledger, 0, 1001) == 0) _Exit(1);
    _Exit(0);
  }
  for (int i = 0; i < 6; i++) expect_exit(children[i], 0);
  atomic_store(&shared->go, 1);
  expect_exit(children[6], 0);
}

/* Closing any descriptor of the ledger drops all locks of the process, and programs do. */
static void *close_descriptors(void *seed) {
  unsigned random = (unsigned)(uintptr_t)seed;
  while (!atomic_load(&thread_world.shared->go)) {
    int fd = open(thread_world.path, O_RDONLY | O_CLOEXEC);
    close(fd);
    usleep(10 + (useconds_t)rand_r(&random) % 300);
  }
  return NULL;
}

static void *short_hammer(void *seed) {
  hammer(thread_world.ledger, thread_world.shared, 1000, (unsigned)(uintptr_t)seed, 400);
  return NULL;
}

/* A program with two threads that charge and one that closes descriptors, from registration to its end. */
static void forgetful_program(unsigned seed) {
  pthread_t charge[2], closing;
  ledger_after_fork(thread_world.ledger);
  CHECK_EQ(pthread_create(&closing, NULL, close_descriptors, (void *)(uintptr_t)seed), 0);
  for (unsigned i = 0; i < 2; i++)
    CHECK_EQ(pthread_create(&charge[i], NULL, short_hammer, (void *)(uintptr_t)(seed * 2 + i)), 0);
  for (unsigned i = 0; i < 2; i++) CHECK_EQ(pthread_join(charge[i], NULL), 0);
  _Exit(0);
}

/* Processes that lose their locks all the time, and register beside one another all the time. */
TEST(race_lost_locks_never_over) {
  enum { TOGETHER = 4, ALL = 24 };
  pid_t children[ALL];
  fixture_create(1000);
  thread_world.ledger = fixture_attach();
  thread_world.shared = shared_new();
  thread_world.path = test_path("ledger");
  for (unsigned i = 0; i < ALL; i++) {
    if (i >= TOGETHER) expect_exit(children[i - TOGETHER], 0);
    children[i] = fork();
    if (children[i] == 0) forgetful_program(i + 1);
  }
  for (int i = ALL - TOGETHER; i < ALL; i++) expect_exit(children[i], 0);
  CHECK(atomic_load(&thread_world.shared->worst) <= 1000);
  CHECK(atomic_load(&thread_world.shared->charges) > 1000);
  CHECK_EQ(ledger_charge(thread_world.ledger, 0, 1000), 0);
}
