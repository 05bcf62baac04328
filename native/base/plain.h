/* SPDX-License-Identifier: Apache-2.0 */
/* String functions for code that runs before anything else in the process is ready. A sanitizer's own strcmp does not
 * work until the sanitizer has started, and it starts by looking functions up, which brings it here. What every start
 * compares is compared here too: the C library's functions are looked up by the loader when they are first called,
 * which takes a thousand times as long as the comparison. Eight characters at a time: by single ones a dlsym() with
 * RTLD_DEFAULT takes 11 % longer for the length of its name and 32 % for the comparison.
 * Depends on nothing. Tests: tests/integration/test_native_ways.py (the address sanitizer). */
#ifndef VC_BASE_PLAIN_H
#define VC_BASE_PLAIN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Eight characters at a time. Words are read at their own alignment, so none reaches into a page that the text is not
 * in; what lies before and behind the text within its words is masked or comes after the end. */
__attribute__((no_sanitize("address"))) static inline size_t plain_length(const char *text) {
  const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7;
  const unsigned int before = (unsigned int)((uintptr_t)text % 8);
  const uint64_t *word = (const uint64_t *)(const void *)(text - before);
  uint64_t bytes = *word | ((UINT64_C(1) << 8 * before) - 1);
  while (((bytes - ones) & ~bytes & highs) == 0) bytes = *++word;
  bytes = (bytes - ones) & ~bytes & highs;
  return (size_t)((const char *)word - text) + (size_t)__builtin_ctzll(bytes) / 8;
}

static inline uint64_t plain_word(const char *text) {
  uint64_t word;
  memcpy(&word, text, sizeof word); /* one instruction, whatever the compiler's options */
  return word;
}

/* SIZE bytes each. */
static inline int plain_same_bytes(const void *first, const void *second, size_t size) {
  const char *a = first, *b = second;
  size_t at = 0;
  if (size < 8) {
    while (at < size && a[at] == b[at]) at++;
    return at == size;
  }
  for (; at + 8 < size; at += 8)
    if (plain_word(a + at) != plain_word(b + at)) return 0;
  return plain_word(a + size - 8) == plain_word(b + size - 8);
}

static inline int plain_same(const char *a, const char *b) {
  size_t length = plain_length(a);
  return length == plain_length(b) && plain_same_bytes(a, b, length);
}

#endif
