/* What lane.c and lane_look.c share with one another and with nobody else. */
#ifndef VC_CUDA_LANE_PRIV_H
#define VC_CUDA_LANE_PRIV_H

#include "lane.h"

extern struct lane lanes[LANES] __attribute__((visibility("hidden")));

/* Looks are over; asked for under the lock of lane_touch(). */
extern _Atomic int lanes_stopped __attribute__((visibility("hidden")));

/* Under the lane's lock: sets a mark by recording in STREAM. */
void lane_mark_on(struct lane *lane, CUstream stream);

#endif
