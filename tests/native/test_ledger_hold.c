/* SPDX-License-Identifier: Apache-2.0 */
/* The lock that says a slot's owner lives: whatever the owner does to its descriptors, user and root directory, and
 * whatever the others can see of it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger_fixture.h"
#include "os.h"

enum { HELD = 600, LIMIT = 1000 };

/* Where a mapping keeps another file (overlayfs), the dead may count for longer than they live: only
 * hold_outlives_closed_descriptors says something there. */
static int create(void) {
  struct os_file file;
  fixture_create(LIMIT);
  CHECK_EQ(os_open(test_path("ledger"), 0, &file), 0);
  int keeps = os_mapping_keeps(file.fd);
  os_close(file.fd);
  if (keeps) CHECK_EQ(ledger_hold_lasts(test_path("ledger")), 1);
  if (!keeps) fprintf(stderr, "on this file system a mapping may keep another file\n");
  return keeps;
}

/* A child that holds HELD bytes of column 0 and then does AFTERWARDS; it goes on until it is killed. */
static pid_t owner_that(void (*afterwards)(struct ledger *)) {
  int ready[2];
  char byte;
  CHECK_EQ(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    struct ledger *ledger = fixture_attach();
    CHECK_EQ(dup2(ready[1], 1), 1);
    CHECK_EQ(ledger_charge(ledger, 0, HELD), 0);
    if (afterwards != NULL) afterwards(ledger);
    CHECK_EQ(write(1, "r", 1), 1);
    for (;;) pause();
  }
  close(ready[1]);
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  return pid;
}

