/* Utilisation samples per process, and process names: only the container's own. Where NVML reports PIDs of another
 * namespace nothing matches and the list is empty, never somebody else's.
 * Knows no accounting. Tests: tests/integration/test_native_nvml.py. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "process.h"

nvmlReturn_t vc_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                unsigned int *count, unsigned long long since) {
  struct process_list own;
  unsigned int kept = 0;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetProcessUtilization(device, samples, count, since);
  if (result != NVML_SUCCESS || samples == NULL) return result;
  process_list_read(device, &own);
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
  process_list_read(device, &own);
  nvmlProcessUtilizationInfo_v1_t *samples = info->procUtilArray;
  for (unsigned int i = 0; i < info->processSamplesCount; i++)
    if (process_list_has(&own, samples[i].pid)) samples[kept++] = samples[i];
  memset(samples + kept, 0, (info->processSamplesCount - kept) * sizeof *samples);
  info->processSamplesCount = kept;
  return kept > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* The first word of the command line, as NVML itself answers. Returns its length, 0 when there is no such process. */
static size_t read_command(unsigned int pid, char *out, size_t size) {
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
  size_t found = read_command(pid, command, sizeof command);
  if (found == 0) return NVML_ERROR_NOT_FOUND;
  if (found >= length) found = length - 1;
  memcpy(name, command, found);
  name[found] = 0;
  return NVML_SUCCESS;
}
