/* SPDX-License-Identifier: Apache-2.0 */
/* Sorted by address, so that one pass sees what overlaps. Heap sort: no recursion, no memory, no bad case; the C
 * library's qsort may call the program's malloc.
 * Tests: tests/native/test_ranges.c. */
#define _GNU_SOURCE
#include "ranges.h"

#include <string.h>
#include <sys/mman.h>

#include "status.h"

static void *pages(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static int grow(struct ranges *ranges) {
  size_t capacity = ranges->capacity != 0 ? ranges->capacity * 2 : 4096 / sizeof(struct range);
  struct range *at = pages(capacity * sizeof *at);
  if (at == NULL) return VC_EIO;
  size_t count = ranges->count;
  if (count != 0) memcpy(at, ranges->at, count * sizeof *at);
  ranges_drop(ranges);
  *ranges = (struct ranges){at, count, capacity};
  return VC_OK;
}

static int add(struct ranges *ranges, const struct range *range) {
  if (ranges->count == ranges->capacity && grow(ranges) != VC_OK) return VC_EIO;
  ranges->at[ranges->count++] = *range;
  return VC_OK;
}

int ranges_add(struct ranges *ranges, uint64_t start, uint64_t bytes, uint32_t column) {
  const struct range range = {start, bytes < UINT64_MAX - start ? start + bytes : UINT64_MAX, column};
  return bytes == 0 ? VC_OK : add(ranges, &range);
}

int ranges_add_free(struct ranges *ranges, uint64_t address) {
  const struct range range = {address, address, 0};
  return add(ranges, &range);
}

void ranges_drop(struct ranges *ranges) {
  if (ranges->at != NULL) munmap(ranges->at, ranges->capacity * sizeof *ranges->at);
  *ranges = (struct ranges){NULL, 0, 0};
}

static void sift(struct range *at, size_t root, size_t count) {
  const struct range moved = at[root];
  for (size_t child; (child = 2 * root + 1) < count; root = child) {
    if (child + 1 < count && at[child + 1].start > at[child].start) child++;
    if (at[child].start <= moved.start) break;
    at[root] = at[child];
  }
  at[root] = moved;
}

void ranges_sort(struct ranges *ranges) {
  struct range *at = ranges->at;
  for (size_t i = ranges->count / 2; i-- > 0;) sift(at, i, ranges->count);
  for (size_t last = ranges->count; last-- > 1;) {
    const struct range largest = at[0];
    at[0] = at[last];
    at[last] = largest;
    sift(at, 0, last);
  }
}

/* All entries of one address: the largest end of the column's allocations, 0 when there is none or (UNFREED) when as
 * many frees come with them. */
static uint64_t end_at(const struct ranges *ranges, size_t *index, uint32_t column, int unfreed) {
  uint64_t start = ranges->at[*index].start, end = 0;
  long live = 0;
  for (; *index < ranges->count && ranges->at[*index].start == start; ++*index) {
    const struct range *range = &ranges->at[*index];
    live += range->end == start ? -1 : 1;
    if (range->end != start && range->column == column && range->end > end) end = range->end;
  }
  return unfreed && live <= 0 ? 0 : end;
}

static uint64_t page_down(uint64_t address) { return address & ~(uint64_t)(RANGES_PAGE - 1); }

static uint64_t page_up(uint64_t address) {
  return address > UINT64_MAX - RANGES_PAGE ? page_down(UINT64_MAX) : page_down(address + RANGES_PAGE - 1);
}

uint64_t ranges_cover(const struct ranges *ranges, uint32_t column, int unfreed) {
  uint64_t sum = 0, covered = 0; /* pages below COVERED are counted */
  for (size_t i = 0; i < ranges->count;) {
    uint64_t start = page_down(ranges->at[i].start), end = end_at(ranges, &i, column, unfreed);
    if (end == 0 || page_up(end) <= covered) continue;
    if (start < covered) start = covered;
    covered = page_up(end);
    sum += covered - start;
  }
  return sum;
}
