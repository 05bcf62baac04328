/* SPDX-License-Identifier: Apache-2.0 */
/* What a process reserves beforehand: no process goes over the limit with it, none is refused because of it, and
 * nothing of it outlives its owner. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger_allowance.h"
#include "ledger_fixture.h"

#define MIB (UINT64_C(1) << 20)

static uint64_t allowance_of(const struct ledger *ledger, int32_t slot) {
  return used_bytes(atomic_load(allowance_cell(ledger, slot, 0)));
}

/* Another process on the same ledger that charges what it is told and then waits. */
struct peer {
  pid_t pid;
  int orders[2], answers[2];
};

static void serve(struct ledger *ledger, const struct peer *peer) {
  int64_t bytes;
  while (read(peer->orders[0], &bytes, sizeof bytes) == sizeof bytes) {
    int64_t status = 0;
    if (bytes >= 0)
      status = ledger_charge(ledger, 0, (uint64_t)bytes);
    else
      ledger_uncharge(ledger, 0, (uint64_t)-bytes);
    if (write(peer->answers[1], &status, sizeof status) != sizeof status) break;
  }
  _exit(0);
}

static struct peer peer_start(struct ledger *ledger) {
  struct peer peer;
  CHECK(pipe(peer.orders) == 0 && pipe(peer.answers) == 0);
  peer.pid = fork();
  if (peer.pid == 0) {
    close(peer.orders[1]);
    ledger_after_fork(ledger);
    serve(ledger, &peer);
  }
  return peer;
}

static int64_t peer_charge(const struct peer *peer, int64_t bytes) {
  int64_t status;
  CHECK(write(peer->orders[1], &bytes, sizeof bytes) == sizeof bytes);
  CHECK(read(peer->answers[0], &status, sizeof status) == sizeof status);
  return status;
}

static void peer_kill(const struct peer *peer) {
  CHECK_EQ(kill(peer->pid, SIGKILL), 0);
  CHECK_EQ(waitpid(peer->pid, NULL, 0), peer->pid);
}

TEST(allowance_is_for_many_with_plenty) {
  fixture_create(8 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, MIB), VC_OK);
  CHECK_EQ(allowance_of(ledger, 0), 0); /* alone, reading costs nothing */
  struct peer peer = peer_start(ledger);
  CHECK_EQ(peer_charge(&peer, MIB), VC_OK);
  CHECK(allowance_of(ledger, 1) > 16 * MIB && allowance_of(ledger, 1) <= 2 * GIB + MIB);
  CHECK_EQ(fixture_used(ledger, 0), 2 * MIB); /* a reader sees what is used */
  uint64_t before = atomic_load(&ledger->file->slot[0].used[0]);
  CHECK_EQ(peer_charge(&peer, 8 * (int64_t)MIB), VC_OK);
  CHECK_EQ(atomic_load(&ledger->file->slot[0].used[0]), before);
  peer_kill(&peer);
}

/* A file of a time when there were none: libraries of that time may be in it. */
TEST(allowance_needs_a_file_that_says_so) {
  uint32_t none = 0;
  fixture_create(8 * GIB);
  FILE *file = fopen(test_path("ledger"), "r+");
  CHECK(file != NULL && fseek(file, offsetof(struct ledger_file, features), SEEK_SET) == 0);
  CHECK(fwrite(&none, sizeof none, 1, file) == 1 && fclose(file) == 0);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, MIB), VC_OK);
  struct peer peer = peer_start(ledger);
  CHECK_EQ(peer_charge(&peer, MIB), VC_OK);
  CHECK_EQ(allowance_of(ledger, 1), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 8 * GIB - 2 * MIB), VC_OK);
  CHECK_EQ(peer_charge(&peer, 1), VC_ENOMEM);
  peer_kill(&peer);
}

