/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of a container that may use host memory: two parts with limits of their own, and the whole. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ledger_fixture.h"

static struct vc_slot_usage slots[VC_MAX_SLOTS];

/* Of MEMORY bytes on GPU a PHYSICAL are the GPU's own; GPU b has no host memory. */
static void create(uint64_t memory, uint64_t physical) {
  struct vc_gpu_limit gpus[2] = {{.memory_bytes = memory, .physical_bytes = physical}, {.memory_bytes = memory}};
  memcpy(gpus[0].uuid, gpu_a, 16);
  memcpy(gpus[1].uuid, gpu_b, 16);
  CHECK_EQ(ledger_create(test_path("ledger"), fixture_id, gpus, 2, 0666), 0);
  CHECK_EQ(limits_create(test_path("limits"), fixture_id, gpus, 2, 0644), 0);
}

static uint64_t sum(const struct ledger *ledger, enum ledger_part part, uint32_t column) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < VC_MAX_SLOTS; i++)
    total += used_bytes(part == LEDGER_REAL ? ledger->split[i].real[column] : ledger->split[i].managed[column]);
  return total;
}

static int charge(struct ledger *ledger, enum ledger_part part, uint64_t bytes) {
  return ledger_charge_part(ledger, part, 0, bytes, 1);
}

TEST(split_each_part_to_the_byte) {
  create(24 * GIB, 16 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK(ledger_is_split(ledger));
  CHECK_EQ(ledger_physical(ledger, 0), 16 * GIB);
  CHECK_EQ(ledger_host_budget(ledger, 0), 8 * GIB);
  CHECK_EQ(ledger_host_budget(ledger, 1), 0);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 16 * GIB + 1), VC_ENOMEM);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 16 * GIB), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM); /* the plain call means real memory */
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 8 * GIB + 1), VC_ENOMEM);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 8 * GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 1), VC_ENOMEM);
  CHECK_EQ(fixture_used(ledger, 0), 24 * GIB);
  ledger_uncharge(ledger, 0, GIB);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 1), VC_ENOMEM); /* room on the GPU is none on the host */
  CHECK_EQ(charge(ledger, LEDGER_REAL, GIB), 0);
  ledger_uncharge_part(ledger, LEDGER_MANAGED, 0, 2 * GIB);
  CHECK_EQ(sum(ledger, LEDGER_REAL, 0), 16 * GIB);
  CHECK_EQ(sum(ledger, LEDGER_MANAGED, 0), 6 * GIB);
  CHECK_EQ(fixture_used(ledger, 0), 22 * GIB);
  CHECK_EQ(ledger_charge_part(ledger, LEDGER_MANAGED, 1, 1, 1), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 1, 24 * GIB), 0);
}

TEST(split_refusals_are_counted_when_asked) {
  struct vc_ledger_info info;
  create(2 * GIB, GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, GIB), 0);
  CHECK_EQ(ledger_charge_part(ledger, LEDGER_REAL, 0, 1, 0), VC_ENOMEM);
  CHECK_EQ(ledger_charge_part(ledger, LEDGER_MANAGED, 0, 2 * GIB, 1), VC_ENOMEM);
  CHECK_EQ(ledger_charge_part(ledger, LEDGER_MANAGED, 0, 12345, 1), 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQ(ledger_read(test_path("ledger"), &info, slots, VC_MAX_SLOTS), 1);
    CHECK_EQ(info.version, LEDGER_VERSION_SPLIT);
    CHECK_EQ(slots[0].refused, 1);
    CHECK_EQ(slots[0].used[0], GIB + 12345);
    CHECK_EQ(slots[0].managed[0], 12345);
    _Exit(0);
  }
  expect_exit(child, 0);
}

TEST(split_unhooked_bytes_are_on_the_gpu) {
  create(4 * GIB, 2 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(limits_set_unhooked(test_path("limits"), gpu_a, GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_REAL, GIB + 1), VC_ENOMEM);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 2 * GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_REAL, GIB), 0);
}

