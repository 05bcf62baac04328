/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: pools that hold more than is in use. Must not depend on streams beyond the context of one and
 * the time its work ends. Tests: tests/unit/fakedriver/test_pools.py.
 *
 * A pool takes memory from the GPU in units of pool_granularity and gives what is unused and above its release
 * threshold back when something synchronises. What was freed in stream order is "pending" until a synchronisation finds
 * the work before it done: only the same stream takes it again before, and neither another stream's allocation nor a
 * trim can have it. Where the blocks lie inside is not simulated: a pool never fragments. */
#include "fake_pool.h"

#include <pthread.h>
#include <stdlib.h>

HANDLE_SIZE_CHECK(struct CUmemPoolHandle_st);
static struct handles pools = HANDLES(struct CUmemPoolHandle_st, 1 << 14);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool default_pool[FAKE_MAX_GPUS], current_pool[FAKE_MAX_GPUS]; /* by ordinal */

static uint64_t block_size(uint64_t bytes) { return (bytes + 511) & ~511ull; }

static uint64_t chunks(uint64_t bytes) {
  uint64_t unit = fake_state->machine.pool_granularity;
  return (bytes / unit + (bytes % unit != 0)) * unit;
}

int pool_valid(CUmemoryPool pool) { return handle_valid(&pools, pool); }
unsigned pool_index(CUmemoryPool pool) { return handle_index(&pools, pool); }

CUmemoryPool pool_make(unsigned gpu, enum pool_kind kind) {
  CUmemoryPool pool = handle_new(&pools);
  if (!pool) return NULL;
  pool->gpu = gpu;
  pool->kind = kind;
  pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
  return pool;
}

