/* SPDX-License-Identifier: Apache-2.0 */
/* shm_api.h for C: the guard, the includes, and the sizes and the checksum that the directive-free text cannot carry.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_limits.c, test_base.c. */
#ifndef VC_SHM_H
#define VC_SHM_H

#include <stddef.h>
#include <stdint.h>

#include "shm_api.h"
#include "status.h"

#define VC_MAX_BYTES ((UINT64_C(1) << 47) - 1) /* 128 TiB: more than any limit can mean, less than a ledger word holds */

/* Checksum of the constant parts of page and ledger, FNV-1a with 64 bits: it notices damage, not malice (a container
 * cannot write its limits page at all). */
#define CHECKSUM_START UINT64_C(0xcbf29ce484222325)

/* Continues SUM over SIZE bytes; begin with CHECKSUM_START. */
static inline uint64_t checksum_add(uint64_t sum, const void *bytes, size_t size) {
  const uint8_t *p = bytes;
  for (size_t i = 0; i < size; i++) sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
  return sum;
}

#endif
