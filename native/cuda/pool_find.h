/* SPDX-License-Identifier: Apache-2.0 */
/* The pools of this process: which one a handle is, and which one an allocation without a handle comes from.
 * Uses handles and devices, no sizes. Tests: tests/integration/test_native_pool.py. */
#ifndef VC_CUDA_POOL_FIND_H
#define VC_CUDA_POOL_FIND_H

#include "pool_account.h"

enum { POOLS = 4096 };

/* The pool of a handle that the program got somewhere; *OUT is NULL for one of host memory, which costs nothing.
 * Anything but CUDA_SUCCESS is the answer to the allocation: the pool is unknown. */
CUresult pool_of_handle(CUmemoryPool handle, struct pool **out);

/* The same without asking the driver: NULL also for a pool that was never allocated from. */
struct pool *pool_known(CUmemoryPool handle);

/* The pool that cuMemAllocAsync takes from, if it has been found before: else NULL. */
struct pool *pool_of_stream_known(CUstream stream);

/* Finds it. Needs no current context where the stream has one. As above. */
CUresult pool_of_stream(CUstream stream, struct pool **out);

/* Another handle: KIND and COLUMN (of POOL_COUNTED) are known. NULL: too many pools. */
struct pool *pool_enter(CUmemoryPool handle, enum pool_kind kind, uint32_t column);

/* The driver has destroyed what HANDLE stood for: POOL, which came with BIRTH. Until then it is found, so that no
 * thread takes it for one that costs nothing, or makes a second entry of it, before the driver has answered. Another
 * pool may have the handle, or the place, by now, and keeps it. */
void pool_ended(CUmemoryPool handle, struct pool *pool, uint32_t birth);

/* The current pool of some device is another one now. */
void pool_current_changed(void);

/* Kind and column of a pool at a place that the program named. */
enum pool_kind pool_place(const CUmemLocation *location, CUmemAllocationType type, uint32_t *column);

/* What blocks remember of a pool. */
uint32_t pool_number(const struct pool *pool);
struct pool *pool_numbered(uint32_t number);

/* Every place that is in use. */
void pool_each(void (*visit)(struct pool *pool, void *data), void *data);

/* The library's own pool of managed memory in a column, where stream-ordered allocations go that the physical share has
 * no room for; made when it is first asked for. NULL: there is none. */
struct pool *pool_managed_of(uint32_t column);

#endif
