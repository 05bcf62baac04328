/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of device memory: a reserved part of the address space that is cut into blocks in constant time and
 * without system calls. The host's memory behind a block appears when something is copied there, and no sooner.
 * Must not depend on quotas, contexts or pools. Tests: tests/unit/fakedriver/test_memory.py.
 *
 * The arena consists of granules of 1 GiB. A granule holds blocks of one power-of-two size, or belongs to one block
 * of several granules. What is known of a block is found by arithmetic from its address. */
#include "fake_cuda.h"

#include <pthread.h>
#include <sys/mman.h>

enum {
  SMALLEST = 9, /* log2 of 512 bytes, the alignment of cuMemAlloc */
  LARGEST = 30, /* log2 of a granule */
  GRANULES = 16384,
  PER_GRANULE = 1 << (LARGEST - SMALLEST),
  LARGE_HEAD = 100,
  LARGE_TAIL,
  FREE_LARGE = 4096,
};
#define GRANULE_BYTES (1ull << LARGEST)

static char *arena;
static struct block *blocks; /* PER_GRANULE per granule, untouched pages cost nothing */
static uint32_t granules, granules_used;
static uint8_t granule_class[GRANULES];
static uint32_t granule_head[GRANULES]; /* first granule of a large block */
static uint64_t free_list[LARGEST + 1]; /* block number + 1; the next one is in the block's size */
static uint32_t fresh_granule[LARGEST + 1], fresh_next[LARGEST + 1], fresh_granule_known[LARGEST + 1];
static struct {
  uint32_t first, count;
} free_large[FREE_LARGE];
static uint32_t free_large_count;
_Alignas(64) static _Atomic int spin;

static void lock(void) {
  for (unsigned spins = 0; __builtin_expect(atomic_exchange_explicit(&spin, 1, memory_order_acquire), 0);) do
      state_spin(spins++);
    while (atomic_load_explicit(&spin, memory_order_relaxed));
}
static void unlock(void) { atomic_store_explicit(&spin, 0, memory_order_release); }

static int reserve(void) {
  const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (uint32_t count = GRANULES; count >= 64; count /= 2) { /* less under ulimit -v */
    void *memory = mmap(NULL, (count + 1) * GRANULE_BYTES, protection, flags, -1, 0);
    if (memory == MAP_FAILED) continue;
    void *table = mmap(NULL, (uint64_t)count * PER_GRANULE * sizeof *blocks, protection, flags, -1, 0);
    if (table == MAP_FAILED) {
      munmap(memory, (count + 1) * GRANULE_BYTES);
      continue;
    }
    madvise(memory, (count + 1) * GRANULE_BYTES, MADV_DONTDUMP);
    blocks = table;
    arena = (char *)(((uintptr_t)memory + GRANULE_BYTES - 1) & ~(GRANULE_BYTES - 1));
    granules = count;
    return 0;
  }
  return -1;
}

/* --- blocks of several granules --------------------------------------------------------------------------------- */

static int take_large(uint32_t count, uint32_t *first) {
  for (uint32_t i = 0; i < free_large_count; i++) {
    if (free_large[i].count < count) continue;
    *first = free_large[i].first;
    free_large[i].first += count;
    free_large[i].count -= count;
    if (free_large[i].count == 0) free_large[i] = free_large[--free_large_count];
    return 0;
  }
  if (granules - granules_used < count) return -1;
  *first = granules_used;
  granules_used += count;
  return 0;
}

static void give_large(uint32_t first, uint32_t count) {
  for (uint32_t i = 0; i < free_large_count;) { /* join with free neighbours */
    if (free_large[i].first + free_large[i].count == first) {
      first = free_large[i].first;
    } else if (first + count != free_large[i].first) {
      i++;
      continue;
    }
    count += free_large[i].count;
    free_large[i] = free_large[--free_large_count];
    i = 0;
  }
  if (free_large_count == FREE_LARGE) return; /* these addresses are lost, nothing else */
  free_large[free_large_count].first = first;
  free_large[free_large_count++].count = count;
}

/* --- all blocks ------------------------------------------------------------------------------------------------- */

static unsigned class_of(uint64_t size) {
  unsigned class = 64 - (unsigned)__builtin_clzll((size - 1) | 1);
  return class < SMALLEST ? SMALLEST : class;
}

static int take_small(unsigned class, uint64_t *number) {
  if (free_list[class]) {
    *number = free_list[class] - 1;
    free_list[class] = blocks[*number].size;
    return 0;
  }
  if (!fresh_granule_known[class] || fresh_next[class] == 1u << (LARGEST - class)) {
    uint32_t granule;
    if (take_large(1, &granule)) return -1;
    granule_class[granule] = (uint8_t)class;
    fresh_granule[class] = granule;
    fresh_next[class] = 0;
    fresh_granule_known[class] = 1;
  }
  *number = (uint64_t)fresh_granule[class] * PER_GRANULE + fresh_next[class]++;
  return 0;
}

