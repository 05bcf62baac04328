/* SPDX-License-Identifier: Apache-2.0 */
/* Reserve, call the driver, commit or give back: the one way in which memory is charged; and the tables of live
 * allocations, which have the charge of each address or handle.
 * Uses the ledger, no particular allocator. Tests: tests/integration/test_native_quota.py. */
#ifndef VC_CUDA_CHARGE_H
#define VC_CUDA_CHARGE_H

#include "nvidia.h"
#include "table.h"

/* What the keys of a table are. Keys of different kinds may be equal numbers. */
enum allocation_kind {
  ALLOCATION_LINEAR, /* device addresses */
  ALLOCATION_ARRAY,  /* CUarray, CUmipmappedArray */
  ALLOCATION_LIMIT,  /* heap and buffer sizes of contexts: owner and limit */
  ALLOCATION_KINDS
};

/* The owner of what belongs to no context and lives until it is freed or the process ends. */
enum { OWNER_PROCESS = 0 };

/* What a column may carry beside its number, in tables and charges. */
enum {
  COLUMN_MANAGED = 1 << 8,   /* the bytes may lie on the host: they are charged to the host budget */
  COLUMN_CONVERTED = 1 << 9, /* and the program believes that they are device memory */
  COLUMN_NUMBER = (1 << 8) - 1,
};

/* Frees a key: an address, or a handle cast to one. */
typedef CUresult charge_call(CUdeviceptr key);

/* An allocation under way. */
struct charge {
  int taken; /* 0: nothing is charged: it was given back, or costs nothing */
  uint32_t column;
  uint32_t owner;
  uint64_t bytes;
};

/* Charges BYTES (rounded up to the grain) to the current context's device. Any other result than CUDA_SUCCESS is what
 * the program is answered, and nothing was charged: CUDA_ERROR_OUT_OF_MEMORY, there is no room; else an error of
 * context_place(). */
CUresult charge_begin(struct charge *charge, uint64_t bytes);

/* The same for a column (negative: there is no share, and so no room) and owner. */
CUresult charge_begin_at(struct charge *charge, int column, uint32_t owner, uint64_t bytes);

/* The same as charge_begin() for memory that may be managed instead. CHARGE_EITHER: the GPU's own while the physical
 * share has room, else managed, which charge_is_managed() tells. CHARGE_MANAGED: managed. CHARGE_MANAGED_FIRST: for
 * memory that is managed anyway; beyond the host budget it is charged like the GPU's own. */
enum charge_placement { CHARGE_EITHER, CHARGE_MANAGED, CHARGE_MANAGED_FIRST };
CUresult charge_begin_placed(struct charge *charge, uint64_t bytes, enum charge_placement placement);
/* Whether what was charged as the GPU's own could have been managed. */
int charge_may_be_managed(const struct charge *charge);
static inline int charge_is_managed(const struct charge *charge) {
  return charge->taken && (charge->column & COLUMN_MANAGED) != 0;
}

/* The driver answered RESULT. Success: KEY is in the table. Else: everything is given back. When there is no memory for
 * an entry, UNDO frees KEY again and the answer is CUDA_ERROR_OUT_OF_MEMORY. Returns what the program gets. */
CUresult charge_end(struct charge *charge, enum allocation_kind kind, CUresult result, uint64_t key, charge_call *undo);

/* The size turned out larger (a pitch): charges the difference. CUDA_ERROR_OUT_OF_MEMORY: it does not fit, and the charge
 * is as before. */
CUresult charge_raise(struct charge *charge, uint64_t bytes);

/* Gives back a charge that was begun and is not needed. */
void charge_cancel(struct charge *charge);

/* Charges without an entry in a table; exact bytes. Before a refusal, what the process holds in reserve is given back
 * to the driver once (allocators_reclaim). */
CUresult charge_column(uint32_t column, uint64_t bytes);
void charge_return(uint32_t column, uint64_t bytes);

/* charge_column() without the reclaiming, for callers that hold what a reclaim needs, or can do with less. */
CUresult charge_try(uint32_t column, uint64_t bytes);

/* The driver had no memory for what was charged, and so the program is refused by it and not by the quota: counted once
 * for each call of the program. BYTES: 0 where nobody knows. charge_end() does it for what it is told. */
void charge_driver_refused(uint32_t column, uint64_t bytes);

/* BYTES rounded up to what a charge is a multiple of. */
uint64_t charge_round(uint64_t bytes);

/* Frees KEY with CALL and gives back what was charged for it; keys that are not in the table only go to the driver. */
CUresult charge_free(enum allocation_kind kind, uint64_t key, charge_call *call);

/* Takes KEY out of the table; 1: it was there. The caller gives the bytes back, or the entry with charge_put_back(). */
int charge_take(enum allocation_kind kind, uint64_t key, struct table_entry *out);
void charge_put_back(enum allocation_kind kind, const struct table_entry *entry);

/* Whether KEY is in ALLOCATION_LINEAR as memory that the program believes to be the GPU's own. */
int charge_is_converted(uint64_t key);

/* Some blocks of such memory in a column, at most MAX; returns how many. */
uint32_t charge_converted(uint32_t column, struct table_entry *out, uint32_t max);

#endif
