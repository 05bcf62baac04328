/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger, process by process: exact sums, owners, deaths, forks, lost locks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger_fixture.h"
#include "os.h"

TEST(ledger_exact_to_the_byte) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, GIB + 1), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 1), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 2), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 0, 1), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
  CHECK_EQ(fixture_used(ledger, 0), GIB);
  CHECK_EQ(ledger_charge(ledger, 1, 2 * GIB), 0); /* the other GPU has its own limit */
  ledger_uncharge(ledger, 0, 1);
  CHECK_EQ(ledger_charge(ledger, 0, 1), 0);
  CHECK_EQ(ledger_charge(ledger, 0, UINT64_MAX), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 2, 1), VC_EINVAL);
  CHECK_EQ(ledger_column(ledger, gpu_b), 1);
  CHECK_EQ(ledger_column(ledger, fixture_id), VC_ENOENT);
}

/* They are the container's, not a process's: they stay when it ends, and a process that only reads the ledger, or one
 * without a slot, counts like any other. */
TEST(ledger_refusals_of_the_driver) {
  struct vc_ledger_info info;
  struct vc_slot_usage slots[4];
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_read(test_path("ledger"), &info, slots, 4), 0);
  CHECK_EQ(info.driver_refused[0] | info.driver_refused_bytes[0], 0);
  ledger_driver_refused(ledger, 0, GIB);
  ledger_driver_refused(ledger, 0, 0);
  ledger_driver_refused(ledger, 1, UINT64_MAX);
  ledger_driver_refused(ledger, 2, 1); /* no such column */
  CHECK_EQ(ledger_read(test_path("ledger"), &info, slots, 4), 0);
  CHECK_EQ(info.driver_refused[0], 2);
  CHECK_EQ(info.driver_refused_bytes[0], 0); /* the last one's, unknown */
  CHECK_EQ(info.driver_refused[1], 1);
  CHECK_EQ(info.driver_refused_bytes[1], (UINT64_C(1) << 48) - 1);
  CHECK_EQ(info.driver_refused[2], 0);
  ledger_driver_refused(ledger, 0, 7);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, slots, 4), 0);
  CHECK_EQ(info.driver_refused_bytes[0], 7);
}

TEST(ledger_uncharge_never_wraps) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  ledger_uncharge(ledger, 0, 5);
  CHECK_EQ(ledger_charge(ledger, 0, 10), 0);
  ledger_uncharge(ledger, 0, 11);
  CHECK_EQ(fixture_used(ledger, 0), 0);
  ledger_uncharge(ledger, 0, UINT64_MAX);
  CHECK_EQ(fixture_used(ledger, 0), 0);
  CHECK_EQ(ledger_charge(ledger, 0, GIB), 0);
}

TEST(ledger_mismatched_pair) {
  struct ledger *ledger;
  char why[512] = "";
  const uint8_t other_id[16] = {9};
  struct vc_gpu_limit gpu = {.memory_bytes = GIB};
  fixture_create(GIB);
  CHECK_EQ(ledger_create(test_path("other"), other_id, &gpu, 1, 0666), 0);
  CHECK_EQ(ledger_attach(test_path("limits"), test_path("other"), &ledger, why, sizeof why), VC_EMISMATCH);
  CHECK(strstr(why, "other") && strstr(why, "recreate"));
  CHECK_EQ(ledger_create(test_path("fewer"), fixture_id, &gpu, 1, 0666), 0);
  CHECK_EQ(ledger_attach(test_path("limits"), test_path("fewer"), &ledger, why, sizeof why), VC_EMISMATCH);
  CHECK_EQ(ledger_attach(test_path("limits"), test_path("none"), &ledger, why, sizeof why), VC_ENOENT);
  CHECK_EQ(ledger_attach(test_path("none"), test_path("ledger"), &ledger, why, sizeof why), VC_ENOENT);
  CHECK_EQ(ledger_attach(test_path("ledger"), test_path("limits"), &ledger, why, sizeof why), VC_ECORRUPT);
}

TEST(ledger_view_takes_no_slot) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  struct ledger_process process;
  CHECK_EQ(fixture_used(ledger, 0), 0);
  CHECK_EQ(ledger_processes(ledger, 0, &process, 1), 0);
  CHECK_EQ(atomic_load(&ledger->file->high_water), 0);
}

