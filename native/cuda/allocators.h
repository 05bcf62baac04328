/* The list of all that holds device memory in this process, in one place: each function below asks every allocator. A
 * new one adds its lines to allocators.c.
 * Tests: tests/integration/test_native_quota.py. */
#ifndef VC_CUDA_ALLOCATORS_H
#define VC_CUDA_ALLOCATORS_H

#include <stdint.h>

/* Bytes that this process holds of a column, from its own allocation tables. */
uint64_t allocators_usage(uint32_t column);

/* The part of it that is managed. */
uint64_t allocators_managed_usage(uint32_t column);

/* Before a refusal: what is held in reserve goes back to the driver and out of the charge. 1: something did.
 * Calls itself nothing that charges; a second call on the same thread meanwhile does nothing. */
int allocators_reclaim(uint32_t column);

/* A context of the column's device is gone, and all charges of its owner are given back: for what belongs to a device
 * and may have gone too. */
void allocators_context_gone(uint32_t column);

/* A context is gone (context.h), and what died with it is given back. */
void allocators_forget_owner(uint32_t owner);

/* In a forked child, which has no context and no memory. */
void allocators_after_fork(void);

#endif