static int take_any(uint64_t size, uint64_t *number, CUdeviceptr *address) {
  if (size <= GRANULE_BYTES) {
    unsigned class = class_of(size);
    if (take_small(class, number)) return -1;
    *address = (uintptr_t)arena + (*number / PER_GRANULE << LARGEST) + (*number % PER_GRANULE << class);
    return 0;
  }
  uint32_t count = (uint32_t)((size + GRANULE_BYTES - 1) >> LARGEST), first;
  if (size > (uint64_t)granules << LARGEST || take_large(count, &first)) return -1;
  memset(granule_class + first, LARGE_TAIL, count);
  granule_class[first] = LARGE_HEAD;
  for (uint32_t i = 0; i < count; i++) granule_head[first + i] = first;
  *number = (uint64_t)first * PER_GRANULE;
  *address = (uintptr_t)arena + ((uint64_t)first << LARGEST);
  return 0;
}

CUresult arena_take(uint64_t size, struct block block, CUdeviceptr *address) {
  uint64_t number;
  lock();
  int failed = (__builtin_expect(!arena, 0) && reserve()) || take_any(size, &number, address);
  if (!failed) {
    blocks[number].size = size;
    blocks[number].word = block.word;
  }
  unlock();
  return failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

int arena_contains(CUdeviceptr address) { return arena && address - (uintptr_t)arena < (uint64_t)granules << LARGEST; }

/* Number of the block around ADDRESS, -1: none. */
static int64_t locate(CUdeviceptr address, CUdeviceptr *base) {
  if (!arena_contains(address)) return -1;
  uint64_t offset = address - (uintptr_t)arena, granule = offset >> LARGEST;
  unsigned class = granule_class[granule];
  if (class == 0) return -1;
  if (class >= LARGE_HEAD) {
    *base = (uintptr_t)arena + ((uint64_t)granule_head[granule] << LARGEST);
    return (int64_t)granule_head[granule] * PER_GRANULE;
  }
  uint64_t index = (offset & (GRANULE_BYTES - 1)) >> class;
  *base = (uintptr_t)arena + (granule << LARGEST) + (index << class);
  return (int64_t)(granule * PER_GRANULE + index);
}

struct block *arena_find(CUdeviceptr address, CUdeviceptr *base) {
  int64_t number = locate(address, base);
  if (number < 0 || blocks[number].kind == BLOCK_FREE || address - *base >= blocks[number].size) return NULL;
  return &blocks[number];
}

/* Drops the host's memory of a block that was written to; what is smaller than a page keeps it. */
static void drop_pages(CUdeviceptr base, const struct block *block) {
  uint64_t first = (base + 4095) & ~4095ull, end = (base + block->size + 4095) & ~4095ull;
  if (block->size < 4096) return;
  if (block->flags & BLOCK_SHARED)
    mmap((void *)first, end - first, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
  else madvise((void *)first, end - first, MADV_DONTNEED);
}

CUresult arena_give(CUdeviceptr address, int (*accepts)(const struct block *block), struct block *block) {
  CUdeviceptr base = 0;
  lock();
  int64_t number = locate(address, &base);
  if (number < 0 || base != address || blocks[number].kind == BLOCK_FREE || !accepts(&blocks[number])) {
    unlock();
    return CUDA_ERROR_INVALID_VALUE;
  }
  block->size = blocks[number].size;
  block->word = blocks[number].word;
  if (__builtin_expect(block->flags != 0, 0)) drop_pages(base, block);
  blocks[number].kind = BLOCK_FREE;
  uint64_t granule = (uint64_t)number / PER_GRANULE;
  unsigned class = granule_class[granule];
  if (class >= LARGE_HEAD) {
    uint32_t count = (uint32_t)((block->size + GRANULE_BYTES - 1) >> LARGEST);
    memset(granule_class + granule, 0, count);
    give_large((uint32_t)granule, count);
  } else {
    blocks[number].size = free_list[class];
    free_list[class] = (uint64_t)number + 1;
  }
  unlock();
  return CUDA_SUCCESS;
}

void arena_each(void (*visit)(CUdeviceptr address, struct block *block, void *arg), void *arg) {
  for (uint64_t granule = 0; granule < granules_used; granule++) {
    unsigned class = granule_class[granule];
    uint64_t count = class == 0 || class == LARGE_TAIL ? 0 : class == LARGE_HEAD ? 1 : 1ull << (LARGEST - class);
    if (class && class < LARGE_HEAD && granule == fresh_granule[class]) count = fresh_next[class];
    for (uint64_t i = 0; i < count; i++) {
      struct block *block = &blocks[granule * PER_GRANULE + i];
      if (block->kind != BLOCK_FREE)
        visit((uintptr_t)arena + (granule << LARGEST) + (class < LARGE_HEAD ? i << class : 0), block, arg);
    }
  }
}
