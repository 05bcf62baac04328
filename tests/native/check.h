/* SPDX-License-Identifier: Apache-2.0 */
/* What a native test is made of: a name, a child process and an exit code. Failed checks print both operands.
 * A test that needs other processes forks them itself and reaps them with expect_exit(). */
#ifndef TESTS_NATIVE_CHECK_H
#define TESTS_NATIVE_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST(name) void test_##name(void)

/* A test that the list does not name would never run: it has no prototype and does not compile. */
#pragma GCC diagnostic error "-Wmissing-prototypes"
#define TEST_ENTRY(name, seconds) TEST(name);
#include "test_list.h"
#undef TEST_ENTRY

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition);   \
      _Exit(1);                                                                       \
    }                                                                                 \
  } while (0)

#define CHECK_EQ(actual, expected)                                                                      \
  do {                                                                                                  \
    long long check_a = (long long)(actual), check_e = (long long)(expected);                           \
    if (check_a != check_e) {                                                                           \
      fprintf(stderr, "%s:%d: %s is %lld, expected %s = %lld\n", __FILE__, __LINE__, #actual, check_a,  \
              #expected, check_e);                                                                      \
      _Exit(1);                                                                                         \
    }                                                                                                   \
  } while (0)

#define CHECK_STR(actual, expected)                                                                     \
  do {                                                                                                  \
    const char *check_a = (actual), *check_e = (expected);                                              \
    if (strcmp(check_a, check_e) != 0) {                                                                \
      fprintf(stderr, "%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #actual, check_a,   \
              check_e);                                                                                 \
      _Exit(1);                                                                                         \
    }                                                                                                   \
  } while (0)

/* A directory of this test's own, removed by the runner when the test has ended. */
const char *test_directory(void);
/* PATH inside it, in static storage: at most four at a time. */
const char *test_path(const char *name);

/* Waits for a child and checks its exit code (128 + signal when it was killed). */
void expect_exit(int pid, int code);

#endif
