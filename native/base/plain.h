/* String functions for code that runs before anything else in the process is ready. A sanitizer's own strcmp does not
 * work until the sanitizer has started, and it starts by looking functions up, which brings it here.
 * Knows nobody. Tests: tests/integration/test_native_ways.py (the address sanitizer). */
#ifndef VC_BASE_PLAIN_H
#define VC_BASE_PLAIN_H

#include <stddef.h>

/* The empty statement keeps the compiler from recognising the loop and calling strlen after all. */
static inline size_t plain_length(const char *text) {
  const char *end = text;
  for (; *end != 0; end++) __asm__ volatile("");
  return (size_t)(end - text);
}

static inline int plain_same(const char *a, const char *b) {
  for (; *a == *b; a++, b++)
    if (*a == 0) return 1;
  return 0;
}

#endif