TEST(allowance_refuses_no_other) {
  fixture_create(8 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, MIB), VC_OK);
  struct peer peer = peer_start(ledger);
  CHECK_EQ(peer_charge(&peer, MIB), VC_OK);
  CHECK(allowance_of(ledger, 1) != 0);
  CHECK_EQ(ledger_charge(ledger, 0, 8 * GIB - 2 * MIB), VC_OK);
  CHECK_EQ(allowance_of(ledger, 1), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
  CHECK_EQ(peer_charge(&peer, 1), VC_ENOMEM);
  CHECK_EQ(peer_charge(&peer, -(int64_t)MIB), VC_OK);
  CHECK_EQ(peer_charge(&peer, (int64_t)MIB), VC_OK);
  CHECK_EQ(peer_charge(&peer, 1), VC_ENOMEM);
  peer_kill(&peer);
}

TEST(allowance_dies_with_its_owner) {
  fixture_create(8 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, MIB), VC_OK);
  struct peer peer = peer_start(ledger);
  CHECK_EQ(peer_charge(&peer, (int64_t)GIB), VC_OK);
  CHECK(allowance_of(ledger, 1) > GIB);
  peer_kill(&peer);
  CHECK_EQ(ledger_charge(ledger, 0, 8 * GIB - MIB), VC_OK);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
}

TEST(allowance_ends_when_limits_change) {
  fixture_create(8 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, MIB), VC_OK);
  struct peer peer = peer_start(ledger);
  CHECK_EQ(peer_charge(&peer, MIB), VC_OK);
  CHECK_EQ(limits_set_memory(test_path("limits"), gpu_a, 4 * MIB), VC_OK);
  CHECK_EQ(peer_charge(&peer, 3 * (int64_t)MIB), VC_ENOMEM);
  CHECK_EQ(peer_charge(&peer, 2 * (int64_t)MIB), VC_OK);
  CHECK_EQ(limits_set_memory(test_path("limits"), gpu_a, 8 * GIB), VC_OK);
  CHECK_EQ(peer_charge(&peer, MIB), VC_OK);
  CHECK_EQ(limits_set_unhooked(test_path("limits"), gpu_a, 8 * GIB - 6 * MIB), VC_OK);
  CHECK_EQ(peer_charge(&peer, 2 * (int64_t)MIB), VC_ENOMEM);
  CHECK_EQ(peer_charge(&peer, MIB), VC_OK);
  peer_kill(&peer);
}

/* A level that another process wrote there, or that was written for an earlier owner of the slot. */
TEST(allowance_of_others_is_not_believed) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, MIB), VC_OK);
  struct peer peer = peer_start(ledger);
  CHECK_EQ(peer_charge(&peer, MIB), VC_OK);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 2 * MIB), VC_OK);
  used_t *cell = allowance_cell(ledger, 1, 0);
  for (uint64_t tag = 0; tag < 64; tag++) {
    if (tag == (atomic_load(&ledger->file->slot[1].generation) & 0xffff)) continue;
    atomic_store(cell, tag << 48 | GIB);
    CHECK_EQ(peer_charge(&peer, 1), VC_ENOMEM);
  }
  peer_kill(&peer);
}

/* --- races --------------------------------------------------------------------------------------------------------- */

struct oracle {
  _Atomic int64_t charged;
  _Atomic uint64_t worst, charges, refusals, wrong, reserved;
};

static struct oracle *oracle_new(void) {
  void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  return p;
}

static void note_charge(struct oracle *oracle, uint64_t bytes) {
  uint64_t now = (uint64_t)(atomic_fetch_add(&oracle->charged, (int64_t)bytes) + (int64_t)bytes);
  uint64_t worst = atomic_load(&oracle->worst);
  while (worst < now && !atomic_compare_exchange_weak(&oracle->worst, &worst, now)) continue;
  atomic_fetch_add(&oracle->charges, 1);
}

/* Mostly small, so that allowances are used; sometimes so large that they are revoked. */
static void churn(struct ledger *ledger, struct oracle *oracle, uint64_t limit, unsigned seed, int rounds) {
  for (int i = 0; i < rounds; i++) {
    uint64_t bytes = rand_r(&seed) % 16 ? 1 + (uint64_t)rand_r(&seed) % MIB : limit / 8 + (uint64_t)rand_r(&seed) % (limit / 2);
    if (ledger_charge(ledger, 0, bytes) != VC_OK) {
      atomic_fetch_add(&oracle->refusals, 1);
      continue;
    }
    note_charge(oracle, bytes);
    int32_t own = atomic_load(&ledger->slot);
    if (own >= 0 && allowance_of(ledger, own) != 0) atomic_fetch_add(&oracle->reserved, 1);
    if (i % 8 == 0) sched_yield();
    atomic_fetch_sub(&oracle->charged, (int64_t)bytes);
    ledger_uncharge(ledger, 0, bytes);
  }
}

