/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML keeps by process beside the lists: accounting and codec sessions; and the memory of confidential computing
 * and of MIG devices. Accounting knows live processes only; a graphics process has one encoder and one capture session.
 * Must not depend on how memory is allocated. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

#include <stdlib.h>

enum { BUFFER = 4000 };

static nvmlReturn_t check_mode(void) {
  return fake_state->machine.accounting ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
  ENTER_DEVICE(nvmlDeviceGetAccountingMode, device);
  NONNULL(mode);
  *mode = fake_state->machine.accounting ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned *size) {
  ENTER_DEVICE(nvmlDeviceGetAccountingBufferSize, device);
  NONNULL(size);
  *size = BUFFER;
  return NVML_SUCCESS;
}

static void put_pid(void *info, const struct nvml_process *process) { *(unsigned *)info = (unsigned)process->pid; }

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids) {
  ENTER_DEVICE(nvmlDeviceGetAccountingPids, device);
  TRY(check_mode());
  return nvml_answer_list(device, FAKE_ANY_KIND, count, pids, sizeof *pids, put_pid);
}

static nvmlReturn_t find(nvmlDevice_t device, unsigned pid, uint64_t *used) {
  nvmlReturn_t result = NVML_ERROR_NOT_FOUND;
  TRY(check_mode());
  struct nvml_process *found = calloc(FAKE_SLOTS, sizeof *found);
  if (!found) return NVML_ERROR_MEMORY;
  unsigned number = nvml_list_processes(device->gpu, FAKE_ANY_KIND, found);
  for (unsigned i = 0; i < number; i++) {
    if ((unsigned)found[i].pid != pid) continue;
    *used = found[i].used;
    result = NVML_SUCCESS;
  }
  free(found);
  return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats) {
  ENTER_DEVICE(nvmlDeviceGetAccountingStats, device);
  uint64_t used = 0;
  NONNULL(stats);
  TRY(find(device, pid, &used));
  *stats = (nvmlAccountingStats_t){.maxMemoryUsage = used, .isRunning = 1};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
  ENTER_DEVICE(nvmlDeviceGetAccountingStats_v2, device);
  uint64_t used = 0;
  NONNULL(stats);
  TRY(find(device, stats->pid, &used));
  *stats = (nvmlAccountingStats_v2_t){.pid = stats->pid, .maxMemoryUsage = used, .isRunning = 1};
  return NVML_SUCCESS;
}

/* --- sessions: asked with room for none, the number is a success ------------------------------------------------- */

static void put_encoder(void *info, const struct nvml_process *process) {
  *(nvmlEncoderSessionInfo_t *)info = (nvmlEncoderSessionInfo_t){.sessionId = 1, .pid = (unsigned)process->pid};
}

static void put_capture(void *info, const struct nvml_process *process) {
  *(nvmlFBCSessionInfo_t *)info = (nvmlFBCSessionInfo_t){.sessionId = 1, .pid = (unsigned)process->pid};
}

static nvmlReturn_t sessions(nvmlDevice_t device, unsigned *count, void *infos, size_t stride,
                             void (*put)(void *info, const struct nvml_process *process)) {
  int number_only = count && *count == 0;
  nvmlReturn_t result = nvml_answer_list(device, FAKE_GRAPHICS, count, infos, stride, put);
  return result == NVML_ERROR_INSUFFICIENT_SIZE && number_only ? NVML_SUCCESS : result;
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned *count, nvmlEncoderSessionInfo_t *infos) {
  ENTER_DEVICE(nvmlDeviceGetEncoderSessions, device);
  return sessions(device, count, infos, sizeof *infos, put_encoder);
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned *count, nvmlFBCSessionInfo_t *infos) {
  ENTER_DEVICE(nvmlDeviceGetFBCSessions, device);
  return sessions(device, count, infos, sizeof *infos, put_capture);
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *memory) {
  ENTER_DEVICE(nvmlDeviceGetConfComputeMemSizeInfo, device);
  NONNULL(memory);
  uint64_t kib = nvml_gpu(device)->memory_bytes / 1024;
  memory->protectedMemSizeKib = fake_state->machine.confidential ? kib : 0;
  memory->unprotectedMemSizeKib = fake_state->machine.confidential ? 0 : kib;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
  ENTER_DEVICE(nvmlDeviceGetConfComputeProtectedMemoryUsage, device);
  NONNULL(memory);
  *memory = (nvmlMemory_t){0};
  return fake_state->machine.confidential ? nvmlDeviceGetMemoryInfo(device, memory) : NVML_SUCCESS;
}

static nvmlReturn_t attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out) {
  TRY(nvml_check(device));
  NONNULL(out);
  if (!fake_state->machine.mig) return NVML_ERROR_NOT_SUPPORTED;
  *out = (nvmlDeviceAttributes_t){.multiprocessorCount = nvml_gpu(device)->multiprocessors,
                                  .gpuInstanceSliceCount = 1,
                                  .computeInstanceSliceCount = 1,
                                  .memorySizeMB = nvml_gpu(device)->memory_bytes >> 20};
  return NVML_SUCCESS;
}
ENTRY(nvmlDeviceGetAttributes, (nvmlDevice_t device, nvmlDeviceAttributes_t *out), attributes, (device, out))
ENTRY(nvmlDeviceGetAttributes_v2, (nvmlDevice_t device, nvmlDeviceAttributes_t *out), attributes, (device, out))