TEST(ledger_limit_changes_live) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, GIB), 0);
  CHECK_EQ(limits_set_memory(test_path("limits"), gpu_a, 2 * GIB), 0);
  CHECK_EQ(ledger_charge(ledger, 0, GIB), 0);
  CHECK_EQ(limits_set_memory(test_path("limits"), gpu_a, GIB / 2), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
  uint64_t limit, used;
  ledger_view(ledger, 0, &limit, &used);
  CHECK_EQ(limit, GIB / 2);
  CHECK_EQ(used, 2 * GIB); /* the truth, although it is more than the limit */
}

TEST(ledger_unhooked_counts) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(limits_set_unhooked(test_path("limits"), gpu_a, 100), 0);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 99), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 100), 0);
  CHECK_EQ(fixture_used(ledger, 0), GIB);
}

/* Charges in a child and dies with it; a byte on the pipe says that it has charged. */
static pid_t child_that_holds(uint64_t bytes) {
  int ready[2];
  char byte;
  CHECK_EQ(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    CHECK_EQ(ledger_charge(fixture_attach(), 0, bytes), 0);
    CHECK_EQ(write(ready[1], "r", 1), 1);
    for (;;) pause();
  }
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  return pid;
}

static void kill_and_reap(pid_t pid) {
  CHECK_EQ(kill(pid, SIGKILL), 0);
  CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

TEST(ledger_dead_process_returns_memory) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  pid_t child = child_that_holds(GIB - 10);
  CHECK_EQ(ledger_charge(ledger, 0, 11), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 0, 10), 0);
  kill_and_reap(child);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 10), 0); /* at once, not after a while */
  CHECK_EQ(fixture_used(ledger, 0), GIB);
}

TEST(ledger_fork_takes_own_slot) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 1000), 0);
  pid_t child = fork();
  if (child == 0) {
    ledger_after_fork(ledger);
    CHECK_EQ(ledger_charge(ledger, 0, GIB), VC_ENOMEM);
    CHECK_EQ(ledger_charge(ledger, 0, 500), 0);
    CHECK_EQ(fixture_used(ledger, 0), 1500);
    CHECK(atomic_load(&ledger->slot) == 1);
    _Exit(0);
  }
  expect_exit(child, 0);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 1000), 0); /* the child's 500 came back with its death */
}

/* A program that execs another one keeps PID and start time but no CUDA memory. */
TEST(ledger_exec_drops_leftovers) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, GIB), 0);
  struct ledger_slot *slot = &ledger->file->slot[0];
  /* As after exec: mappings and descriptor gone (close-on-exec), then the new program attaches. */
  ledger_hold_release(&ledger->hold, 0);
  os_close(ledger->hold.file.fd);
  CHECK_EQ(atomic_load(&slot->pid), getpid());
  struct ledger *again = fixture_attach();
  CHECK_EQ(ledger_charge(again, 0, GIB), 0);
  CHECK_EQ(fixture_sum(again, 0), GIB);
}

static void close_everything(void) {
  for (int fd = 3; fd < 4096; fd++) close(fd);
}

/* A daemon that closes all descriptors loses its name, not its quota. */
TEST(ledger_closed_descriptors) {
  int ready[2], go[2];
  char byte;
  fixture_create(GIB);
  CHECK_EQ(pipe(ready), 0);
  CHECK_EQ(pipe(go), 0);
  pid_t child = fork();
  if (child == 0) {
    struct ledger *ledger = fixture_attach();
    CHECK_EQ(ledger_charge(ledger, 0, GIB / 2), 0);
    CHECK_EQ(dup2(ready[1], 1), 1);
    CHECK_EQ(dup2(go[0], 0), 0);
    close_everything();
    CHECK_EQ(open("/dev/null", O_RDWR), 3); /* something else sits where our descriptor may have been */
    CHECK_EQ(write(1, "r", 1), 1);
    CHECK_EQ(read(0, &byte, 1), 1);
    CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM); /* reads, and takes the lock again */
    CHECK_EQ(write(1, "r", 1), 1);
    CHECK_EQ(read(0, &byte, 1), 1);
    _Exit(0);
  }
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, GIB / 2), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM); /* alive: it holds its slot */
  CHECK_EQ(fixture_sum(ledger, 0), GIB);
  CHECK_EQ(write(go[1], "g", 1), 1);
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  int32_t pid = 0;
  CHECK_EQ(os_lock_owner(ledger->hold.file.fd, LEDGER_LOCKS + 0, &pid), 1);
  CHECK_EQ(pid, child);
  CHECK_EQ(write(go[1], "g", 1), 1);
  expect_exit(child, 0);
}

