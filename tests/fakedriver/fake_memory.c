/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory: allocate, free, how much is there.
 * Must not depend on how addresses are found (fake_arena.c) or who else uses the GPU (fake_state.c).
 * Tests: tests/unit/fakedriver/test_memory.py. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MAP_32BIT /* x86 alone has it; elsewhere the addresses of the oldest calls may not fit */
#define MAP_32BIT 0
#endif

#define ABSURD (1ull << 47) /* more than can be addressed */

uint64_t memory_rounded(uint64_t bytes) {
  uint64_t granularity = fake_state->machine.granularity;
  return granularity == 1 ? bytes : (bytes + granularity - 1) / granularity * granularity;
}

CUresult memory_charge(unsigned gpu, uint64_t bytes, unsigned *level) {
  if (__builtin_expect(atomic_load_explicit(&fake_state->gpu[gpu].lost, memory_order_relaxed), 0))
    return CUDA_ERROR_UNKNOWN;
  if (__builtin_expect(state_charge(gpu, bytes, level) == 0, 1)) return CUDA_SUCCESS;
  pool_release_unused(gpu); /* as the driver does before it refuses */
  return state_charge(gpu, bytes, level) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult memory_charge_bill(unsigned gpu, uint64_t bytes, struct fake_bill *bill) {
  if (atomic_load(&fake_state->gpu[gpu].lost)) return CUDA_ERROR_UNKNOWN;
  if (!state_charge_bill(gpu, bytes, bill)) return CUDA_SUCCESS;
  pool_release_unused(gpu);
  return state_charge_bill(gpu, bytes, bill) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void give_back(const struct block *block) {
  uint64_t charged = memory_rounded(block->size);
  if (block->kind == BLOCK_MANAGED && fake_state->machine.managed_access) state_uncharge_managed(block->gpu, charged);
  else state_uncharge(block->gpu, charged, block->flags / BLOCK_LEVEL);
}

CUresult memory_take(CUcontext context, uint64_t bytes, enum block_kind kind, CUdeviceptr *address) {
  if (bytes > ABSURD) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t charged = memory_rounded(bytes);
  unsigned level = 0;
  int paged = kind == BLOCK_MANAGED && fake_state->machine.managed_access;
  if (paged) state_charge_managed(context->gpu, charged);
  else TRY(memory_charge(context->gpu, charged, kind == BLOCK_MANAGED ? NULL : &level));
  struct block block = {
      .size = bytes, .owner = (uint16_t)context_index(context), .kind = (uint8_t)kind, .gpu = (uint8_t)context->gpu};
  if (kind == BLOCK_MANAGED) block.flags = BLOCK_TOUCHED; /* the host may write there unseen */
  block.flags |= level * BLOCK_LEVEL;
  CUresult result = arena_take(bytes, block, address);
  if (result != CUDA_SUCCESS) give_back(&block);
  return result;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, enum block_kind kind) {
  CUcontext context;
  CUdeviceptr address;
  TRY(context_current(&context));
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  TRY(memory_take(context, bytes, kind, &address));
  *out = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  ENTER(cuMemAlloc_v2);
  return allocate(out, bytes, BLOCK_DEVICE);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  ENTER(cuMemAllocPitch_v2);
  if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
  if (width > ABSURD || height > ABSURD / width) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t row = (width + 511) & ~(size_t)511;
  TRY(allocate(out, row * height, BLOCK_DEVICE));
  *pitch = row;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
  ENTER(cuMemAllocManaged);
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return allocate(out, bytes, BLOCK_MANAGED);
}

static int freeable(const struct block *block) {
  return block->kind == BLOCK_DEVICE || block->kind == BLOCK_MANAGED || block->kind == BLOCK_POOL;
}

CUresult memory_give(CUdeviceptr address) {
  struct block block;
  if (__builtin_expect(arena_give(address, freeable, &block) != CUDA_SUCCESS, 0)) return graph_memory_free(address);
  if (__builtin_expect(block.flags & BLOCK_SHARED, 0)) ipc_forget(address);
  if (__builtin_expect(block.kind == BLOCK_POOL, 0)) pool_returned(block.owner, block.size);
  else give_back(&block);
  return CUDA_SUCCESS;
}

/* --- old ABI: addresses of 32 bits ------------------------------------------------------------------------------ */

static CUdeviceptr low_base;
#define LOW_BYTES (512ull << 20) /* MAP_32BIT has 1 GiB for all of the process */

static CUresult allocate_low(CUdeviceptr_v1 *out, uint64_t bytes) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  CUcontext context;
  unsigned level;
  TRY(context_current(&context));
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  TRY(memory_charge(context->gpu, memory_rounded(bytes), &level));
  pthread_mutex_lock(&mutex);
  if (!low_base) {
    void *low =
        mmap(NULL, LOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_32BIT, -1, 0);
    if (low != MAP_FAILED) low_base = (uintptr_t)low;
  }
  struct range range = {.size = bytes, .kind = RANGE_LOW, .gpu = context->gpu, .context = context_index(context), .flags = level};
  range.base = low_base ? range_gap(low_base, low_base + LOW_BYTES, bytes, 512) : 0;
  int failed = !range.base || range_add(&range);
  pthread_mutex_unlock(&mutex);
  if (failed) {
    state_uncharge(context->gpu, memory_rounded(bytes), level);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = (CUdeviceptr_v1)range.base;
  return CUDA_SUCCESS;
}

static CUresult free_low(CUdeviceptr address) {
  struct range range;
  if (range_remove(address, RANGE_LOW, &range)) return external_free(address);
  madvise((void *)((range.base + 4095) & ~4095ull), range.size & ~4095ull, MADV_DONTNEED);
  state_uncharge(range.gpu, memory_rounded(range.size), range.flags);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned bytes) {
  ENTER(cuMemAlloc);
  return allocate_low(out, bytes);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
  ENTER(cuMemAllocPitch);
  if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t row = ((uint64_t)width + 511) & ~511ull;
  if (row > UINT32_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
  TRY(allocate_low(out, row * height));
  *pitch = (unsigned)row;
  return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr address) {
  CUcontext context;
  TRY(context_current(&context));
  if (!address) return CUDA_SUCCESS;
  if (__builtin_expect(!arena_contains(address), 0))
    return ipc_close(address) == CUDA_SUCCESS ? CUDA_SUCCESS : free_low(address);
  return memory_give(address);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  ENTER(cuMemFree_v2);
  return release(address);
}

CUresult cuMemFree(CUdeviceptr_v1 address) {
  ENTER(cuMemFree);
  return release(address);
}

/* --- questions -------------------------------------------------------------------------------------------------- */

static inline CUresult get_info(uint64_t *available, uint64_t *total) {
  CUcontext context;
  TRY(context_current(&context));
  state_reap_if_hinted();
  const struct fake_gpu *properties = &fake_state->machine.gpu[context->gpu];
  uint64_t used = atomic_load_explicit(&fake_state->gpu[context->gpu].used, memory_order_relaxed);
  *total = properties->memory_bytes;
  *available = properties->memory_bytes - properties->reserved_bytes - used;
  if (__builtin_expect(limits_are_on(), 0)) limits_narrow(context->gpu, total, available);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  ENTER(cuMemGetInfo_v2);
  if (!available || !total) return CUDA_ERROR_INVALID_VALUE;
  return get_info(available, total);
}

CUresult cuMemGetInfo(unsigned *available, unsigned *total) {
  ENTER(cuMemGetInfo);
  uint64_t is_free, all;
  if (!available || !total) return CUDA_ERROR_INVALID_VALUE;
  TRY(get_info(&is_free, &all));
  *available = is_free > UINT32_MAX ? UINT32_MAX : (unsigned)is_free;
  *total = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
  return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr address, CUdeviceptr *base, size_t *size) {
  CUcontext context;
  CUdeviceptr begin;
  struct range range;
  TRY(context_current(&context));
  struct block *block = arena_find(address, &begin);
  if (block) {
    *base = begin;
    *size = block->size;
    return CUDA_SUCCESS;
  }
  if (range_find(address, &range)) return CUDA_ERROR_NOT_FOUND;
  *base = range.base;
  *size = range.size;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  ENTER(cuMemGetAddressRange_v2);
  CUdeviceptr begin;
  size_t length;
  TRY(address_range(address, &begin, &length));
  if (base) *base = begin;
  if (size) *size = length;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 address) {
  ENTER(cuMemGetAddressRange);
  CUdeviceptr begin;
  size_t length;
  TRY(address_range(address, &begin, &length));
  if (base) *base = (CUdeviceptr_v1)begin;
  if (size) *size = length > UINT32_MAX ? UINT32_MAX : (unsigned)length;
  return CUDA_SUCCESS;
}

void *memory_reach(CUdeviceptr address, uint64_t bytes) {
  CUdeviceptr base;
  struct range range;
  struct block *block = arena_find(address, &base);
  if (block) {
    if (bytes > block->size - (address - base)) return NULL;
    block->flags |= BLOCK_TOUCHED;
    return (void *)address;
  }
  /* Mappings side by side make one buffer, as expandable allocators use them. */
  for (uint64_t reached = 0; reached < bytes || bytes == 0;) {
    if (range_find(address + reached, &range) || range.kind == RANGE_RESERVED) return NULL;
    reached = range.base + range.size - address;
    if (range.kind != RANGE_MAPPED && reached < bytes) return NULL;
    if (bytes == 0) break;
  }
  return (void *)address;
}

/* --- the end of a context --------------------------------------------------------------------------------------- */

struct dropped {
  CUdeviceptr *address;
  size_t count, capacity;
  unsigned context;
};

static void collect(struct dropped *list, CUdeviceptr address) {
  if (list->count == list->capacity) {
    size_t larger = list->capacity ? list->capacity * 2 : 256;
    CUdeviceptr *grown = realloc(list->address, larger * sizeof *grown);
    if (!grown) return; /* the memory comes back when the process ends */
    list->address = grown;
    list->capacity = larger;
  }
  list->address[list->count++] = address;
}

static void visit_block(CUdeviceptr address, struct block *block, void *arg) {
  struct dropped *list = arg;
  if (block->owner == list->context && block->kind != BLOCK_POOL && block->kind != BLOCK_GRAPH) collect(list, address);
}

static void visit_range(struct range *range, void *arg) {
  struct dropped *list = arg;
  if (range->context == list->context && range->kind == RANGE_LOW) collect(list, range->base);
}

static int any_block(const struct block *block) { return block->kind != BLOCK_POOL; }

void memory_drop_context(CUcontext context) {
  struct dropped list = {.context = context_index(context)};
  struct block block;
  arena_each(visit_block, &list);
  range_each(visit_range, &list);
  for (size_t i = 0; i < list.count; i++) {
    if (!arena_contains(list.address[i])) {
      free_low(list.address[i]);
    } else if (arena_give(list.address[i], any_block, &block) == CUDA_SUCCESS) {
      give_back(&block);
    }
  }
  free(list.address);
}