CUresult pool_made_once(CUmemoryPool *place, unsigned gpu, enum pool_kind kind, CUmemoryPool *out) {
  pthread_mutex_lock(&mutex);
  if (!*place && (*place = pool_make(gpu, kind))) (*place)->is_default = 1;
  *out = *place;
  pthread_mutex_unlock(&mutex);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_default(CUdevice device, CUmemoryPool *out) {
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  return pool_made_once(&default_pool[device], device_gpu[device], POOL_DEVICE, out);
}

CUresult pool_current(CUdevice device, CUmemoryPool *out) {
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *out = current_pool[device];
  return *out && handle_valid(&pools, *out) ? CUDA_SUCCESS : pool_default(device, out);
}

void pool_make_current(CUdevice device, CUmemoryPool pool) { current_pool[device] = pool; }

static void give_to_gpu(CUmemoryPool pool, uint64_t bytes) {
  if (pool->kind == POOL_DEVICE) state_uncharge_bill(pool->gpu, bytes, &pool->bill);
  if (pool->kind == POOL_MANAGED) state_uncharge_managed(pool->gpu, bytes);
  pool->reserved -= bytes;
}

/* --- what is pending; all under the mutex ------------------------------------------------------------------------ */

/* Too many streams share the last entry, which none of them may take from. */
static void add_pending(CUmemoryPool pool, const void *stream, uint64_t until, uint64_t bytes) {
  struct pending *entry = NULL, *last = &pool->pending[POOL_PENDING - 1];
  for (struct pending *i = pool->pending; i <= last && !entry; i++)
    if (i->stream == stream || !i->bytes) entry = i;
  if (entry) entry->stream = stream;
  else (entry = last)->stream = NULL;
  if (until > entry->until || !entry->bytes) entry->until = until;
  entry->bytes += bytes;
  pool->pending_bytes += bytes;
}

static void take_pending(CUmemoryPool pool, const void *stream, uint64_t requested) {
  for (int i = 0; i < POOL_PENDING && requested && pool->pending_bytes; i++) {
    struct pending *entry = &pool->pending[i];
    if (entry->stream != stream && !time_is_over(pool->gpu, entry->until)) continue;
    uint64_t taken = requested < entry->bytes ? requested : entry->bytes;
    entry->bytes -= taken;
    pool->pending_bytes -= taken;
    requested -= taken;
  }
}

static void observe(CUmemoryPool pool) {
  for (int i = 0; i < POOL_PENDING; i++) {
    struct pending *entry = &pool->pending[i];
    if (!time_is_over(pool->gpu, entry->until)) continue;
    pool->pending_bytes -= entry->bytes;
    *entry = (struct pending){0};
  }
}

/* --- growing and shrinking --------------------------------------------------------------------------------------- */

/* Gives back what is reserved beyond KEEP and not in use. Under the mutex. */
static void shrink(CUmemoryPool pool, uint64_t keep) {
  uint64_t held = pool->used + pool->pending_bytes, least = held > keep ? held : keep;
  if (least < pool->reserved && (least = chunks(least)) < pool->reserved) give_to_gpu(pool, pool->reserved - least);
}

/* A destroyed pool keeps everything until its last block is gone. */
static void bury_if_empty(CUmemoryPool pool) {
  if (!pool->destroyed || pool->used || pool->pending_bytes) return;
  give_to_gpu(pool, pool->reserved);
  pool->destroyed = 0;
  handle_delete(&pools, pool);
}

void pool_trim(CUmemoryPool pool, uint64_t keep) {
  pthread_mutex_lock(&mutex);
  shrink(pool, keep);
  pthread_mutex_unlock(&mutex);
}

void pool_destroy(CUmemoryPool pool) {
  for (int i = 0; i < FAKE_MAX_GPUS; i++)
    if (current_pool[i] == pool) current_pool[i] = NULL;
  pthread_mutex_lock(&mutex);
  atomic_store(&pool->handle.alive, 0);
  pool->destroyed = 1;
  bury_if_empty(pool);
  pthread_mutex_unlock(&mutex);
}

static void each(unsigned gpu, void (*visit)(CUmemoryPool pool)) {
  if (!pools.base) return;
  pthread_mutex_lock(&mutex);
  for (uint32_t i = 0; i < pools.fresh; i++) {
    CUmemoryPool pool = handle_at(&pools, i);
    if (pool->gpu == gpu && (atomic_load(&pool->handle.alive) || pool->destroyed)) visit(pool);
  }
  pthread_mutex_unlock(&mutex);
}

static void after_sync(CUmemoryPool pool) {
  if (pool->pending_bytes) observe(pool);
  if (pool->destroyed) bury_if_empty(pool);
  else shrink(pool, pool->threshold);
}
void pool_trim_after_sync(CUcontext context) { each(context->gpu, after_sync); }

static void shrink_fully(CUmemoryPool pool) {
  if (!pool->destroyed) shrink(pool, 0);
}
void pool_release_unused(unsigned gpu) { each(gpu, shrink_fully); }

void pool_returned(unsigned index, uint64_t bytes) {
  CUmemoryPool pool = handle_at(&pools, index);
  pthread_mutex_lock(&mutex);
  pool->used -= block_size(bytes);
  bury_if_empty(pool);
  pthread_mutex_unlock(&mutex);
}

static CUresult charge(CUmemoryPool pool, uint64_t bytes) {
  if (pool->kind == POOL_HOST) return CUDA_SUCCESS;
  if (atomic_load(&fake_state->gpu[pool->gpu].lost)) return CUDA_ERROR_UNKNOWN;
  if (pool->kind == POOL_MANAGED) {
    state_charge_managed(pool->gpu, bytes);
    return CUDA_SUCCESS;
  }
  if (!state_charge_bill(pool->gpu, bytes, &pool->bill)) return CUDA_SUCCESS;
  pthread_mutex_unlock(&mutex);
  pool_release_unused(pool->gpu);
  pthread_mutex_lock(&mutex);
  return state_charge_bill(pool->gpu, bytes, &pool->bill) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult grow(CUmemoryPool pool, uint64_t bytes, const void *stream) {
  if (pool->most && pool->used + bytes > pool->most) return CUDA_ERROR_OUT_OF_MEMORY;
  take_pending(pool, stream, bytes);
  pool->used += bytes; /* first: what is charged meanwhile stays needed */
  for (uint64_t needed; (needed = chunks(pool->used + pool->pending_bytes)) > pool->reserved;) {
    uint64_t more = needed - pool->reserved;
    CUresult result = charge(pool, more);
    if (result != CUDA_SUCCESS) {
      pool->used -= bytes;
      return result;
    }
    pool->reserved += more;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
  }
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  return CUDA_SUCCESS;
}

/* --- allocating and freeing -------------------------------------------------------------------------------------- */

/* What stands for a stream among the pending frees: the default one is its context's. */
static const void *pending_key(CUstream own, CUcontext context) { return own ? (const void *)own : context; }

static CUresult take(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, const void *stream) {
  if (bytes > 1ull << 47) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&mutex);
  CUresult result = grow(pool, block_size(bytes), stream);
  pthread_mutex_unlock(&mutex);
  if (result != CUDA_SUCCESS) return result;
  struct block block = {.owner = (uint16_t)pool_index(pool), .kind = BLOCK_POOL, .gpu = (uint8_t)pool->gpu};
  if (pool->kind != POOL_DEVICE) block.flags = BLOCK_TOUCHED; /* the host may write there unseen */
  result = arena_take(bytes, block, out);
  if (result != CUDA_SUCCESS) pool_returned(pool_index(pool), bytes);
  return result;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  CUcontext context;
  CUstream own;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!pool) TRY(pool_current(context->device, &pool));
  if (!handle_valid(&pools, pool) || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (own && own->capture) return graph_capture_alloc(own, pool->gpu, bytes, out);
  TRY(capture_forbids_legacy(stream, context));
  return take(out, bytes, pool, pending_key(own, context));
}
ENTRY(cuMemAllocAsync, (CUdeviceptr *out, size_t bytes, CUstream stream), allocate, (out, bytes, NULL, stream))
ENTRY(cuMemAllocAsync_ptsz, (CUdeviceptr *out, size_t bytes, CUstream stream), allocate,
      (out, bytes, NULL, OWN_DEFAULT(stream)))

static CUresult allocate_from(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  NONNULL(pool);
  return allocate(out, bytes, pool, stream);
}
#define FROM_POOL (CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
ENTRY(cuMemAllocFromPoolAsync, FROM_POOL, allocate_from, (out, bytes, pool, stream))
ENTRY(cuMemAllocFromPoolAsync_ptsz, FROM_POOL, allocate_from, (out, bytes, pool, OWN_DEFAULT(stream)))

static int of_a_pool(const struct block *block) { return block->kind == BLOCK_POOL; }

static CUresult free_from_pool(CUdeviceptr address, const void *stream, uint64_t until) {
  struct block block;
  TRY(arena_give(address, of_a_pool, &block));
  if (block.flags & BLOCK_SHARED) ipc_forget(address);
  CUmemoryPool pool = handle_at(&pools, block.owner);
  pthread_mutex_lock(&mutex);
  pool->used -= block_size(block.size);
  add_pending(pool, stream, until, block_size(block.size));
  pthread_mutex_unlock(&mutex);
  return CUDA_SUCCESS;
}

/* Memory of cuMemAlloc may be freed in stream order too; only the work before it is waited for, later. */
static CUresult free_ordered(CUdeviceptr address, CUstream stream) {
  CUcontext context;
  CUstream own;
  CUdeviceptr base;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  if (own && own->capture) return graph_capture_free(own, address);
  TRY(capture_forbids_legacy(stream, context));
  struct block *block = arena_find(address, &base);
  if (!block) return ipc_close(address);
  if (base != address) return CUDA_ERROR_INVALID_VALUE;
  if (block->kind != BLOCK_POOL) return memory_give(address);
  uint64_t until = atomic_load(own ? &own->busy_until : &context->busy_until);
  return free_from_pool(address, pending_key(own, context), until);
}
ENTRY(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_ordered, (address, stream))
ENTRY(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream), free_ordered, (address, OWN_DEFAULT(stream)))

/* --- the last context of a device -------------------------------------------------------------------------------- */

struct doomed {
  unsigned pool;
  size_t count;
  CUdeviceptr address[256];
};

static void collect(CUdeviceptr address, struct block *block, void *arg) {
  struct doomed *list = arg;
  if (block->kind == BLOCK_POOL && block->owner == list->pool && list->count < 256)
    list->address[list->count++] = address;
}

/* The blocks of its default pool die with it; pools that the program made belong to no context. */
void pool_drop_device(CUdevice device) {
  CUmemoryPool pool = default_pool[device];
  struct doomed list = {.count = 1};
  struct block block;
  if (!pool) return;
  list.pool = pool_index(pool);
  while (list.count) {
    list.count = 0;
    arena_each(collect, &list);
    for (size_t i = 0; i < list.count; i++) arena_give(list.address[i], of_a_pool, &block);
  }
  pthread_mutex_lock(&mutex);
  pool->used = pool->pending_bytes = 0;
  memset(pool->pending, 0, sizeof pool->pending);
  shrink(pool, 0);
  pthread_mutex_unlock(&mutex);
}
