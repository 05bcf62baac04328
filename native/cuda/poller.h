/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that polls about once a millisecond whether kernels are under way, and charges their time: one in each
 * process that launches under a compute share, asleep while there is nothing to poll.
 * Uses stream states and the ledger's share. Tests: tests/integration/test_native_share.py. */
#ifndef VC_CUDA_POLLER_H
#define VC_CUDA_POLLER_H

#include <stdatomic.h>
#include <stdint.h>

#include "shm.h"

/* By column, 1: launches may go without reading the bucket. Written by the thread, 0 while it sleeps. */
extern _Atomic uint32_t poller_open[VC_MAX_GPUS] __attribute__((visibility("hidden")));

/* 0: it sleeps, or there is none. */
extern _Atomic uint32_t poller_awake __attribute__((visibility("hidden")));

/* Starts the thread if there is none, wakes it if it sleeps. After the launch was noted in its stream state. */
void poller_wake(void);

/* In a forked child, which has no such thread. */
void poller_after_fork(void);

#endif