static uint64_t really_held(uint32_t column) { return column == 0 ? 600 : 0; }

/* The slot was not held and another process took it: the next charge notices and registers what is really held. */
TEST(ledger_lost_slot_registers_again) {
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  ledger_set_usage(ledger, really_held, NULL);
  CHECK_EQ(ledger_charge(ledger, 0, 600), 0);
  struct ledger_slot *slot = &ledger->file->slot[0];
  atomic_fetch_add(&slot->generation, 1); /* what empty_slot() does, in its order */
  atomic_store(&slot->used[0], USED_TICK * 9);
  ledger_uncharge(ledger, 0, 600); /* must not touch a slot that is no longer ours */
  CHECK_EQ(used_bytes(atomic_load(&slot->used[0])), 0);
  CHECK_EQ(ledger_charge(ledger, 0, 401), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 0, 400), 0);
  CHECK_EQ(fixture_used(ledger, 0), 1000);
}

static struct ledger *interrupted;
static int interruptions;

/* Called while the thread changes slots: what a signal's handler would meet at this instant. */
static uint64_t interrupt(uint32_t column) {
  static struct ledger_process processes[4];
  usleep(20000); /* by now a reading would search for the dead too */
  if (column == 0) interruptions++;
  CHECK_EQ(fixture_used(interrupted, 1), 300);
  CHECK_EQ(ledger_processes(interrupted, 1, processes, 4), 1);
  ledger_confirm_lock(interrupted);
  if (column == 0) CHECK_EQ(ledger_charge(interrupted, 1, 2000), VC_ENOMEM);
  return 0;
}

/* A handler that runs in the midst of a registration asks how much memory is used, and may ask for some: it must not
 * wait for the thread that it has interrupted. */
TEST(ledger_signal_while_registering) {
  int ready[2];
  char byte;
  fixture_create(1000);
  CHECK_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQ(ledger_charge(fixture_attach(), 1, 300), 0); /* with others there, a reading checks whether they live */
    CHECK_EQ(write(ready[1], "r", 1), 1);
    pause();
  }
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  interrupted = fixture_attach();
  ledger_set_usage(interrupted, interrupt, NULL);
  CHECK_EQ(ledger_charge(interrupted, 0, 100), 0);
  ledger_hold_release(&interrupted->hold, (uint32_t)atomic_load(&interrupted->slot));
  atomic_fetch_add(&interrupted->file->slot[atomic_load(&interrupted->slot)].generation, 1); /* the slot is lost */
  CHECK_EQ(ledger_charge(interrupted, 0, 200), 0);
  CHECK_EQ(interruptions, 1);
  CHECK_EQ(fixture_used(interrupted, 0), 200);
  kill(child, SIGKILL);
  expect_exit(child, 128 + SIGKILL);
}

/* A process that lost its slot must not take the lock of it again: the next owner would seem to live for ever. */
TEST(ledger_lost_slot_keeps_no_lock) {
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 600), 0);
  struct ledger_slot *slot = &ledger->file->slot[0];
  ledger_hold_release(&ledger->hold, 0); /* as if the program had unmapped it */
  os_close(ledger->hold.file.fd); /* drops the record lock; then another process takes the slot, and dies in it */
  atomic_fetch_add(&slot->generation, 2);
  atomic_store(&slot->used[0], USED_TICK * 9 + 600);
  atomic_store(&slot->pid, 999999999);
  ledger_confirm_lock(ledger);
  pid_t child = fork();
  if (child == 0) {
    struct ledger *other = fixture_attach();
    CHECK_EQ(ledger_charge(other, 0, 1000), 0); /* what the dead one had is back */
    _Exit(0);
  }
  expect_exit(child, 0);
}

