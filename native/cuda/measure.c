/* Two looks at the GPU through NVML's real functions; growth.c tells what of the difference is ours. In a container NVML
 * names every process of the host by its host PID, and our own is not known there.
 * Knows no quota. Tests: tests/integration/test_native_context.py. */
#include "measure.h"

#include "driver.h"
#include "guest.h"
#include "ledger.h"
#include "os.h"
#include "view.h"

static const uint64_t largest_cost = UINT64_C(2) << 30;

static void look_at_processes(nvmlDevice_t device, struct growth_view *view) {
  nvmlProcessInfo_t infos[GROWTH_MAX];
  unsigned int count = GROWTH_MAX;
  view->count = 0;
  if (real_nvml.nvmlDeviceGetComputeRunningProcesses_v3 == NULL) return;
  if (real_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos) != NVML_SUCCESS) return;
  for (unsigned int i = 0; i < count && i < GROWTH_MAX; i++) {
    if (infos[i].usedGpuMemory > VC_MAX_BYTES) continue; /* NVML_VALUE_NOT_AVAILABLE */
    view->process[view->count++] = (struct growth_process){infos[i].pid, infos[i].usedGpuMemory};
  }
}

static int look(nvmlDevice_t device, struct growth_view *view) {
  nvmlMemory_t memory;
  if (real_nvml.nvmlDeviceGetMemoryInfo == NULL) return 0;
  if (real_nvml.nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) return 0;
  view->total = memory.used;
  look_at_processes(device, view);
  return 1;
}

static int open_device(uint32_t column, nvmlDevice_t *out) {
  uint8_t uuid[VC_UUID_BYTES];
  uint32_t flags;
  char text[48];
  ledger_column_uuid(guest_ledger, column, uuid, &flags);
  return real_nvml.nvmlDeviceGetHandleByUUID != NULL && uuid_format(uuid, flags, text, sizeof text) >= 0 &&
         real_nvml.nvmlDeviceGetHandleByUUID(text, out) == NVML_SUCCESS;
}

void measure_begin(struct measure *measure, uint32_t column) {
  measure->running = 0;
  if (!driver_nvml() || real_nvml.nvmlInit_v2 == NULL || real_nvml.nvmlShutdown == NULL) return;
  if (real_nvml.nvmlInit_v2() != NVML_SUCCESS) return;
  measure->running = 1;
  if (!open_device(column, &measure->device) || !look(measure->device, &measure->before)) measure_cancel(measure);
}

/* NVML counts its users, so the program's own initialisation is not disturbed. */
void measure_cancel(struct measure *measure) {
  if (measure->running) real_nvml.nvmlShutdown();
  measure->running = 0;
}

int measure_end(struct measure *measure, uint64_t *cost) {
  struct growth_view after;
  *cost = 0;
  if (!measure->running) return 0;
  int measured = look(measure->device, &after);
  measure_cancel(measure);
  if (!measured) return 0;
  *cost = growth_of((uint32_t)os_pid(), &measure->before, &after);
  if (*cost > largest_cost) *cost = largest_cost;
  *cost = (*cost + VIEW_GRAIN - 1) & ~(uint64_t)(VIEW_GRAIN - 1);
  return 1;
}
