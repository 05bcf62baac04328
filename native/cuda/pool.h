/* Stream-ordered memory and pools, as the rest of the library sees them.
 * Tests: tests/integration/test_native_pool.py. */
#ifndef VC_CUDA_POOL_H
#define VC_CUDA_POOL_H

#include <stdint.h>

#include "charge.h"

/* Frees ADDRESS, which no other table has, with CALL; blocks of pools go out of the pool's table. */
__attribute__((noinline)) CUresult pool_free(CUdeviceptr address, charge_call *call);

/* Bytes charged for the pools of this process in a column. */
uint64_t pool_usage(uint32_t column);

/* The part of it that is managed. */
uint64_t pool_managed_usage(uint32_t column);

/* Whether a block that begins at ADDRESS is in a pool that stands in for the program's own. */
int pool_is_converted(CUdeviceptr address);

/* Pools of the column give back to the driver, and out of the charge, what they do not need. 1: something did. */
int pool_reclaim(uint32_t column);

struct pool;
/* Asks the driver again about a pool that is doubtful. */
void pool_ask_again(struct pool *pool);

/* LINE (pool_account.h) was synchronised, in a context (NULL: the current one): pools of which something had been freed
 * are read again. */
void pool_synchronized(uint64_t line, CUcontext context);

/* What stands for a stream in that; PTSZ: 0 is the thread's own. */
uint64_t pool_line(CUstream stream, int ptsz);

/* The driver destroyed a context of the column's device, and with it perhaps the blocks of the device's pools. */
void pool_context_gone(uint32_t column);

/* In a forked child. */
void pool_after_fork(void);

#endif