TEST(split_limits_change_live) {
  create(4 * GIB, 2 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 2 * GIB), 0);
  CHECK_EQ(limits_set_physical(test_path("limits"), gpu_a, 4 * GIB), 0); /* nothing may be managed any more */
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 1), VC_ENOMEM);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 2 * GIB), 0); /* and what is managed still counts */
  CHECK_EQ(charge(ledger, LEDGER_REAL, 1), VC_ENOMEM);
  CHECK_EQ(sum(ledger, LEDGER_REAL, 0), 2 * GIB); /* a refusal by the whole gives the part back */
  CHECK_EQ(limits_set_memory(test_path("limits"), gpu_a, 6 * GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 1), 0);
  CHECK_EQ(limits_set_physical(test_path("limits"), gpu_a, 8 * GIB), 0); /* more than there is means all of it */
  CHECK_EQ(ledger_physical(ledger, 0), 6 * GIB);
}

TEST(split_page_needs_a_split_ledger) {
  struct vc_gpu_limit gpus[1] = {{.memory_bytes = 2 * GIB}};
  struct ledger *ledger;
  char why[512] = "";
  memcpy(gpus[0].uuid, gpu_a, 16);
  CHECK_EQ(ledger_create(test_path("ledger"), fixture_id, gpus, 1, 0666), 0);
  gpus[0].physical_bytes = GIB;
  CHECK_EQ(limits_create(test_path("limits"), fixture_id, gpus, 1, 0644), 0);
  CHECK_EQ(ledger_attach(test_path("limits"), test_path("ledger"), &ledger, why, sizeof why), VC_EMISMATCH);
}

TEST(split_file_of_every_size) {
  struct vc_ledger_info info;
  struct ledger *ledger;
  struct stat st;
  create(2 * GIB, GIB);
  CHECK_EQ(stat(test_path("ledger"), &st), 0);
  CHECK_EQ(st.st_size, sizeof(struct ledger_file_split));
  CHECK_EQ(ledger_trim(test_path("ledger")), 0);
  CHECK_EQ(truncate(test_path("ledger"), st.st_size + 100000), 0);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, slots, VC_MAX_SLOTS), 0);
  fixture_attach();
  CHECK_EQ(ledger_trim(test_path("ledger")), 1);
  CHECK_EQ(stat(test_path("ledger"), &st), 0);
  CHECK_EQ(st.st_size, sizeof(struct ledger_file_split));
  CHECK_EQ(truncate(test_path("ledger"), st.st_size - 1), 0);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, slots, VC_MAX_SLOTS), VC_ECORRUPT);
  CHECK_EQ(ledger_attach(test_path("limits"), test_path("ledger"), &ledger, NULL, 0), VC_ECORRUPT);
  CHECK_EQ(truncate(test_path("ledger"), (off_t)ledger_file_bytes()), 0);
  CHECK_EQ(ledger_attach(test_path("limits"), test_path("ledger"), &ledger, NULL, 0), VC_ECORRUPT);
}

TEST(split_dies_with_its_slot) {
  create(8 * GIB, 4 * GIB);
  struct ledger *ledger = fixture_attach();
  int ready[2];
  char byte;
  CHECK_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    ledger_after_fork(ledger);
    CHECK_EQ(charge(ledger, LEDGER_REAL, 4 * GIB), 0);
    CHECK_EQ(charge(ledger, LEDGER_MANAGED, 4 * GIB), 0);
    CHECK_EQ(write(ready[1], "", 1), 1);
    pause();
  }
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 1), VC_ENOMEM);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 1), VC_ENOMEM);
  CHECK_EQ(kill(child, SIGKILL), 0);
  CHECK_EQ(waitpid(child, NULL, 0), child);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 4 * GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, 4 * GIB), 0);
}

static uint64_t held_bytes(uint32_t column) { return column == 0 ? 3 * GIB : 0; }
static uint64_t held_managed(uint32_t column) { return column == 0 ? GIB : 0; }

TEST(split_lost_slot_registers_both_parts) {
  create(8 * GIB, 4 * GIB);
  struct ledger *ledger = fixture_attach();
  ledger_set_usage(ledger, held_bytes, held_managed);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 2 * GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, GIB), 0);
  /* It was not held any more, and another process took the slot: its generation is another one. */
  ledger_hold_release(&ledger->hold, (uint32_t)ledger->slot);
  atomic_fetch_add(&ledger->file->slot[ledger->slot].generation, 2);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 2 * GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_REAL, 1), VC_ENOMEM);
  int32_t own = ledger->slot;
  CHECK_EQ(used_bytes(ledger->split[own].managed[0]), GIB);
  CHECK_EQ(used_bytes(ledger->split[own].real[0]), 4 * GIB);
  CHECK_EQ(used_bytes(ledger->file->slot[own].used[0]), 5 * GIB);
}

