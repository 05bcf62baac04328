/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a program may see the driver's own process list instead of the ledger's, where that list cannot be written
 * anew (private_table.c). Reasons: docs/adr/0017-whose-pids-nvml-shows.md.
 * Decides, and changes no list. Tests: tests/integration/test_native_nvidia_smi.py. */
#ifndef VC_NVML_DRIVER_LIST_H
#define VC_NVML_DRIVER_LIST_H

#include "nvidia.h"

/* Whether the caller is in a PID namespace that holds its container alone: not the machine's first one, and not one
 * that belongs to other containers too. 0 also where /proc does not tell. */
int pid_namespace_is_the_containers(void);

/* Whether each process that NVML's public lists of the device show is one of the quota. 0 also where a list cannot be
 * had. The first process that is not one of them is named on stderr, once per process of ours. */
int driver_list_is_own(nvmlDevice_t device);

#endif
