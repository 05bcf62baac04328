/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzz target is: a function of bytes that must not crash and whose findings are broken promises, checked with
 * REQUIRE. The same targets are run by libFuzzer (make fuzz) and, without clang, by replay.c (make check).
 * A target may keep nothing between two inputs. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                               \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      fprintf(stderr, "%s:%d: REQUIRE(%s) failed\n", __FILE__, __LINE__, #condition);    \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

#define COUNT(array) (sizeof(array) / sizeof *(array))

#endif
