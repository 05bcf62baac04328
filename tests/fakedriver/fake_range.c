/* SPDX-License-Identifier: Apache-2.0 */
/* All address ranges that are not blocks of the arena: host memory, reservations, mappings, memory of old ABIs.
 * Must not depend on what they are for. Tests: tests/unit/fakedriver/test_vmm.py, test_memory.py. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>

static struct range *ranges; /* sorted by base; a mapping comes after the reservation that holds it */
static size_t count, capacity;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Number of ranges that begin at or before ADDRESS. */
static size_t upper(CUdeviceptr address) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].base <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static int overlaps(const struct range *a, const struct range *b) {
  return a->base < b->base + b->size && b->base < a->base + a->size;
}

int range_add(const struct range *range) {
  pthread_mutex_lock(&mutex);
  int inner = range->kind == RANGE_MAPPED, failed = 0;
  for (size_t i = 0; i < count && !failed; i++)
    failed = overlaps(&ranges[i], range) && inner == (ranges[i].kind == RANGE_MAPPED);
  if (!failed && count == capacity) {
    size_t larger = capacity ? capacity * 2 : 64;
    struct range *grown = realloc(ranges, larger * sizeof *ranges);
    failed = !grown;
    if (grown) {
      ranges = grown;
      capacity = larger;
    }
  }
  if (!failed) {
    size_t at = upper(range->base);
    memmove(ranges + at + 1, ranges + at, (count - at) * sizeof *ranges);
    ranges[at] = *range;
    count++;
  }
  pthread_mutex_unlock(&mutex);
  return failed ? -1 : 0;
}

/* KIND < 0: whatever is innermost. */
static struct range *find(CUdeviceptr address, int kind) {
  struct range *best = NULL;
  for (size_t i = upper(address); i-- > 0;) {
    struct range *range = &ranges[i];
    if (address - range->base >= range->size || (kind >= 0 && (int)range->kind != kind)) continue;
    if (!best || range->size < best->size) best = range;
    if (best->kind != RANGE_MAPPED || kind >= 0) break;
  }
  return best;
}

int range_find_kind(CUdeviceptr address, enum range_kind kind, struct range *out) {
  pthread_mutex_lock(&mutex);
  struct range *range = find(address, (int)kind);
  if (range) *out = *range;
  pthread_mutex_unlock(&mutex);
  return range ? 0 : -1;
}

int range_find(CUdeviceptr address, struct range *out) {
  pthread_mutex_lock(&mutex);
  struct range *range = find(address, -1);
  if (range) *out = *range;
  pthread_mutex_unlock(&mutex);
  return range ? 0 : -1;
}

int range_remove(CUdeviceptr base, enum range_kind kind, struct range *out) {
  pthread_mutex_lock(&mutex);
  struct range *range = find(base, (int)kind);
  int failed = !range || range->base != base;
  if (!failed) {
    *out = *range;
    size_t at = (size_t)(range - ranges);
    memmove(range, range + 1, (--count - at) * sizeof *ranges);
  }
  pthread_mutex_unlock(&mutex);
  return failed ? -1 : 0;
}

CUdeviceptr range_gap(CUdeviceptr low, CUdeviceptr high, uint64_t size, uint64_t alignment) {
  pthread_mutex_lock(&mutex);
  CUdeviceptr at = (low + alignment - 1) & ~(alignment - 1);
  for (size_t i = 0; i < count; i++) {
    if (ranges[i].base + ranges[i].size <= at) continue;
    if (ranges[i].base >= high || at + size <= ranges[i].base) break;
    at = (ranges[i].base + ranges[i].size + alignment - 1) & ~(alignment - 1);
  }
  pthread_mutex_unlock(&mutex);
  return at + size <= high ? at : 0;
}

void range_each(void (*visit)(struct range *range, void *arg), void *arg) {
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < count; i++) visit(&ranges[i], arg);
  pthread_mutex_unlock(&mutex);
}
