/* Names of processes, as NVML gives them: the first word of the command line.
 * Uses no ledger. Tests: tests/integration/test_native_nvml.py. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "process.h"

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