/* A free that finds its slot emptied and taken gives nothing back there, however much it frees. */
TEST(ledger_free_after_losing_the_slot) {
  fixture_create(1000);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 600), 0);
  struct ledger_slot *slot = &ledger->file->slot[0];
  atomic_fetch_add(&slot->generation, 2);
  for (uint64_t theirs = 0; theirs <= 900; theirs += 300) {
    atomic_store(&slot->used[0], USED_TICK * 9 + theirs);
    ledger_uncharge(ledger, 0, 600);
    CHECK_EQ(used_bytes(atomic_load(&slot->used[0])), theirs);
  }
}

/* A program that reads its own ledger through the bindings drops its own lock (closing any descriptor does), which
 * must cost it nothing. */
TEST(ledger_reader_in_process_keeps_slot) {
  static struct vc_slot_usage usage[8];
  struct vc_ledger_info info;
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, GIB / 2), 0);
  CHECK(ledger_read(test_path("ledger"), &info, usage, 8) >= 0);
  pid_t child = fork();
  if (child == 0) {
    struct ledger *other = fixture_attach();
    CHECK_EQ(ledger_charge(other, 0, GIB / 2 + 1), VC_ENOMEM);
    CHECK_EQ(ledger_charge(other, 0, GIB / 2), 0);
    _Exit(0);
  }
  expect_exit(child, 0);
  CHECK_EQ(used_bytes(atomic_load(&ledger->file->slot[0].used[0])), GIB / 2);
}

TEST(ledger_slots_are_reused) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 1), 0);
  for (int i = 0; i < 3000; i++) { /* three times as many processes as there are slots */
    pid_t child = fork();
    if (child == 0) {
      ledger_after_fork(ledger);
      _Exit(ledger_charge(ledger, 0, 100) == 0 ? 0 : 1);
    }
    expect_exit(child, 0);
  }
  CHECK(atomic_load(&ledger->file->high_water) <= 16);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 1), 0);
}

TEST(ledger_full_table) {
  static pid_t children[VC_MAX_SLOTS];
  int ready[2];
  char byte;
  struct rlimit limit;
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(getrlimit(RLIMIT_NPROC, &limit), 0);
  CHECK_EQ(pipe(ready), 0);
  for (int i = 0; i < VC_MAX_SLOTS; i++) {
    children[i] = fork();
    CHECK(children[i] >= 0);
    if (children[i] == 0) {
      ledger_after_fork(ledger);
      int status = ledger_charge(ledger, 0, 1);
      if (write(ready[1], status == 0 ? "r" : "x", 1) != 1) _Exit(1);
      for (;;) pause();
    }
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_EQ(byte, 'r');
  }
  CHECK_EQ(fixture_sum(ledger, 0), VC_MAX_SLOTS);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_EFULL);
  kill_and_reap(children[500]);
  CHECK_EQ(ledger_charge(ledger, 0, 1), 0); /* one place came free */
  for (int i = 0; i < VC_MAX_SLOTS; i++)
    if (i != 500) kill_and_reap(children[i]);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - 1), 0);
}

TEST(ledger_processes_have_pids) {
  struct ledger_process list[8];
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  pid_t child = child_that_holds(300);
  CHECK_EQ(ledger_charge(ledger, 0, 200), 0);
  CHECK_EQ(ledger_processes(ledger, 0, list, 8), 2);
  CHECK_EQ(list[0].pid, child);
  CHECK_EQ(list[0].bytes, 300);
  CHECK_EQ(list[1].pid, getpid());
  CHECK_EQ(list[1].bytes, 200);
  CHECK_EQ(ledger_processes(ledger, 0, list, 0), 2);
  CHECK_EQ(ledger_processes(ledger, 1, list, 8), 0);
  kill_and_reap(child);
  CHECK_EQ(ledger_processes(ledger, 0, list, 8), 1);
}

TEST(ledger_knows_the_pids_of_its_processes) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  pid_t child = child_that_holds(300);
  CHECK_EQ(ledger_has_process(ledger, getpid()), 0); /* it has charged nothing yet, and so it has no slot */
  CHECK_EQ(ledger_charge(ledger, 0, 200), 0);
  ledger_uncharge(ledger, 0, 200);
  CHECK_EQ(ledger_has_process(ledger, getpid()), 1); /* whatever it holds */
  CHECK_EQ(ledger_has_process(ledger, child), 1);
  CHECK_EQ(ledger_has_process(ledger, getppid()), 0);
  CHECK_EQ(ledger_has_process(ledger, 0), 0);
  kill_and_reap(child);
  CHECK_EQ(ledger_has_process(ledger, child), 0);
}

