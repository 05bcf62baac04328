/* SPDX-License-Identifier: Apache-2.0 */
/* The quota that a program heads: its name, and how that gets into the environment. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "config.h"
#include "head.h"

#define RANDOM_24 "0123456789abcdef01234567"
#define SUM_16 "00000000000000ff"

TEST(head_names) {
  static const char *const wrong[] = {"", "env-", "env-1", "env-x-" RANDOM_24 "-" SUM_16, "run-1-" RANDOM_24 "-" SUM_16,
                                      "env-1-" RANDOM_24, "env-1-" RANDOM_24 "-", "env-1-" RANDOM_24 "-" SUM_16 "0",
                                      "env-1-" RANDOM_24 "0-" SUM_16, "env--" RANDOM_24 "-" SUM_16,
                                      "env-0-" RANDOM_24 "-" SUM_16, "env-99999999999-" RANDOM_24 "-" SUM_16,
                                      "env-4294967296-" RANDOM_24 "-" SUM_16, "env-1-" RANDOM_24 "-" SUM_16 "/x"};
  char name[HEAD_NAME];
  uint64_t values = 0;
  int32_t pid = 0;
  CHECK_EQ(head_parse("env-1-" RANDOM_24 "-" SUM_16, &pid, &values), 1);
  CHECK_EQ(pid, 1);
  CHECK_EQ(values, 0xff);
  CHECK_EQ(head_parse("env-2147483647-" RANDOM_24 "-" SUM_16, &pid, &values), 1);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    if (head_parse(wrong[i], &pid, &values)) fprintf(stderr, "accepted: \"%s\"\n", wrong[i]);
    CHECK_EQ(head_parse(wrong[i], &pid, &values), 0);
  }
  CHECK_EQ(head_name(UINT64_MAX, name), 0);
  CHECK_EQ(head_parse(name, &pid, &values), 1);
  CHECK_EQ(pid, getpid());
  CHECK(values == UINT64_MAX);
}

/* All in the new array, and nothing else of the old one than what a shell says of itself. */
TEST(head_becomes_a_part_of_the_environment) {
  char *block[] = {"A=1", "_=/bin/x", "VCUDA_MEMORY_LIMIT=8GiB", "B_=2", NULL};
  environ = block;
  CHECK(head_published() == NULL);
  head_publish("/base", "env-1-x", block);
  CHECK_STR(head_published(), "/base/env-1-x");
  CHECK(environ != block);
  CHECK_STR(environ[0], "A=1");
  CHECK_STR(environ[1], "_=/bin/x");
  CHECK_STR(environ[3], "B_=2");
  CHECK_STR(environ[4], "VCUDA_DIR=/base/env-1-x");
  CHECK(environ[5] == NULL);
  CHECK_STR(getenv("VCUDA_DIR"), "/base/env-1-x");
  CHECK_STR(block[1], "VCUDA_DIR=/base/env-1-x");
  CHECK_STR(block[3], "B_=2");
  CHECK(block[4] == NULL);
  /* What a program may do with its environment later. */
  CHECK_EQ(setenv("C", "3", 1), 0);
  CHECK_EQ(unsetenv("A"), 0);
  CHECK_EQ(putenv("D=4"), 0);
  CHECK_STR(getenv("VCUDA_DIR"), "/base/env-1-x");
  CHECK_EQ(unsetenv("VCUDA_DIR"), 0);
  CHECK(getenv("VCUDA_DIR") == NULL);
  CHECK_STR(head_published(), "/base/env-1-x");
  CHECK_EQ(clearenv(), 0);
}

static char names[8][HEAD_NAME];

static void *choose(void *out) {
  head_name(5, out);
  return NULL;
}

/* Threads agree, children too, and another process has another. */
TEST(head_of_one_process) {
  pthread_t threads[8];
  char other[HEAD_NAME] = "";
  int pipes[2];
  CHECK_EQ(pipe(pipes), 0);
  int pid = fork();
  if (pid == 0) {
    head_name(5, other);
    _exit(write(pipes[1], other, sizeof other) != sizeof other);
  }
  CHECK_EQ(read(pipes[0], other, sizeof other), (ssize_t)sizeof other);
  expect_exit(pid, 0);
  for (int i = 0; i < 8; i++) CHECK_EQ(pthread_create(&threads[i], NULL, choose, names[i]), 0);
  for (int i = 0; i < 8; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
  for (int i = 1; i < 8; i++) CHECK_STR(names[i], names[0]);
  CHECK(strcmp(other, names[0]) != 0);
  pid = fork();
  if (pid == 0) {
    head_name(5, other);
    _exit(strcmp(other, names[0]) != 0);
  }
  expect_exit(pid, 0);
}

static uint64_t values_of(const char *memory, const char *physical, const char *cores) {
  struct config config;
  char why[CONFIG_WHY];
  setenv("VCUDA_MEMORY_LIMIT", memory, 1);
  if (physical != NULL) setenv("VCUDA_PHYSICAL_LIMIT", physical, 1);
  if (cores != NULL) setenv("VCUDA_CORES", cores, 1);
  config_read(&config, why);
  unsetenv("VCUDA_PHYSICAL_LIMIT");
  unsetenv("VCUDA_CORES");
  return config.values;
}

TEST(head_is_what_its_values_say) {
  if (access("/etc/vcuda/limits", F_OK) == 0) return;
  unsetenv("VCUDA_DIR");
  unsetenv("VCUDA_QUOTA");
  uint64_t eight = values_of("8GiB", NULL, NULL);
  CHECK(eight != 0);
  CHECK(values_of("8192MiB", NULL, NULL) == eight);
  CHECK(values_of("9GiB", NULL, NULL) != eight);
  CHECK(values_of("8GiB", "4GiB", NULL) != eight);
  CHECK(values_of("8GiB", NULL, "30") != eight);
  CHECK(values_of("0=8GiB", NULL, NULL) != eight);
  CHECK(values_of("0=8GiB", NULL, NULL) != values_of("1=8GiB", NULL, NULL));
  CHECK_EQ(values_of("nonsense", NULL, NULL), 0);
}
