/* SPDX-License-Identifier: Apache-2.0 */
/* Address ranges of a graph's allocations, as a list that grows, and how many bytes they cover.
 * Uses nothing of CUDA. Tests: tests/native/test_ranges.c. */
#ifndef VC_CUDA_RANGES_H
#define VC_CUDA_RANGES_H

#include <stddef.h>
#include <stdint.h>

/* Memory is mapped to a graph in pages of this size, the smallest that the driver maps on today's GPUs
 * (CU_MEM_ALLOC_GRANULARITY_MINIMUM). */
enum { RANGES_PAGE = 2 << 20 };

/* What one node does to an address. */
struct range {
  uint64_t start;
  uint64_t end;    /* of an allocation; start itself for a free */
  uint32_t column; /* of an allocation */
};

/* All zero is an empty list. */
struct ranges {
  struct range *at;
  size_t count;
  size_t capacity;
};

/* VC_EIO: no memory. */
int ranges_add(struct ranges *ranges, uint64_t start, uint64_t bytes, uint32_t column);
/* An address that is freed again; an allocation and a free of the same address cancel out. */
int ranges_add_free(struct ranges *ranges, uint64_t address);
void ranges_drop(struct ranges *ranges);

/* Sorts; to be called before the two below. */
void ranges_sort(struct ranges *ranges);

/* Bytes of the pages that a column's allocations lie in, each page once: allocations that never live at the same time
 * may share their addresses. UNFREED: only of those that are not freed again. */
uint64_t ranges_cover(const struct ranges *ranges, uint32_t column, int unfreed);

#endif
