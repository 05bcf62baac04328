/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse and deferred arrays, whose memory is physical memory with holders of its own: what is mapped into them holds
 * it.
 * Counts nothing: holding.c does. Tests: tests/integration/test_native_sparse.py. */
#ifndef VC_CUDA_SPARSE_H
#define VC_CUDA_SPARSE_H

#include "nvidia.h"

/* An array or mipmapped array was made with FLAGS of its descriptor; only sparse and deferred ones are noted. */
void sparse_begin(uint64_t array, unsigned int flags);

/* Destroys an array with CALL, and lets go of what was mapped into it. For arrays that are in no other table. */
CUresult sparse_destroy(uint64_t array, CUresult (*call)(CUdeviceptr key));

#endif
