/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts of this process: what each was charged, on which GPU, and the number that its allocations are owned by.
 * Uses the driver and the ledger's columns, no allocator. Tests: tests/integration/test_native_context.py. */
#ifndef VC_CUDA_CONTEXT_TABLE_H
#define VC_CUDA_CONTEXT_TABLE_H

#include "nvidia.h"
#include "table.h"

/* Where an allocation of the calling thread goes. */
struct place {
  uint32_t column;
  uint32_t owner; /* serial number of the context, never reused within a process */
};

/* Anything but CUDA_SUCCESS is the answer to an allocation: CUDA_ERROR_OUT_OF_MEMORY, the current device has
 * no share; CUDA_ERROR_INVALID_CONTEXT, no context is current; or the driver's own error, when it does not say which
 * one is. */
CUresult context_place(struct place *out);

/* 1: CONTEXT (NULL: the current one) is on the column's device, and no other one of this process is. */
int context_is_only(CUcontext context, uint32_t column);

/* Entries: a handle, the bytes charged, column and owner. As the functions of table.h. */
int context_table_put(const struct table_entry *entry, struct table_entry *old);
int context_table_get(uint64_t context, struct table_entry *out);
int context_table_take(uint64_t context, struct table_entry *out);
/* A context has come or gone: threads ask the driver again which one is theirs. */
void context_table_changed(void);

uint32_t context_owner_new(void);
/* The owner that the column's primary context has, or will have. */
uint32_t context_primary_owner(uint32_t column);
/* The primary context is gone, and the next one has another owner. Returns the old one, 0: none. */
uint32_t context_primary_renew(uint32_t column);

#endif