/* A process stopped between mark and decision: others are refused in bounded time, and allowed what surely fits. */
TEST(ledger_stopped_decider_hangs_no_other) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  pid_t child = child_that_holds(GIB / 2);
  kill(child, SIGSTOP);
  atomic_store(&ledger->file->slot[0].mark[0], 1); /* as if stopped there */
  CHECK_EQ(ledger_charge(ledger, 0, GIB / 2 + 1), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 0, GIB / 2), 0);
  kill_and_reap(child);
  CHECK_EQ(ledger_charge(ledger, 0, GIB / 2), 0);
}

TEST(ledger_peak) {
  struct vc_ledger_info info;
  static struct vc_slot_usage usage[4];
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 700), 0);
  ledger_uncharge(ledger, 0, 700);
  CHECK_EQ(ledger_charge(ledger, 0, 300), 0);
  CHECK_EQ(ledger_charge(ledger, 0, GIB), VC_ENOMEM);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 4), 1);
  CHECK_EQ(info.peak[0], 700);
  CHECK_EQ(usage[0].peak[0], 700);
  CHECK_EQ(usage[0].refused, 1);
}

TEST(ledger_undeclared) {
  struct vc_ledger_info info;
  struct ledger_holding before, after;
  static struct vc_slot_usage usage[4];
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  ledger_charge_anyway(ledger, 0, 5); /* without a slot: nothing */
  CHECK_EQ(ledger_holding(ledger, 0, &before), VC_ENOENT);
  CHECK_EQ(ledger_charge(ledger, 0, GIB - VC_UNDECLARED_UNIT), 0);
  CHECK_EQ(ledger_holding(ledger, 0, &before), 0);
  CHECK_EQ(before.bytes, GIB - VC_UNDECLARED_UNIT);
  ledger_charge_anyway(ledger, 0, 3 * VC_UNDECLARED_UNIT); /* it is held: beyond the limit, too */
  ledger_note_undeclared(ledger, 0, 3 * VC_UNDECLARED_UNIT);
  CHECK_EQ(ledger_holding(ledger, 0, &after), 0);
  CHECK_EQ(after.bytes, GIB + 2 * VC_UNDECLARED_UNIT);
  CHECK(after.state != before.state);
  CHECK_EQ(ledger_charge(ledger, 0, 1), VC_ENOMEM);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 4), 1);
  CHECK_EQ(usage[0].used[0], GIB + 2 * VC_UNDECLARED_UNIT);
  CHECK_EQ(usage[0].undeclared[0], 3 * VC_UNDECLARED_UNIT);
  CHECK_EQ(usage[0].undeclared[1], 0);
  CHECK_EQ(usage[0].peak[0], GIB - VC_UNDECLARED_UNIT); /* of what was charged */
  ledger_uncharge(ledger, 0, 3 * VC_UNDECLARED_UNIT);
  CHECK_EQ(ledger_charge(ledger, 0, VC_UNDECLARED_UNIT), 0); /* a new peak leaves the undeclared bytes alone */
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 4), 1);
  CHECK_EQ(usage[0].undeclared[0], 3 * VC_UNDECLARED_UNIT);
  CHECK_EQ(usage[0].peak[0], GIB);
  ledger_note_undeclared(ledger, 0, UINT64_MAX);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 4), 1);
  CHECK_EQ(usage[0].undeclared[0], GIB); /* never more than is used */
  CHECK_EQ(usage[0].peak[0], GIB);
}

/* A slot that changes hands starts without the undeclared bytes of the one before. */
TEST(ledger_undeclared_dies_with_its_slot) {
  struct vc_ledger_info info;
  static struct vc_slot_usage usage[4];
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQ(ledger_charge(ledger, 0, GIB), 0);
    ledger_note_undeclared(ledger, 0, GIB / 2);
    _Exit(0);
  }
  expect_exit(child, 0);
  CHECK_EQ(ledger_charge(ledger, 0, GIB), 0);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 4), 1);
  CHECK_EQ(usage[0].used[0], GIB);
  CHECK_EQ(usage[0].undeclared[0], 0);
}