static void set_time_slice(uint64_t state, uint64_t end_ms) {
  CHECK_EQ(limits_set_time_slice(test_path("limits"), gpu_a, state | end_ms << VC_TIME_SLICE_SHIFT), 0);
}

TEST(split_time_slices_end_by_themselves) {
  create(4 * GIB, 2 * GIB);
  struct ledger *ledger = fixture_attach();
  uint64_t now = time_slice_now_ms();
  CHECK_EQ(ledger_time_slice(ledger, 0), VC_TIME_SLICE_FREE);
  set_time_slice(VC_TIME_SLICE_HELD, now + 10000);
  CHECK_EQ(ledger_time_slice(ledger, 0), VC_TIME_SLICE_HELD);
  CHECK_EQ(ledger_time_slice(ledger, 1), VC_TIME_SLICE_FREE);
  set_time_slice(VC_TIME_SLICE_YOURS, now + 10000);
  CHECK_EQ(ledger_time_slice(ledger, 0), VC_TIME_SLICE_YOURS);
  set_time_slice(VC_TIME_SLICE_SHORT, now + 10000);
  CHECK_EQ(ledger_time_slice(ledger, 0), VC_TIME_SLICE_SHORT);
  set_time_slice(VC_TIME_SLICE_FREE, now + 10000);
  CHECK_EQ(ledger_time_slice(ledger, 0), VC_TIME_SLICE_FREE);
  set_time_slice(VC_TIME_SLICE_HELD, now - 1);
  CHECK_EQ(ledger_time_slice(ledger, 0), VC_TIME_SLICE_FREE);
  set_time_slice(VC_TIME_SLICE_HELD, now + 1000 * 1000); /* from before the machine was started */
  CHECK_EQ(ledger_time_slice(ledger, 0), VC_TIME_SLICE_FREE);
  set_time_slice(VC_TIME_SLICE_HELD, now + 40);
  while (ledger_time_slice(ledger, 0) == VC_TIME_SLICE_HELD) continue;
}

TEST(split_what_processes_do_is_read) {
  struct vc_time_slice_usage use[VC_MAX_GPUS];
  create(4 * GIB, 2 * GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(charge(ledger, LEDGER_REAL, GIB), 0);
  CHECK_EQ(charge(ledger, LEDGER_MANAGED, GIB + 5), 0);
  for (int i = 0; i < 7; i++) ledger_time_slice_progress(ledger, 0);
  ledger_time_slice_waiting(ledger, 0);
  ledger_time_slice_held(ledger, 0, 1234);
  ledger_time_slice_busy(ledger, 1);
  ledger_time_slice_busy(ledger, 1);
  ledger_time_slice_busy(ledger, 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQ(ledger_read_time_slices(test_path("ledger"), use, VC_MAX_GPUS), 2);
    CHECK_EQ(use[0].progress, 7);
    CHECK_EQ(use[0].held_us, 1234);
    CHECK_EQ(use[0].waiting, 1);
    CHECK_EQ(use[0].managed, GIB + 5);
    CHECK_EQ(use[0].real, GIB);
    CHECK_EQ(use[0].busy, 1);
    CHECK_EQ(use[0].alive, 1);
    CHECK_EQ(use[1].progress + use[1].managed + use[1].waiting, 0);
    _Exit(0);
  }
  expect_exit(child, 0);
  ledger_time_slice_busy(ledger, 0);
  ledger_time_slice_busy(ledger, 0); /* once too often */
  CHECK_EQ(ledger->split[ledger->slot].busy, 0);
  ledger_time_slice_queried(ledger);
  child = fork();
  if (child == 0) {
    CHECK_EQ(ledger_read_time_slices(test_path("ledger"), use, VC_MAX_GPUS), 2);
    CHECK_EQ(use[0].busy, 1);
    ledger->split[ledger->slot].asked_ms -= 10000; /* it has not asked for long */
    CHECK_EQ(ledger_read_time_slices(test_path("ledger"), use, VC_MAX_GPUS), 2);
    CHECK_EQ(use[0].busy, 0);
    _Exit(0);
  }
  expect_exit(child, 0);
}

/* Processes that charge and give back at random in both parts. CHARGED has what they have charged and not yet begun
 * to give back: never more than a part's limit. */
enum { WORKERS = 4, PIECE = 1 << 20, ROUNDS = 20000 };
static _Atomic uint64_t *charged;

static void work(struct ledger *ledger, unsigned seed) {
  static const uint64_t limit[2] = {10 * PIECE, 6 * PIECE};
  uint64_t held[2] = {0, 0};
  for (unsigned i = 0; i < ROUNDS; i++) {
    seed = seed * 1103515245u + 12345u;
    enum ledger_part part = seed >> 20 & 1 ? LEDGER_REAL : LEDGER_MANAGED;
    uint64_t bytes = (1 + (seed >> 24 & 3)) * (uint64_t)PIECE;
    if (seed >> 16 & 1 && held[part] >= bytes) {
      atomic_fetch_sub(&charged[part], bytes);
      ledger_uncharge_part(ledger, part, 0, bytes);
      held[part] -= bytes;
    } else if (charge(ledger, part, bytes) == 0) {
      CHECK(atomic_fetch_add(&charged[part], bytes) + bytes <= limit[part]);
      held[part] += bytes;
    }
  }
  for (int part = 0; part < 2; part++) {
    atomic_fetch_sub(&charged[part], held[part]);
    ledger_uncharge_part(ledger, (enum ledger_part)part, 0, held[part]);
  }
}

static struct ledger *create_for_workers(void) {
  charged = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(charged != MAP_FAILED);
  create(16 * PIECE, 10 * PIECE);
  return fixture_attach();
}

TEST(split_race_never_over) {
  pid_t children[WORKERS];
  struct ledger *ledger = create_for_workers();
  for (unsigned i = 0; i < WORKERS; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      ledger_after_fork(ledger);
      work(ledger, i * 7919 + 1);
      _Exit(0);
    }
  }
  for (unsigned i = 0; i < WORKERS; i++) expect_exit(children[i], 0);
  CHECK_EQ(sum(ledger, LEDGER_REAL, 0), 0);
  CHECK_EQ(sum(ledger, LEDGER_MANAGED, 0), 0);
  CHECK_EQ(fixture_sum(ledger, 0), 0);
  CHECK(ledger->file->peak[0] <= 16 * PIECE);
}

