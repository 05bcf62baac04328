/* Memory of a GPU as NVML shows it: the limit is the size. The real call goes first: it knows whether NVML is
 * initialised, whether the device is one, and which structure versions exist.
 * Knows no accounting. Tests: tests/integration/test_native_nvml.py. */
#include "nvml_bodies.h"
#include "driver.h"
#include "gpu.h"
#include "view.h"

static void look(nvmlDevice_t device, struct view *view) {
  int column = gpu_column(device);
  *view = (struct view){0, 0, 0};
  if (column >= 0) view_memory((uint32_t)column, view);
}

nvmlReturn_t vc_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  struct view view;
  nvmlMemory_t physical;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryInfo(device, memory == NULL ? NULL : &physical);
  if (result != NVML_SUCCESS || memory == NULL) return result;
  look(device, &view);
  *memory = (nvmlMemory_t){.total = view.total, .free = view.avail, .used = view.used};
  return NVML_SUCCESS;
}

nvmlReturn_t vc_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  struct view view;
  nvmlMemory_v2_t physical;
  if (memory == NULL) return real_nvml.nvmlDeviceGetMemoryInfo_v2(device, NULL);
  if (memory->version != nvmlMemory_v2) return real_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
  physical = *memory;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryInfo_v2(device, &physical);
  if (result != NVML_SUCCESS) return result;
  look(device, &view);
  memory->total = view.total;
  memory->reserved = 0;
  memory->free = view.avail;
  memory->used = view.used;
  return NVML_SUCCESS;
}
