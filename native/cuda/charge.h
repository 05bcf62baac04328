/* Reserve, call the driver, commit or give back: the one way in which memory is charged.
 * Knows the ledger and the books, no particular allocator. Tests: tests/integration/test_native_quota.py. */
#ifndef VC_CUDA_CHARGE_H
#define VC_CUDA_CHARGE_H

#include "nvidia.h"
#include "table.h"

/* An allocation on its way. */
struct charge {
  int taken; /* 0: nothing was charged, because the driver will refuse the call anyway */
  uint32_t column;
  uint32_t owner;
  uint64_t bytes;
};

/* Charges BYTES (rounded up to the grain) to the current context's device. CUDA_ERROR_OUT_OF_MEMORY: no room, nothing
 * happened. Without a current context nothing is charged and the driver's own error is the answer. */
CUresult charge_begin(struct charge *charge, uint64_t bytes);

/* The driver answered RESULT. Success: ADDRESS is booked. Else: everything is given back. When the books have no
 * memory, the block is freed again and the answer is CUDA_ERROR_OUT_OF_MEMORY. Returns what the program gets. */
CUresult charge_end(struct charge *charge, CUresult result, CUdeviceptr address);

/* The size turned out different (a pitch): charges or gives back the difference. CUDA_ERROR_OUT_OF_MEMORY: it does not
 * fit, and the charge is as before. */
CUresult charge_correct(struct charge *charge, uint64_t bytes);

/* Plain charges that belong to no address. */
CUresult charge_column(uint32_t column, uint64_t bytes);

/* Frees ADDRESS with FREE_BLOCK and gives back what was booked for it; addresses that are not in the books are the
 * driver's business alone. */
CUresult charge_free(CUdeviceptr address, CUresult (*free_block)(CUdeviceptr));

/* Everything that dies with OWNER is given back. */
void charge_forget_owner(uint32_t owner);

/* In a forked child. */
void charge_after_fork(void);

/* Bytes that the books of this process hold in a column. */
uint64_t charge_usage(uint32_t column);

#endif
