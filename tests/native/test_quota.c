/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses a quota's directory, what was not seen from Python already (tests/unit/vcuda/test_quotas.py). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "quota.h"
#include "tree.h"

TEST(quota_start_times) {
  uint64_t ours = quota_start_time(getpid());
  CHECK(ours > 0);
  CHECK_EQ(quota_start_time(getpid()), ours);
  CHECK_EQ(quota_start_time(0), 0);
  CHECK_EQ(quota_start_time(-5), 0);
  int pid = fork();
  if (pid == 0) _exit(quota_start_time(getpid()) < ours);
  expect_exit(pid, 0);
  CHECK_EQ(quota_start_time(pid), 0);
}

/* One at a time, until it is given back or its process has gone; a forked child does not keep it. */
TEST(quota_locks) {
  int lock = tree_lock(test_directory(), 0);
  CHECK(lock >= 0);
  CHECK_EQ(tree_lock(test_directory(), 0), VC_EBUSY);
  int child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  tree_unlock(lock);
  lock = tree_lock(test_directory(), 0);
  CHECK(lock >= 0);
  tree_unlock(lock);
  kill(child, SIGKILL);
  expect_exit(child, 128 + SIGKILL);
  int pipes[2];
  char done;
  CHECK_EQ(pipe(pipes), 0);
  child = fork();
  if (child == 0) {
    CHECK(tree_lock(test_directory(), 0) >= 0);
    CHECK_EQ(write(pipes[1], "", 1), 1);
    pause();
  }
  CHECK_EQ(read(pipes[0], &done, 1), 1);
  CHECK_EQ(tree_lock(test_directory(), 20), VC_EBUSY);
  kill(child, SIGKILL);
  expect_exit(child, 128 + SIGKILL);
  lock = tree_lock(test_directory(), 1000);
  CHECK(lock >= 0);
  tree_unlock(lock);
  CHECK_EQ(tree_lock(test_path("missing"), 0), VC_ENOENT);
}

static void put(const char *name, const char *text, size_t length) {
  int fd = open(test_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  CHECK_EQ(write(fd, text, length), (ssize_t)length);
  close(fd);
}

static int named(const struct quota_values *ours, int32_t *pid) {
  return quota_named_by(test_path("proc"), "/tmp/vcuda-1/quota-nb", ours, pid);
}

#define ENVIRON(text) put("proc/7/environ", text, sizeof text - 1)

TEST(quota_named_by_those_who_want_the_same) {
  const struct quota_values four = {.memory = "4GiB"}, shared = {.memory = "4GiB", .cores = "30"};
  int32_t pid = 0;
  CHECK_EQ(mkdir(test_path("proc"), 0700), 0);
  CHECK_EQ(mkdir(test_path("proc/7"), 0700), 0);
  put("proc/7/maps", "", 0);
  ENVIRON("VCUDA_QUOTA=nb\0VCUDA_MEMORY_LIMIT=8GiB\0");
  CHECK_EQ(named(&four, &pid), 1);
  CHECK_EQ(pid, 7);
  ENVIRON("VCUDA_MEMORY_LIMIT=4GiB\0A=b\0VCUDA_QUOTA=nb\0");
  CHECK_EQ(named(&four, NULL), 0);
  CHECK_EQ(named(&shared, NULL), 1);
  CHECK_EQ(named(NULL, NULL), 1);
  ENVIRON("VCUDA_MEMORY_LIMIT=4GiB\0VCUDA_CORES=30\0VCUDA_QUOTA=nb\0");
  CHECK_EQ(named(&four, NULL), 1);
  CHECK_EQ(named(&shared, NULL), 0);
  ENVIRON("VCUDA_QUOTA=nb\0"); /* it joins what is there */
  CHECK_EQ(named(&four, NULL), 1);
  ENVIRON("VCUDA_QUOTA=other\0VCUDA_MEMORY_LIMIT=8GiB\0");
  CHECK_EQ(named(&four, NULL), 0);
  put("proc/7/maps", "1-2 r--s 0 0 5 /b/quota-nb/ledger\n", 35);
  CHECK_EQ(named(&four, NULL), 1);
}
