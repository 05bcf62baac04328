/* Utilisation samples per process: only the container's own, by PID, and none in a PID namespace: there older drivers give
 * the machine's PIDs, newer ones those of the processes that are not visible there, and a stranger's may equal one of
 * ours (docs/adr/0017-whose-pids-nvml-shows.md). The number of samples that a program is
 * told to make room for is the driver's, for all tenants.
 * Charges nothing itself. Tests: tests/integration/test_native_nvml.py. */
#include <string.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "process.h"

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
