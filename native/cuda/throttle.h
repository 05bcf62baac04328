/* SPDX-License-Identifier: Apache-2.0 */
/* Where launches wait. There is one throttle and it has a list of reasons to wait (throttle.c); a feature that has to
 * hold launches back adds a reason there.
 * Tests: tests/integration/test_native_share.py. */
#ifndef VC_CUDA_THROTTLE_H
#define VC_CUDA_THROTTLE_H

#include "stream_state.h"

/* Before a launch into the stream: returns when it may go. Never waits in a capture, under a lock, or without end. */
void throttle_launch(struct stream_state *state);

#endif
