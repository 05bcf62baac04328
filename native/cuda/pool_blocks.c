/* SPDX-License-Identifier: Apache-2.0 */
/* See pool_blocks.h.
 * Tests: tests/integration/test_native_pool.py. */
#include "pool_blocks.h"

#include "allocators.h"
#include "charge.h"
#include "place.h"
#include "pool_find.h"

/* Address -> bytes; column and owner are both the number of the pool. */
static VC_LARGE struct table blocks;

CUresult pool_block_put(struct pool *pool, CUdeviceptr block, uint64_t bytes) {
  const struct table_entry entry = {block, bytes, pool_number(pool), pool_number(pool)};
  struct table_entry old;
  int status = table_put(&blocks, &entry, &old);
  if (status == 1) /* it was freed by a call that is not hooked */
    pool_released(pool_numbered(old.column), old.bytes, LINE_NONE);
  return status >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int pool_block_take(CUdeviceptr address, struct table_entry *out) {
  return address != 0 && table_take(&blocks, address, out);
}

void pool_block_put_back(const struct table_entry *entry) {
  struct table_entry old;
  table_put_back(&blocks, entry, &old);
}

int pool_is_converted(CUdeviceptr address) {
  struct table_entry entry;
  if (!table_get(&blocks, address, &entry)) return 0;
  return (atomic_load(&pool_numbered(entry.column)->column) & COLUMN_CONVERTED) != 0;
}

/* --- when blocks die without being freed ------------------------------------------------------------------------- */

static void drop(const struct table_entry *entry, void *data) {
  struct pool *pool = data;
  pool_released(pool, entry->bytes, LINE_NONE);
}

static void ask_what_is_left(struct pool *pool, void *data) {
  const uint32_t *column = data;
  if (!pool_counts(pool, *column)) return;
  if (pool_was_emptied(pool)) table_take_owner(&blocks, pool_number(pool), drop, pool);
}

void pool_ask_again(struct pool *pool) {
  if (pool->doubtful && pool_was_emptied(pool)) table_take_owner(&blocks, pool_number(pool), drop, pool);
}

static void context_gone(uint32_t column) {
  pool_each(ask_what_is_left, &column);
  pool_current_changed();
}

void pool_blocks_after_fork(void) { table_reset(&blocks); }

ALLOCATOR(pool_blocks) = {.context_gone = context_gone};
