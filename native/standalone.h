/* SPDX-License-Identifier: Apache-2.0 */
/* The quota of a program without an agent: created on first use, joined ever after.
 * Uses neither CUDA nor NVML. Tests: tests/integration/test_native_config.py, test_native_heads.py. */
#ifndef VC_STANDALONE_H
#define VC_STANDALONE_H

#include "config.h"

/* Lists the machine's GPUs in NVML's order: the number of them, or VC_ENODRIVER. */
typedef int standalone_list_gpus(uint8_t (*uuids)[VC_UUID_BYTES], int max);

/* Makes sure that page and ledger exist and agree with VCUDA_MEMORY_LIMIT. Any number of processes may do this at the
 * same time. A negative status with WHY. With VC_OK the directory is not removed or made anew before standalone_done(),
 * which follows when it was attached to. *LOCK: for that. */
int standalone_prepare(const struct config *config, standalone_list_gpus *list_gpus, int *lock, char *why);
void standalone_done(int lock);

#endif
