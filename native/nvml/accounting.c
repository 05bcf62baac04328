/* SPDX-License-Identifier: Apache-2.0 */
/* Accounting, codec sessions and utilisation samples: what NVML keeps by PID of the machine. A program sees the entries
 * of the container's live processes. In a PID namespace it sees none: older drivers give the machine's PIDs there,
 * newer ones those of processes that are not visible in it, and one of another container may equal one of this
 * (docs/adr/0017-whose-pids-nvml-shows.md). Buffer size and mode are the GPU's.
 * Charges nothing itself. Tests: tests/integration/test_native_views.py, test_native_nvml.py. */
#include <string.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "process.h"

/* As in the process lists, the real function fills the caller's own array: it alone refuses arguments. */
nvmlReturn_t vc_nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
  struct process_list own;
  unsigned int kept = 0;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetAccountingPids(device, count, pids);
  if (result != NVML_SUCCESS || pids == NULL) return result;
  process_list_read_comparable(device, &own);
  for (unsigned int i = 0; i < *count; i++)
    if (process_list_has(&own, pids[i])) pids[kept++] = pids[i];
  memset(pids + kept, 0, (*count - kept) * sizeof *pids);
  *count = kept;
  return NVML_SUCCESS;
}

static int is_own(nvmlDevice_t device, unsigned int pid) {
  struct process_list own;
  process_list_read_comparable(device, &own);
  return process_list_has(&own, pid);
}

nvmlReturn_t vc_nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats) {
  nvmlAccountingStats_t answer;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetAccountingStats(device, pid, stats == NULL ? NULL : &answer);
  if (result != NVML_SUCCESS || stats == NULL) return result;
  if (!is_own(device, pid)) return NVML_ERROR_NOT_FOUND;
  *stats = answer;
  return NVML_SUCCESS;
}

nvmlReturn_t vc_nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
  nvmlAccountingStats_v2_t answer;
  if (stats == NULL) return real_nvml.nvmlDeviceGetAccountingStats_v2(device, NULL);
  answer = *stats;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetAccountingStats_v2(device, &answer);
  if (result != NVML_SUCCESS) return result;
  if (!is_own(device, stats->pid)) return NVML_ERROR_NOT_FOUND;
  *stats = answer;
  return NVML_SUCCESS;
}

/* *COUNT is an upper bound where the program asks for the number alone. */
#define SESSIONS(function, type)                                                                      \
  nvmlReturn_t vc_##function(nvmlDevice_t device, unsigned int *count, type *sessions) {              \
    struct process_list own;                                                                          \
    unsigned int kept = 0, asked = count == NULL ? 0 : *count;                                        \
    nvmlReturn_t result = real_nvml.function(device, count, sessions);                                \
    if (result != NVML_SUCCESS || sessions == NULL || count == NULL || asked == 0) return result;     \
    process_list_read_comparable(device, &own);                                                       \
    for (unsigned int i = 0; i < *count; i++)                                                         \
      if (process_list_has(&own, sessions[i].pid)) sessions[kept++] = sessions[i];                    \
    memset(sessions + kept, 0, (*count - kept) * sizeof *sessions);                                   \
    *count = kept;                                                                                    \
    return NVML_SUCCESS;                                                                              \
  }

SESSIONS(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t)
SESSIONS(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t)

/* The number of samples that a program is told to make room for is the driver's, for all tenants. */
nvmlReturn_t vc_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                unsigned int *count, unsigned long long since) {
  struct process_list own;
  unsigned int kept = 0;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetProcessUtilization(device, samples, count, since);
  if (result != NVML_SUCCESS || samples == NULL) return result;
  process_list_read_comparable(device, &own);
  for (unsigned int i = 0; i < *count; i++)
    if (process_list_has(&own, samples[i].pid)) samples[kept++] = samples[i];
  memset(samples + kept, 0, (*count - kept) * sizeof *samples);
  *count = kept;
  return kept > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t vc_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
  struct process_list own;
  unsigned int kept = 0;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetProcessesUtilizationInfo(device, info);
  if (result != NVML_SUCCESS || info->procUtilArray == NULL) return result;
  process_list_read_comparable(device, &own);
  nvmlProcessUtilizationInfo_v1_t *samples = info->procUtilArray;
  for (unsigned int i = 0; i < info->processSamplesCount; i++)
    if (process_list_has(&own, samples[i].pid)) samples[kept++] = samples[i];
  memset(samples + kept, 0, (info->processSamplesCount - kept) * sizeof *samples);
  info->processSamplesCount = kept;
  return kept > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
