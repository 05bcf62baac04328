/* Contexts: what they cost, and whose allocations die with them.
 * Knows the driver and the ledger, no allocator. Tests: tests/integration/test_native_context.py. */
#ifndef VC_CUDA_CONTEXT_H
#define VC_CUDA_CONTEXT_H

#include "nvidia.h"

/* Where an allocation of the calling thread goes. */
struct place {
  uint32_t column;
  uint32_t owner; /* serial number of the context, never reused within a process */
};

/* Anything but CUDA_SUCCESS is what an allocation has to be answered: CUDA_ERROR_OUT_OF_MEMORY, the current device has no
 * share; CUDA_ERROR_INVALID_CONTEXT, no context is current; or the driver's own error, when it does not say which one is. */
CUresult context_place(struct place *out);

/* 1: CONTEXT (NULL: the current one) is on the column's device, and no other one of this process is. */
int context_is_only(CUcontext context, uint32_t column);

/* In a forked child, which has no context. */
void context_after_fork(void);

/* Bytes charged for the contexts of this process in a column. */
uint64_t context_usage(uint32_t column);

#endif
