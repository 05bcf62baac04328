/* Where work waits until it is its container's turn on the card. Only containers with host memory take turns, and only
 * while an agent says so; for all others a call is one load more.
 * Knows the ledger and streams, no particular kind of work. Tests: tests/integration/test_native_turns.py. */
#ifndef VC_CUDA_TURN_H
#define VC_CUDA_TURN_H

#include "guest.h"
#include "ledger.h"
#include "nvidia.h"

/* A stream, and whether 0 means the thread's own default stream (_ptsz, _ptds). */
void turn_wait(CUstream stream, int per_thread);

/* Before work goes into STREAM. Never waits in a capture, nor longer than the page says. */
static inline void turn_pass(CUstream stream, int per_thread) {
  if (!VC_LIKELY(!ledger_is_split(guest_ledger))) turn_wait(stream, per_thread);
}

/* Around a call that waits for work under way. */
static inline void turn_busy(int more) {
  if (!VC_LIKELY(!ledger_is_split(guest_ledger))) ledger_turn_busy(guest_ledger, more);
}

/* After a question whether work is done. */
static inline void turn_asked(CUresult answer) {
  if (!VC_LIKELY(!ledger_is_split(guest_ledger)) && answer == CUDA_ERROR_NOT_READY) ledger_turn_asked(guest_ledger);
}

/* Before a context ends that may leave its events behind. */
void turn_drop_event(CUcontext context);
/* The context is gone, or all of the column that KEEPS does not name, and events with it: a handle may soon be a new one's. */
void turn_forget_context(CUcontext context);
void turn_forget_column(uint32_t column, int (*keeps)(CUcontext context));

void turn_after_fork(void);

#endif
