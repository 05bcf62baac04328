/* SPDX-License-Identifier: Apache-2.0 */
/* NVML devices as columns of the ledger, and the GPUs of the machine in NVML's order.
 * Uses the driver and the ledger's columns, no numbers. Tests: tests/integration/test_native_nvml.py. */
#ifndef VC_NVML_GPU_H
#define VC_NVML_GPU_H

#include "lock.h"
#include "nvidia.h"
#include "shm.h"

/* Column of a device that a successful call of the real NVML has just accepted. VC_ENOENT: no share of it. */
int gpu_column(nvmlDevice_t device);

/* Returns how many GPUs there are (UUIDS holds the first MAX of them), or VC_ENODRIVER. */
int gpu_list(uint8_t (*uuids)[VC_UUID_BYTES], int max);

/* Guards what the files of this directory remember. */
extern struct lock gpu_lock __attribute__((visibility("hidden")));

/* In a forked child, as driver_after_fork(). */
void gpu_after_fork(void);

#endif
