/* FNV-1a, 64 bits: notices damage, not malice (a container cannot write its limits page at all).
 * Depends on nothing. Tests: tests/native/test_base.c. */
#ifndef VC_BASE_CHECKSUM_H
#define VC_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_START UINT64_C(0xcbf29ce484222325)

/* Continues SUM over SIZE bytes; begin with CHECKSUM_START. */
static inline uint64_t checksum_add(uint64_t sum, const void *bytes, size_t size) {
  const uint8_t *p = bytes;
  for (size_t i = 0; i < size; i++) sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
  return sum;
}

#endif
