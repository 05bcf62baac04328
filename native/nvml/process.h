/* SPDX-License-Identifier: Apache-2.0 */
/* The container's own processes on a GPU.
 * Uses the ledger, no NVML structure. Tests: tests/integration/test_native_nvml.py. */
#ifndef VC_NVML_PROCESS_H
#define VC_NVML_PROCESS_H

#include "ledger.h"
#include "nvidia.h"

/* One per slot of the ledger at most. */
struct process_list {
  uint32_t count;
  struct ledger_process process[VC_MAX_SLOTS];
};

/* Empty for a GPU without a share. */
void process_list_read(nvmlDevice_t device, struct process_list *out);

/* The same, but empty where PIDs that NVML gives cannot be compared with ours: outside the machine's first PID
 * namespace (docs/adr/0017-whose-pids-nvml-shows.md). */
void process_list_read_comparable(nvmlDevice_t device, struct process_list *out);

int process_list_has(const struct process_list *list, unsigned int pid);

/* First word of a process's command line, cut to SIZE - 1 characters. Returns its length, 0: there is no such
 * process. */
size_t process_name(unsigned int pid, char *out, size_t size);

#endif
