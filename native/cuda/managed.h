/* SPDX-License-Identifier: Apache-2.0 */
/* Memory beyond a container's physical share: managed memory that the program takes for the GPU's own. Where it can be
 * had, and how it is taken and advised. Why: docs/adr/0030.
 * Uses the driver's managed memory, and charges nothing. Tests: tests/integration/test_native_oversub.py. */
#ifndef VC_CUDA_MANAGED_H
#define VC_CUDA_MANAGED_H

#include "nvidia.h"

/* Whether BYTES of managed memory on the current device can be had: the driver moves pages while kernels run, and the
 * host has that much memory. Each reason against it is logged once. */
int managed_is_possible(uint64_t bytes);

/* BYTES of managed memory that prefer the current device. */
CUresult managed_allocate(CUdeviceptr *out, size_t bytes);

/* What the driver would choose for a row of WIDTH bytes; 0: it does not fit into 64 bits. */
size_t managed_pitch(size_t width);

/* A pool of managed memory that prefers DEV, with nothing given back unasked; NULL: this driver has no such pools. */
CUmemoryPool managed_pool(CUdevice dev);

/* Whether this process has managed memory that the program takes for the GPU's own; and noting that it has. */
int managed_is_there(void);
void managed_note(void);

/* Brings converted memory of the column, the current device's, back to the GPU in the order of STREAM: at once instead
 * of page by page. For a moment at which no other container uses the GPU. PER_THREAD: stream 0 is the thread's own. */
void managed_fetch(uint32_t column, CUstream stream, int per_thread);

#endif
