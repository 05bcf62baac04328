/* What lane.c and lane_look.c share with one another and with nobody else. */
#ifndef VC_CUDA_LANE_PRIV_H
#define VC_CUDA_LANE_PRIV_H

#include "lane.h"

extern struct lane lanes[LANES] __attribute__((visibility("hidden")));

/* Looks are over; asked for under the lock of lane_touch(). */
extern _Atomic int lanes_stopped __attribute__((visibility("hidden")));

/* The thread that looks and those that launch may both find out what is done: what one has found the other must not undo. */
static inline void lane_raise_passed(struct lane *lane, uint64_t least) {
  uint64_t passed = atomic_load_explicit(&lane->passed, memory_order_relaxed);
  while (passed < least && !atomic_compare_exchange_weak(&lane->passed, &passed, least)) continue;
}

/* Under the lane's lock: sets a mark by recording in STREAM. */
void lane_mark_on(struct lane *lane, CUstream stream);

#endif