struct worker {
  struct ledger *ledger;
  struct oracle *oracle;
  unsigned seed;
};

static void *work(void *data) {
  struct worker *worker = data;
  churn(worker->ledger, worker->oracle, 2 * GIB, worker->seed, 200000);
  return NULL;
}

TEST(allowance_race_never_over) {
  struct oracle *oracle = oracle_new();
  pid_t children[4];
  fixture_create(2 * GIB);
  struct ledger *ledger = fixture_attach();
  for (unsigned i = 0; i < 4; i++) {
    children[i] = fork();
    if (children[i] != 0) continue;
    struct worker workers[2] = {{ledger, oracle, 2 * i + 1}, {ledger, oracle, 2 * i + 2}};
    pthread_t thread;
    ledger_after_fork(ledger);
    if (pthread_create(&thread, NULL, work, &workers[0]) != 0) _exit(1);
    work(&workers[1]);
    _exit(pthread_join(thread, NULL) != 0);
  }
  for (unsigned i = 0; i < 4; i++) {
    int status;
    CHECK_EQ(waitpid(children[i], &status, 0), children[i]);
    CHECK_EQ(status, 0);
  }
  CHECK(atomic_load(&oracle->worst) <= 2 * GIB);
  CHECK(atomic_load(&oracle->charges) > 1000);
  CHECK(atomic_load(&oracle->refusals) > 10);
  CHECK(atomic_load(&oracle->reserved) > 100);
  CHECK_EQ(ledger_charge(ledger, 0, 2 * GIB), VC_OK);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
}

/* What fits without any reservation is never refused: the small ones hold next to nothing. */
TEST(allowance_race_never_refuses_what_fits) {
  struct oracle *oracle = oracle_new();
  pid_t children[3];
  fixture_create(4 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_OK);
  for (unsigned i = 0; i < 3; i++) {
    children[i] = fork();
    if (children[i] != 0) continue;
    ledger_after_fork(ledger);
    for (;;) {
      if (ledger_charge(ledger, 0, MIB) == VC_OK)
        ledger_uncharge(ledger, 0, MIB);
      else
        atomic_fetch_add(&oracle->wrong, 1);
    }
  }
  for (int i = 0; i < 30000; i++) {
    int status = ledger_charge(ledger, 0, 4 * GIB - 8 * MIB);
    if (status != VC_OK) atomic_fetch_add(&oracle->wrong, 1);
    if (status == VC_OK) ledger_uncharge(ledger, 0, 4 * GIB - 8 * MIB);
  }
  for (unsigned i = 0; i < 3; i++) {
    CHECK_EQ(kill(children[i], SIGKILL), 0);
    CHECK_EQ(waitpid(children[i], NULL, 0), children[i]);
  }
  CHECK_EQ(atomic_load(&oracle->wrong), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 4 * GIB - 1), VC_OK);
}

/* Killed anywhere, again and again: the processes that remain can have everything. */
TEST(allowance_kill_loses_nothing) {
  struct oracle *oracle = oracle_new();
  unsigned seed = 7;
  fixture_create(2 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_OK);
  for (int round = 0; round < 150; round++) {
    pid_t children[3];
    for (unsigned i = 0; i < 3; i++) {
      children[i] = fork();
      if (children[i] != 0) continue;
      ledger_after_fork(ledger);
      churn(ledger, oracle, 2 * GIB, (unsigned)round * 3 + i, 1 << 30);
    }
    usleep(1000 + (unsigned)rand_r(&seed) % 10000);
    for (unsigned i = 0; i < 3; i++) {
      CHECK_EQ(kill(children[i], SIGKILL), 0);
      CHECK_EQ(waitpid(children[i], NULL, 0), children[i]);
    }
    CHECK_EQ(ledger_charge(ledger, 0, 2 * GIB - 1), VC_OK);
    CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
    ledger_uncharge(ledger, 0, 2 * GIB - 1);
  }
}
