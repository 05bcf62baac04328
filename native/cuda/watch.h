/* The thread that looks about once a millisecond whether kernels are under way, and pays for it: one in each process that
 * launches under a compute share, asleep while there is nothing to look at.
 * Knows lanes and the ledger's share. Tests: tests/integration/test_native_share.py. */
#ifndef VC_CUDA_WATCH_H
#define VC_CUDA_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

#include "shm.h"

/* By column, 1: launches may go without a look at the bucket. Written by the thread, 0 while it sleeps. */
extern _Atomic uint32_t watch_open[VC_MAX_GPUS] __attribute__((visibility("hidden")));

/* 0: it sleeps, or there is none. */
extern _Atomic uint32_t watch_awake __attribute__((visibility("hidden")));

/* Starts the thread if there is none, wakes it if it sleeps. After the launch was noted in its lane. */
void watch_wake(void);

/* In a forked child, which has no such thread. */
void watch_after_fork(void);

#endif
