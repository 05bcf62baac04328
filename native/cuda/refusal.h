/* SPDX-License-Identifier: Apache-2.0 */
/* What a program is told when it gets no memory: one line a process, which says whether its own quota is used up or the
 * GPU is full of others' memory, and what to do. Programs that free what they can and try again are not disturbed: the
 * line comes at the second refusal in a row of one thread, or when the process exits after a refusal that no success of
 * its thread has followed.
 * Charges nothing. Tests: tests/integration/test_native_refusals.py. */
#ifndef VC_CUDA_REFUSAL_H
#define VC_CUDA_REFUSAL_H

#include <stdatomic.h>
#include <stdint.h>

#include "nvidia.h"

enum refusal_kind {
  REFUSAL_NONE,
  REFUSAL_QUOTA,  /* the ledger had no room */
  REFUSAL_DRIVER, /* the ledger had, the driver had none */
};

/* On the way to an answer: who had no memory for BYTES (0: unknown) in COLUMN. The last one counts, and nothing does
 * if the call finds another way. */
void refusal_note(enum refusal_kind kind, uint32_t column, uint64_t bytes);

/* A call of the program ends with RESULT, CUDA_ERROR_OUT_OF_MEMORY. No lock is held: it may load NVML. */
__attribute__((noinline, cold)) CUresult refusal_answer(CUresult result);

/* Threads whose last allocation was refused, of those that wait for their line. */
extern _Atomic uint32_t refusal_waiting __attribute__((visibility("hidden")));
__attribute__((noinline, cold)) void refusal_forget(void);

/* A call of the program got its memory. */
static inline void refusal_passed(void) {
  if (!VC_LIKELY(atomic_load_explicit(&refusal_waiting, memory_order_relaxed) == 0)) refusal_forget();
}

/* In a forked child: it is a process of its own, and has been refused nothing. */
void refusal_after_fork(void);

#endif
