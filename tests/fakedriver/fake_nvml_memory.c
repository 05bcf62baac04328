/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs and the processes on them.
 * Must not depend on how memory is allocated. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

#include <stdlib.h>

struct usage {
  uint64_t total, used, reserved;
};

/* In a group with a limit the limit takes the GPU's place, and what others hold counts as far as it leaves less. */
static void narrow(unsigned gpu, struct usage *usage) {
  uint64_t total = usage->total, left = total - usage->used - usage->reserved;
  limits_narrow(gpu, &total, &left);
  if (total != usage->total) *usage = (struct usage){.total = total, .used = total - left};
}

static struct usage usage_of(nvmlDevice_t device) {
  state_reap_if_hinted();
  struct usage usage = {.total = nvml_gpu(device)->memory_bytes,
                        .used = atomic_load(&fake_state->gpu[device->gpu].used),
                        .reserved = nvml_gpu(device)->reserved_bytes};
  if (limits_are_on()) narrow(device->gpu, &usage);
  return usage;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  ENTER_DEVICE(nvmlDeviceGetMemoryInfo, device);
  NONNULL(memory);
  struct usage usage = usage_of(device);
  memory->total = usage.total;
  memory->used = usage.used + usage.reserved;
  memory->free = usage.total - memory->used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2, device);
  NONNULL(memory);
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct usage usage = usage_of(device);
  memory->total = usage.total;
  memory->reserved = usage.reserved;
  memory->used = usage.used;
  memory->free = usage.total - usage.used - usage.reserved;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
  ENTER_DEVICE(nvmlDeviceGetBAR1MemoryInfo, device);
  NONNULL(memory);
  uint64_t size = 256ull << 20; /* the next power of two of the memory, as with a resizable BAR */
  while (size < nvml_gpu(device)->memory_bytes) size *= 2;
  memory->bar1Total = size;
  memory->bar1Used = 1ull << 20;
  memory->bar1Free = size - memory->bar1Used;
  return NVML_SUCCESS;
}

/* --- processes -------------------------------------------------------------------------------------------------- */

unsigned nvml_list_processes(unsigned gpu, uint32_t kind, struct nvml_process *out) {
  unsigned count = 0, high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++) {
    const struct fake_slot *slot = &fake_state->slot[i];
    uint64_t used = atomic_load(&slot->used[gpu]);
    if (!atomic_load(&slot->generation) || (slot->kind != kind && kind != FAKE_ANY_KIND) || (!used && !atomic_load(&slot->contexts[gpu])))
      continue;
    pid_t pid = state_slot_pid(i);
    if (pid < 0 || (pid == 0 && fake_state->machine.invisible == FAKE_INVISIBLE_LEFT_OUT)) continue;
    if (pid == 0 && fake_state->machine.invisible == FAKE_INVISIBLE_LISTED) pid = slot->pid_inside;
    out[count++] = (struct nvml_process){.pid = pid, .used = used};
  }
  return count;
}

nvmlReturn_t nvml_answer_list(nvmlDevice_t device, uint32_t kind, unsigned *count, void *infos, size_t stride,
                              void (*entry)(void *info, const struct nvml_process *process)) {
  TRY(nvml_check(device));
  NONNULL(count);
  struct nvml_process *found = calloc(FAKE_SLOTS, sizeof *found);
  if (!found) return NVML_ERROR_MEMORY;
  unsigned number = nvml_list_processes(device->gpu, kind, found), room = *count;
  *count = number;
  nvmlReturn_t result = NVML_SUCCESS;
  if (number > room) result = NVML_ERROR_INSUFFICIENT_SIZE;
  else if (number && !infos) result = NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < number && result == NVML_SUCCESS; i++) entry((char *)infos + i * stride, &found[i]);
  free(found);
  return result;
}

static void entry_v1(void *info, const struct nvml_process *process) {
  *(nvmlProcessInfo_v1_t *)info = (nvmlProcessInfo_v1_t){.pid = (unsigned)process->pid, .usedGpuMemory = process->used};
}
static void entry_v2(void *info, const struct nvml_process *process) {
  *(nvmlProcessInfo_v2_t *)info = (nvmlProcessInfo_v2_t){.pid = (unsigned)process->pid,
                                                         .usedGpuMemory = process->used,
                                                         .gpuInstanceId = 0xffffffff,
                                                         .computeInstanceId = 0xffffffff};
}

#define PROCESS_LIST(symbol, kind, type, entry) \
  nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, type *infos) { \
    ENTER(symbol); \
    return nvml_answer_list(device, kind, count, infos, sizeof *infos, entry); \
  }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, FAKE_COMPUTE, nvmlProcessInfo_v1_t, entry_v1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, FAKE_COMPUTE, nvmlProcessInfo_v2_t, entry_v2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, FAKE_COMPUTE, nvmlProcessInfo_t, entry_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, FAKE_GRAPHICS, nvmlProcessInfo_v1_t, entry_v1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, FAKE_GRAPHICS, nvmlProcessInfo_v2_t, entry_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, FAKE_GRAPHICS, nvmlProcessInfo_t, entry_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, FAKE_MPS, nvmlProcessInfo_v1_t, entry_v1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, FAKE_MPS, nvmlProcessInfo_v2_t, entry_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, FAKE_MPS, nvmlProcessInfo_t, entry_v2)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
  ENTER_DEVICE(nvmlDeviceGetRunningProcessDetailList, device);
  NONNULL(list);
  if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (list->mode > NVML_PROCESS_MODE_ALL) return NVML_ERROR_INVALID_ARGUMENT;
  static const uint32_t kinds[] = {FAKE_COMPUTE, FAKE_GRAPHICS, FAKE_MPS, FAKE_ANY_KIND};
  struct nvml_process *found = calloc(FAKE_SLOTS, sizeof *found);
  if (!found) return NVML_ERROR_MEMORY;
  unsigned number = nvml_list_processes(device->gpu, kinds[list->mode], found), room = list->numProcArrayEntries;
  list->numProcArrayEntries = number;
  nvmlReturn_t result = number > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
  for (unsigned i = 0; i < number && result == NVML_SUCCESS && list->procArray; i++)
    list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = (unsigned)found[i].pid,
                                                  .usedGpuMemory = found[i].used,
                                                  .gpuInstanceId = 0xffffffff,
                                                  .computeInstanceId = 0xffffffff};
  free(found);
  return result;
}
