/* SPDX-License-Identifier: Apache-2.0 */
/* The locks of one process. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "lock.h"

TEST(lock_that_is_taken_is_not_waited_for) {
  struct lock lock = {0};
  CHECK_EQ(lock_try(&lock), 1);
  CHECK_EQ(lock_try(&lock), 0);
  lock_give(&lock);
  CHECK_EQ(lock_try(&lock), 1);
}

static struct lock short_lock;
static struct long_lock long_lock;
static _Atomic int waiter; /* its thread's number in the system */
static _Thread_local int self;

static void *wait_for_short(void *data) {
  atomic_store(&waiter, (int)syscall(SYS_gettid));
  lock_take(&short_lock);
  return data;
}

static void *wait_for_long(void *data) {
  atomic_store(&waiter, (int)syscall(SYS_gettid));
  CHECK_EQ(long_lock_take(&long_lock, &self), 1);
  return data;
}

static char state_of_waiter(void) {
  char path[64], text[128] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", atomic_load(&waiter));
  FILE *file = fopen(path, "r");
  if (file == NULL) return 0;
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  const char *end = strrchr(text, ')');
  return end != NULL ? end[2] : 0;
}

/* Not given before the other one was seen asleep. */
static void give_to_a_sleeper(void *(*body)(void *)) {
  pthread_t thread;
  atomic_store(&waiter, 0);
  lock_take(&short_lock);
  CHECK_EQ(long_lock_take(&long_lock, &self), 1);
  CHECK_EQ(pthread_create(&thread, NULL, body, NULL), 0);
  while (atomic_load(&waiter) == 0) usleep(100);
  while (state_of_waiter() != 'S') usleep(100);
  lock_give(&short_lock);
  long_lock_give(&long_lock);
  pthread_join(thread, NULL);
  CHECK_EQ(lock_try(&short_lock), body == wait_for_long);
  lock_give(&short_lock);
  long_lock_give(&long_lock);
}

TEST(lock_that_is_held_long_is_waited_for_asleep) {
  give_to_a_sleeper(wait_for_short);
  give_to_a_sleeper(wait_for_long);
}

/* On one processor, where nothing of lower priority runs while the waiter runs. A process of real-time priority that
 * has run for so long without sleeping is ended by the kernel. */
static void *wait_at_high_priority(void *data) {
  const struct sched_param urgent = {.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO, &urgent) != 0) _Exit(77);
  void *(*const *body)(void *) = data;
  return (*body)(NULL);
}

static int run_priority_inversion(void *(*body)(void *)) {
  cpu_set_t one;
  pthread_t thread;
  const struct rlimit most = {100000, 100000}; /* µs */
  CPU_ZERO(&one);
  CPU_SET((size_t)sched_getcpu(), &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0 || setrlimit(RLIMIT_RTTIME, &most) != 0) return 77;
  atomic_store(&waiter, 0);
  lock_take(&short_lock);
  CHECK_EQ(long_lock_take(&long_lock, &self), 1);
  CHECK_EQ(pthread_create(&thread, NULL, wait_at_high_priority, &body), 0);
  while (atomic_load(&waiter) == 0) sched_yield();
  lock_give(&short_lock);
  long_lock_give(&long_lock);
  pthread_join(thread, NULL);
  return 0;
}

TEST(lock_is_given_by_a_holder_of_lower_priority) {
  void *(*const bodies[])(void *) = {wait_for_short, wait_for_long};
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    int status;
    pid_t pid = fork();
    if (pid == 0) _Exit(run_priority_inversion(bodies[i]));
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
      fprintf(stderr, "real-time priorities are not permitted here\n");
      return;
    }
    CHECK_EQ(status, 0);
  }
}
