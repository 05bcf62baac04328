/* SPDX-License-Identifier: Apache-2.0 */
/* From driver 565.57.01 on the kernel gives process lists in the caller's PID namespace, and leaves out processes that
 * are not visible there. Nobody has seen that of a branch after 580, so each list is compared with the ledger too.
 *
 * A namespace with its own inode need not be the container's own: with hostPID in a node that is itself a container
 * (kind) it is the node's, and all its pods are visible in it, to the kernel's filter too. So the first process of the
 * namespace must be in the caller's cgroup. It is the node's init there, and the pause program in a pod that shares its
 * namespace among containers.
 *
 * A PID is believed when the ledger has it. That it is in /proc would say less: in a shared namespace a stranger's is
 * there too, and where a driver gave the machine's PIDs, one of them might equal a PID of this container by chance.
 * Charges nothing. Tests: tests/integration/test_native_nvidia_smi.py. */
#define _GNU_SOURCE
#include "driver_list.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "ledger.h"
#include "log.h"
#include "os.h"
#include "runtime_state.h"

enum { CGROUP_BYTES = 4096, LIST_ROOM = VC_MAX_SLOTS, ATTEMPTS = 3 };

/* Returns the length; 0: unreadable, empty, or longer than SIZE - 1. */
static size_t read_text(const char *path, char *out, size_t size) {
  size_t length = 0;
  ssize_t got = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  while (length < size && (got = read(fd, out + length, size - length)) > 0) length += (size_t)got;
  close(fd);
  return got < 0 || length == size ? 0 : length;
}

int pid_namespace_is_the_containers(void) {
  char first[CGROUP_BYTES], own[CGROUP_BYTES];
  uint32_t number = os_pid_namespace();
  if (number == 0 || number == OS_FIRST_PID_NAMESPACE) return 0;
  size_t length = read_text("/proc/self/cgroup", own, sizeof own);
  return length != 0 && read_text("/proc/1/cgroup", first, sizeof first) == length && memcmp(first, own, length) == 0;
}

/* NVML has no such list for a device of some kind; then no process is in it. */
static int is_absent(nvmlReturn_t result) { return result == NVML_ERROR_NOT_SUPPORTED; }

enum verdict { ALL_OWN, ONE_FOREIGN, NOT_TOLD };

static enum verdict judge(const nvmlProcessInfo_t *processes, unsigned int count, unsigned int *foreign) {
  for (unsigned int i = 0; i < count; i++)
    if (!ledger_has_process(runtime_ledger, (int32_t)processes[i].pid)) {
      *foreign = processes[i].pid;
      return ONE_FOREIGN;
    }
  return ALL_OWN;
}

#define JUDGE(function)                                                                                      \
  do {                                                                                                       \
    unsigned int count = LIST_ROOM;                                                                          \
    nvmlReturn_t result = real_nvml.function(device, &count, processes);                                     \
    if (result != NVML_SUCCESS && !is_absent(result)) return NOT_TOLD;                                       \
    enum verdict verdict = result == NVML_SUCCESS ? judge(processes, count, foreign) : ALL_OWN;              \
    if (verdict != ALL_OWN) return verdict;                                                                  \
  } while (0)

/* The lists first, then the ledger: a program is in the ledger before its context is in a list. */
static enum verdict judge_lists(nvmlDevice_t device, unsigned int *foreign) {
  nvmlProcessInfo_t processes[LIST_ROOM];
  JUDGE(nvmlDeviceGetComputeRunningProcesses_v3);
  JUDGE(nvmlDeviceGetGraphicsRunningProcesses_v3);
  JUDGE(nvmlDeviceGetMPSComputeRunningProcesses_v3);
  return ALL_OWN;
}

static int can_ask(void) {
  return real_nvml.nvmlDeviceGetComputeRunningProcesses_v3 != NULL &&
         real_nvml.nvmlDeviceGetGraphicsRunningProcesses_v3 != NULL &&
         real_nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3 != NULL;
}

static void say_foreign(unsigned int pid) {
  static _Atomic int told;
  if (atomic_exchange_explicit(&told, 1, memory_order_relaxed)) return;
  log_line(LOG_ERROR,
           "the driver lists process %u, which is none of this quota's: nvidia-smi shows no processes of that GPU; "
           "the functions of NVML show those of the quota",
           pid);
}

int driver_list_is_own(nvmlDevice_t device) {
  unsigned int foreign = 0;
  enum verdict verdict = NOT_TOLD;
  if (!can_ask()) return 0;
  /* A program that ended between list and ledger is not in the next list. */
  for (int attempt = 0; attempt < ATTEMPTS && verdict != ALL_OWN; attempt++) {
    verdict = judge_lists(device, &foreign);
    if (verdict == NOT_TOLD) return 0;
  }
  if (verdict == ONE_FOREIGN) say_foreign(foreign);
  return verdict == ALL_OWN;
}
