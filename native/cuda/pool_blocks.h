/* SPDX-License-Identifier: Apache-2.0 */
/* The live blocks of all pools.
 * Uses no stream. Tests: tests/integration/test_native_pool.py. */
#ifndef VC_CUDA_POOL_BLOCKS_H
#define VC_CUDA_POOL_BLOCKS_H

#include "pool_account.h"
#include "table.h"

/* A block was allocated. CUDA_ERROR_OUT_OF_MEMORY: there is no memory for its entry. */
CUresult pool_block_put(struct pool *pool, CUdeviceptr block, uint64_t bytes);

/* Takes a block out; 1: it was there. Column and owner of the entry are the number of its pool. */
int pool_block_take(CUdeviceptr address, struct table_entry *out);
void pool_block_put_back(const struct table_entry *entry);

/* Whether a block that begins at ADDRESS is in a pool that stands in for the program's own. */
int pool_is_converted(CUdeviceptr address);

/* Asks the driver again about a pool that is doubtful. */
void pool_ask_again(struct pool *pool);

#endif