struct worker {
  struct ledger *ledger;
  unsigned seed;
};

static void *work_in_a_thread(void *data) {
  const struct worker *worker = data;
  work(worker->ledger, worker->seed);
  return NULL;
}

/* Threads of two processes: what one adds to a word another may give back. */
TEST(split_race_threads_never_over) {
  struct ledger *ledger = create_for_workers();
  struct worker workers[WORKERS];
  pthread_t threads[WORKERS];
  pid_t child = fork();
  if (child == 0) ledger_after_fork(ledger);
  for (unsigned i = 0; i < WORKERS; i++) {
    workers[i] = (struct worker){ledger, i * 31337 + (child == 0)};
    CHECK_EQ(pthread_create(&threads[i], NULL, work_in_a_thread, &workers[i]), 0);
  }
  for (unsigned i = 0; i < WORKERS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
  if (child == 0) _Exit(0);
  expect_exit(child, 0);
  CHECK_EQ(sum(ledger, LEDGER_REAL, 0) + sum(ledger, LEDGER_MANAGED, 0) + fixture_sum(ledger, 0), 0);
  CHECK(ledger->file->peak[0] <= 16 * PIECE);
}

TEST(split_kill_at_random_instants) {
  struct ledger *ledger = create_for_workers();
  for (unsigned i = 0; i < 60; i++) {
    atomic_store(&charged[0], 0);
    atomic_store(&charged[1], 0);
    struct timespec pause = {0, 50000 + (long)(i * 7919 % 97) * 20000};
    pid_t child = fork();
    if (child == 0) {
      ledger_after_fork(ledger);
      for (;;) work(ledger, i);
    }
    nanosleep(&pause, NULL);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK_EQ(charge(ledger, LEDGER_REAL, 10 * PIECE), 0);
    CHECK_EQ(charge(ledger, LEDGER_MANAGED, 6 * PIECE), 0);
    ledger_uncharge_part(ledger, LEDGER_REAL, 0, 10 * PIECE);
    ledger_uncharge_part(ledger, LEDGER_MANAGED, 0, 6 * PIECE);
    CHECK_EQ(sum(ledger, LEDGER_REAL, 0) + sum(ledger, LEDGER_MANAGED, 0) + fixture_sum(ledger, 0), 0);
  }
}
