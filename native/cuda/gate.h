/* Where a launch waits. There is one gate and it has a list of reasons to wait (gate.c); a feature that has to hold
 * launches back adds a reason there.
 * Tests: tests/integration/test_native_share.py. */
#ifndef VC_CUDA_GATE_H
#define VC_CUDA_GATE_H

#include "lane.h"

/* Before a launch into the lane: returns when it may go. Never waits in a capture, under a lock, or without end. */
void gate_pass(struct lane *lane);

#endif