static void kill_and_reap(pid_t pid) {
  CHECK_EQ(kill(pid, SIGKILL), 0);
  CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* A child with a ledger of its own (BEFORE: what befalls it once it is attached) gets what is left, and no more. */
static void expect_room(void (*before)(struct ledger *), uint64_t room) {
  pid_t pid = fork();
  if (pid == 0) {
    struct ledger *ledger = fixture_attach();
    if (before != NULL) before(ledger);
    CHECK_EQ(ledger_charge(ledger, 0, room + 1), VC_ENOMEM);
    CHECK_EQ(ledger_charge(ledger, 0, room), 0);
    _Exit(0);
  }
  expect_exit(pid, 0);
}

static void close_everything(struct ledger *ledger) {
  (void)ledger;
  for (int fd = 3; fd < 4096; fd++) close(fd);
}

/* What a scanner does: open the file by its path, and close it. */
static void open_and_close(struct ledger *ledger) { close(open(ledger->hold.path, O_RDONLY | O_CLOEXEC)); }

static void lose_the_name(struct ledger *ledger) {
  open_and_close(ledger);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

/* Another user's process without /proc, where that is permitted. */
static void leave_the_world(struct ledger *ledger) {
  char empty[512];
  (void)ledger;
  snprintf(empty, sizeof empty, "%s", test_path("empty"));
  mkdir(empty, 0755);
  int entered = geteuid() == 0 || unshare(CLONE_NEWUSER) == 0;
  if (!entered || chroot(empty) != 0 || chdir("/") != 0) fprintf(stderr, "another root is not permitted here\n");
  if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) fprintf(stderr, "another user is not permitted here\n");
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static void lose_the_name_and_leave(struct ledger *ledger) {
  open_and_close(ledger);
  leave_the_world(ledger);
}

TEST(hold_outlives_closed_descriptors) {
  fixture_create(LIMIT);
  pid_t daemon = owner_that(close_everything);
  expect_room(NULL, LIMIT - HELD);
  kill_and_reap(daemon);
  expect_room(NULL, LIMIT); /* at once */
  pid_t scanned = owner_that(open_and_close);
  expect_room(NULL, LIMIT - HELD);
  kill_and_reap(scanned);
  expect_room(NULL, LIMIT);
}

TEST(hold_is_seen_without_proc) {
  if (!create()) return;
  pid_t owner = owner_that(lose_the_name);
  expect_room(leave_the_world, LIMIT - HELD);
  kill_and_reap(owner);
  owner = owner_that(lose_the_name_and_leave);
  expect_room(NULL, LIMIT - HELD);
  expect_room(leave_the_world, LIMIT - HELD);
  kill_and_reap(owner);
  expect_room(leave_the_world, LIMIT);
}

static pid_t *shared_pid;

static void leave_a_child(struct ledger *ledger) {
  (void)ledger;
  pid_t child = fork(); /* no fork handler here: as with a system call of the program's own */
  if (child == 0)
    for (;;) pause();
  *shared_pid = child;
}

/* A child that does nothing with the ledger must not keep its dead parent's bytes. */
TEST(hold_is_not_inherited) {
  shared_pid = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (!create()) return;
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  pid_t owner = owner_that(leave_a_child);
  expect_room(NULL, LIMIT - HELD);
  kill_and_reap(owner);
  CHECK_EQ(kill(*shared_pid, 0), 0);
  expect_room(NULL, LIMIT);
  kill_and_reap(*shared_pid);
}

/* The PID lives on with another program, which maps nothing. What exec closes is let go of before the new program's
 * first instruction, and after the process has its new name: so the new program says when it runs. */
TEST(hold_ends_at_exec) {
  int ready[2];
  char byte;
  if (!create()) return;
  CHECK_EQ(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    CHECK_EQ(ledger_charge(fixture_attach(), 0, HELD), 0);
    CHECK_EQ(dup2(ready[1], 1), 1);
    execl("/bin/sh", "sh", "-c", "echo r; exec sleep 60", (char *)NULL);
    _Exit(9);
  }
  close(ready[1]);
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  expect_room(NULL, LIMIT);
  kill_and_reap(pid);
}

/* The file cannot be opened any more when the first charge comes: the lock is that of the ledger's own mapping. */
TEST(hold_without_a_path) {
  int ready[2];
  char byte;
  if (!create()) return;
  CHECK_EQ(pipe(ready), 0);
  pid_t owner = fork();
  if (owner == 0) {
    struct ledger *ledger = fixture_attach();
    leave_the_world(ledger);
    CHECK_EQ(ledger_charge(ledger, 0, HELD), 0);
    close_everything(ledger); /* the pipe too: what is read is its end */
    for (;;) pause();
  }
  close(ready[1]);
  CHECK_EQ(read(ready[0], &byte, 1), 0);
  expect_room(NULL, LIMIT - HELD);
  expect_room(leave_the_world, LIMIT - HELD);
  kill_and_reap(owner);
  expect_room(NULL, LIMIT);
}

static uint64_t really_held(uint32_t column) { return column == 0 ? HELD : 0; }

/* A program that unmaps what it does not know: its slot may be taken, and its next charge puts right what is
 * counted. */
TEST(hold_lost_is_noticed) {
  if (!create()) return;
  struct ledger *ledger = fixture_attach();
  ledger_set_usage(ledger, really_held, NULL);
  CHECK_EQ(ledger_charge(ledger, 0, HELD), 0);
  CHECK_EQ(munmap(ledger->hold.page, OS_HOLD_BYTES), 0);
  open_and_close(ledger);
  expect_room(NULL, LIMIT);
  CHECK_EQ(ledger_charge(ledger, 0, LIMIT - HELD + 1), VC_ENOMEM);
  CHECK_EQ(ledger_charge(ledger, 0, 1), 0);
  CHECK_EQ(fixture_used(ledger, 0), HELD + 1);
  open_and_close(ledger);
  expect_room(NULL, LIMIT - HELD - 1); /* and is held again */
}

/* A slot that was emptied keeps its owner's word, and has no owner: 0 would mean the caller's own process group. */
TEST(hold_word_of_an_empty_slot) {
  uint64_t word = UINT64_C(1) << 63 | os_pid_namespace();
  CHECK_EQ(ledger_may_live(word, 0, 0), 0);
  CHECK_EQ(ledger_may_live(word, -1, 0), 0);
  CHECK_EQ(ledger_may_live(word, getpid(), 0), 0); /* the program before exec */
  CHECK_EQ(ledger_may_live(word, getppid(), 0), 1);
  CHECK_EQ(ledger_may_live(word + 1, getppid(), 0), 1); /* another namespace: it cannot be told */
  CHECK_EQ(ledger_may_live(0, getppid(), 0), 0);
}

TEST(hold_reader_tells_who_lives) {
  static struct vc_slot_usage usage[8];
  struct vc_slot_owner owners[2];
  struct vc_ledger_info info;
  if (!create()) return;
  pid_t owner = owner_that(NULL);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 8), 1);
  CHECK_EQ(usage[0].pid, owner);
  CHECK_EQ(usage[0].alive, 1);
  kill_and_reap(owner);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 8), 1);
  CHECK_EQ(usage[0].pid, 0);
  CHECK_EQ(usage[0].alive, 0);
  CHECK_EQ(usage[0].used[0], HELD); /* no process needed room yet */
  owner = owner_that(close_everything);
  CHECK_EQ(ledger_read(test_path("ledger"), &info, usage, 8), 1);
  CHECK_EQ(usage[0].pid, 0);
  CHECK_EQ(usage[0].pid_inside, owner);
  CHECK_EQ(usage[0].alive, 1);
  CHECK_EQ(ledger_owners(test_path("ledger"), owners, 2), 1);
  CHECK_EQ(owners[0].pid, 0);
  kill_and_reap(owner);
}
