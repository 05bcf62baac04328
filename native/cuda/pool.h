/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory, as the rest of the library sees it.
 * Tests: tests/integration/test_native_pool.py. */
#ifndef VC_CUDA_POOL_H
#define VC_CUDA_POOL_H

#include "charge.h"

/* Frees ADDRESS, which no other table has, with CALL; blocks of pools go out of the pool's table. */
__attribute__((noinline)) CUresult pool_free(CUdeviceptr address, charge_call *call);

#endif
