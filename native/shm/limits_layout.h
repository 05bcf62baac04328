/* SPDX-License-Identifier: Apache-2.0 */
/* The limits page as bytes. Written by the agent or by vcuda run, mapped read-only by every process of the container.
 * Frozen: a change of meaning is a new version number, because running containers keep the library they mapped.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_limits.c. */
#ifndef VC_SHM_LIMITS_LAYOUT_H
#define VC_SHM_LIMITS_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "shm.h"

#define LIMITS_MAGIC "VCUDALIM"
#define LIMITS_VERSION 1u
#define LIMITS_BYTES 4096u

/* A value that may change while processes read it: 48 bits of value under 16 bits of check, so that one aligned store
 * changes both and garbage is noticed. Word 0 is never valid. */
typedef _Atomic uint64_t sealed_t;

struct limits_gpu {
  uint8_t uuid[16];
  uint32_t flags;
  uint32_t reserved0;
  sealed_t memory_bytes;
  sealed_t unhooked_bytes;
  sealed_t cores_percent;
  uint64_t reserved1[2];
};

/* What became possible later, for each GPU at the same index: words that are 0, which is never valid, were written by
 * an agent without them and mean "unset". Live, except that nothing here can widen memory_bytes. */
struct limits_share {
  sealed_t physical_bytes; /* of memory_bytes at most so much on the GPU, the rest in host memory; unset: all of it */
  sealed_t compute_policy; /* VC_COMPUTE_... and a weight */
  sealed_t allowed_permille; /* of the GPU's time at this moment: cores_percent and what is lent; unset: cores_percent */
  sealed_t credit_us;      /* of busy time that the container was charged while others had the GPU, ever since */
  sealed_t time_slice;           /* on a GPU that is given to one container at a time: its state; unset: free */
  uint64_t reserved[3];
};

struct limits_page {
  char magic[8];
  uint32_t version;
  uint32_t size; /* LIMITS_BYTES of this version */
  uint32_t gpu_count;
  uint32_t reserved0;
  uint8_t id[16];
  uint64_t checksum; /* of all that never changes: limits_checksum() */
  _Atomic uint64_t changes;
  uint64_t reserved1;
  struct limits_gpu gpu[VC_MAX_GPUS];
  struct limits_share share[VC_MAX_GPUS];
};

_Static_assert(sizeof(struct limits_gpu) == 64, "one cache line per GPU");
_Static_assert(sizeof(struct limits_share) == 64, "and one more");
_Static_assert(offsetof(struct limits_page, share) == 64 + 64 * VC_MAX_GPUS, "where old pages have zeros");
_Static_assert(sizeof(struct limits_page) == 64 + 128 * VC_MAX_GPUS, "no hidden padding");
_Static_assert(sizeof(struct limits_page) <= LIMITS_BYTES, "the page holds it");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a live change is one store");

#define SEALED_VALUE_MASK ((UINT64_C(1) << 48) - 1)

/* Never zero for any value, and different when one bit differs. */
static inline uint64_t sealed_make(uint64_t value) {
  uint64_t v = value & SEALED_VALUE_MASK;
  uint64_t check = (v ^ (v >> 16) ^ (v >> 32) ^ 0xa5c3u) & 0xffffu;
  return v | (check << 48);
}

static inline uint64_t sealed_value(uint64_t word) { return word & SEALED_VALUE_MASK; }

static inline int sealed_is_valid(uint64_t word) { return word == sealed_make(word); }

/* Of a word of limits_share: OTHERWISE when it was never written. */
static inline uint64_t sealed_or(uint64_t word, uint64_t otherwise) {
  return sealed_is_valid(word) ? sealed_value(word) : otherwise;
}

/* Whether a page or a ledger can be made for these: 1 to VC_MAX_GPUS, all different, values in range. */
int limits_gpus_are_valid(const struct vc_gpu_limit *gpus, uint32_t count);

/* Checks a complete page in memory (a private copy, or a mapping whose size was checked). */
int limits_check(const struct limits_page *page);

/* Maps a page read-only that stands this check: live changes are seen in it. */
int limits_map(const char *path, const struct limits_page **out);
void limits_unmap(const struct limits_page *page);

#endif
