/* SPDX-License-Identifier: Apache-2.0 */
/* What a synchronisation tells about pools.
 * Tests: tests/integration/test_native_pool_destroyed.py. */
#ifndef VC_CUDA_SYNCHRONIZE_H
#define VC_CUDA_SYNCHRONIZE_H

#include <stdint.h>

#include "nvidia.h"

/* What stands for a stream in the order of frees (LINE_... in pool_account.h); PTSZ: 0 is the thread's own. */
uint64_t pool_line(CUstream stream, int ptsz);

/* LINE was synchronised, in a context (NULL: the current one): pools of which something had been freed are read
 * again. */
void pool_synchronized(uint64_t line, CUcontext context);

#endif
