/* SPDX-License-Identifier: Apache-2.0 */
/* Process lists of NVML, all versions: the ledger's processes with the PIDs that the caller's own namespace has for
 * them, instead of every process of the machine under PIDs that mean nothing here; and the names of processes, as NVML
 * gives them: the first word of the command line. Graphics and MPS lists are empty: the ledger has only CUDA's memory.
 * The real call checks the arguments.
 * Charges nothing itself. Tests: tests/integration/test_native_nvml.py. */
#define _GNU_SOURCE
#include "process.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "os.h"
#include "undeclared.h"
#include "gpu.h"
#include "runtime_state.h"

/* Newer than some headers this is built with: every process, whatever its kind. */
enum { MODE_ALL = 3 };

void process_list_read(nvmlDevice_t device, struct process_list *out) {
  int column = gpu_column(device), found = 0;
  if (column >= 0) undeclared_glance((uint32_t)column);
  if (column >= 0) found = ledger_processes(runtime_ledger, (uint32_t)column, out->process, VC_MAX_SLOTS);
  out->count = found < 0 ? 0 : found > VC_MAX_SLOTS ? VC_MAX_SLOTS : (uint32_t)found;
}

static int pids_are_the_machines(void) {
  static _Atomic int known; /* 0: not checked yet; else 1 + answer; a process never changes its namespace */
  int answer = atomic_load_explicit(&known, memory_order_relaxed);
  if (answer == 0) {
    answer = 1 + (os_pid_namespace() == OS_FIRST_PID_NAMESPACE);
    atomic_store_explicit(&known, answer, memory_order_relaxed);
  }
  return answer - 1;
}

void process_list_read_comparable(nvmlDevice_t device, struct process_list *out) {
  out->count = 0;
  if (pids_are_the_machines()) process_list_read(device, out);
}

int process_list_has(const struct process_list *list, unsigned int pid) {
  for (uint32_t i = 0; i < list->count; i++)
    if ((unsigned int)list->process[i].pid == pid) return 1;
  return 0;
}

/* Structures of versions 2 and 3 are one. 0xFFFFFFFF: the process uses no MIG instance. */
typedef void put_process(void *infos, uint32_t index, const struct ledger_process *process);

static void put_v1(void *infos, uint32_t index, const struct ledger_process *process) {
  ((nvmlProcessInfo_v1_t *)infos)[index] =
      (nvmlProcessInfo_v1_t){.pid = (unsigned int)process->pid, .usedGpuMemory = process->bytes};
}

static void put_v2(void *infos, uint32_t index, const struct ledger_process *process) {
  ((nvmlProcessInfo_v2_t *)infos)[index] = (nvmlProcessInfo_v2_t){.pid = (unsigned int)process->pid,
                                                                  .usedGpuMemory = process->bytes,
                                                                  .gpuInstanceId = 0xFFFFFFFF,
                                                                  .computeInstanceId = 0xFFFFFFFF};
}

static nvmlReturn_t without_count(nvmlReturn_t checked) {
  return checked == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : checked;
}

/* CHECKED: what the real function answered to the arguments when it was called for the number alone. */
static nvmlReturn_t fill(nvmlReturn_t checked, nvmlDevice_t device, unsigned int *count, void *infos,
                         put_process *put) {
  struct process_list list;
  if (count == NULL) return without_count(checked);
  if (checked != NVML_SUCCESS && checked != NVML_ERROR_INSUFFICIENT_SIZE) return checked;
  if (*count > 0 && infos == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  process_list_read(device, &list);
  unsigned int room = *count;
  *count = list.count;
  if (list.count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < list.count; i++) put(infos, i, &list.process[i]);
  return NVML_SUCCESS;
}

static nvmlReturn_t empty(nvmlReturn_t checked, unsigned int *count) {
  if (count == NULL) return without_count(checked);
  if (checked != NVML_SUCCESS && checked != NVML_ERROR_INSUFFICIENT_SIZE) return checked;
  *count = 0;
  return NVML_SUCCESS;
}

/* What the real function answers when it is called for its number alone, or, without COUNT, for nothing. */
#define QUERY_COUNT(function) real_nvml.function(device, count == NULL ? NULL : &(unsigned int){0}, NULL)

nvmlReturn_t vc_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v1_t *infos) {
  return fill(QUERY_COUNT(nvmlDeviceGetComputeRunningProcesses), device, count, infos, put_v1);
}

nvmlReturn_t vc_nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos) {
  return fill(QUERY_COUNT(nvmlDeviceGetComputeRunningProcesses_v2), device, count, infos, put_v2);
}

nvmlReturn_t vc_nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *infos) {
  return fill(QUERY_COUNT(nvmlDeviceGetComputeRunningProcesses_v3), device, count, infos, put_v2);
}

#define EMPTY_LIST(function, type)                                                                  \
  nvmlReturn_t vc_##function(nvmlDevice_t device, unsigned int *count, type *infos) {               \
    (void)infos;                                                                                    \
    return empty(QUERY_COUNT(function), count);                                                           \
  }

EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

static void put_detail(nvmlProcessDetail_v1_t *out, const struct ledger_process *process) {
  *out = (nvmlProcessDetail_v1_t){.pid = (unsigned int)process->pid,
                                  .usedGpuMemory = process->bytes,
                                  .gpuInstanceId = 0xFFFFFFFF,
                                  .computeInstanceId = 0xFFFFFFFF};
}

nvmlReturn_t vc_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
  struct process_list own = {.count = 0};
  if (list == NULL) return real_nvml.nvmlDeviceGetRunningProcessDetailList(device, NULL);
  nvmlProcessDetailList_t question = *list;
  question.numProcArrayEntries = 0;
  question.procArray = NULL;
  nvmlReturn_t checked = real_nvml.nvmlDeviceGetRunningProcessDetailList(device, &question);
  if (checked != NVML_SUCCESS && checked != NVML_ERROR_INSUFFICIENT_SIZE) return checked;
  if (list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == MODE_ALL) process_list_read(device, &own);
  unsigned int room = list->procArray == NULL ? 0 : list->numProcArrayEntries;
  list->numProcArrayEntries = own.count;
  if (own.count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < own.count; i++) put_detail(&list->procArray[i], &own.process[i]);
  return NVML_SUCCESS;
}

size_t process_name(unsigned int pid, char *out, size_t size) {
  char path[40];
  size_t length = 0;
  ssize_t got;
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  while (length < size - 1 && (got = read(fd, out + length, size - 1 - length)) > 0) length += (size_t)got;
  close(fd);
  out[length] = 0;
  return strlen(out);
}

/* A PID of this container means nothing to NVML, which would look it up among the machine's processes. */
nvmlReturn_t vc_nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
  char command[1024];
  unsigned int devices;
  if (name == NULL || length == 0) return real_nvml.nvmlSystemGetProcessName(pid, name, length);
  if (real_nvml.nvmlDeviceGetCount_v2 != NULL && real_nvml.nvmlDeviceGetCount_v2(&devices) == NVML_ERROR_UNINITIALIZED)
    return NVML_ERROR_UNINITIALIZED;
  size_t found = process_name(pid, command, sizeof command);
  if (found == 0) return NVML_ERROR_NOT_FOUND;
  if (found >= length) found = length - 1;
  memcpy(name, command, found);
  name[found] = 0;
  return NVML_SUCCESS;
}
