/* The library's own pools of managed memory: where stream-ordered allocations go that the physical share has no room for.
 * Tests: tests/integration/test_native_oversub.py. */
#ifndef VC_CUDA_POOL_MANAGED_H
#define VC_CUDA_POOL_MANAGED_H

#include "pool_account.h"

/* The pool of a column, made when it is first asked for; NULL: there is none. */
struct pool *pool_managed_of(uint32_t column);

void pool_managed_after_fork(void);

#endif
