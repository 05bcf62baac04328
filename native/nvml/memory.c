/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a GPU as NVML shows it: the limit is the size. The real call goes first: it checks whether NVML is
 * initialised, whether the device is one, which structure versions exist, and what the device does not support.
 * Charges nothing itself. Tests: tests/integration/test_native_nvml.py. */
#include "nvml_bodies.h"
#include "driver.h"
#include "gpu.h"
#include "view.h"

static void read_view(nvmlDevice_t device, struct view *view) {
  int column = gpu_column(device);
  *view = (struct view){0, 0, 0};
  if (column >= 0) view_memory((uint32_t)column, view);
}

VC_HOT nvmlReturn_t vc_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  struct view view;
  nvmlMemory_t physical;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryInfo(device, memory == NULL ? NULL : &physical);
  if (result != NVML_SUCCESS || memory == NULL) return result;
  read_view(device, &view);
  *memory = (nvmlMemory_t){.total = view.total, .free = view.avail, .used = view.used};
  return NVML_SUCCESS;
}

VC_HOT nvmlReturn_t vc_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  struct view view;
  nvmlMemory_v2_t physical;
  if (memory == NULL) return real_nvml.nvmlDeviceGetMemoryInfo_v2(device, NULL);
  if (memory->version != nvmlMemory_v2) return real_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
  physical = *memory;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryInfo_v2(device, &physical);
  if (result != NVML_SUCCESS) return result;
  read_view(device, &view);
  memory->total = view.total;
  memory->reserved = 0;
  memory->free = view.avail;
  memory->used = view.used;
  return NVML_SUCCESS;
}

/* Limits of the driver's own. Where one leaves room for the whole quota, or there is none, the quota is what holds first:
 * it is shown with what counts for it, as everywhere else. A program that compared the driver's number would find a
 * limit above the GPU's size. A lower one, which a program with the right to it set for a group of its own, is shown as
 * it is. A driver that has no limit to tell of answers as without the library: it is no number of ours to invent.
 * Setting is left to the driver, which lets only the host's root do it: who can do that needs no NVML for it. */
nvmlReturn_t vc_nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
  struct view view;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryLimits_v1(device, limits);
  if (result != NVML_SUCCESS || limits == NULL) return result;
  read_view(device, &view);
  if (limits->hardLimit < view.total) return NVML_SUCCESS;
  limits->hardLimit = view.total;
  limits->currentUsed = view.used;
  if (limits->softLimit > limits->hardLimit) limits->softLimit = limits->hardLimit;
  return NVML_SUCCESS;
}

/* The window through which the host reaches the GPU's memory is no container's share: its size stays, since it is
 * what peers can map, and what all tenants together have mapped does not show. */
nvmlReturn_t vc_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
  nvmlBAR1Memory_t physical;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetBAR1MemoryInfo(device, memory == NULL ? NULL : &physical);
  if (result != NVML_SUCCESS || memory == NULL) return result;
  *memory = (nvmlBAR1Memory_t){.bar1Total = physical.bar1Total, .bar1Free = physical.bar1Total, .bar1Used = 0};
  return NVML_SUCCESS;
}

static unsigned long long at_most(unsigned long long value, unsigned long long limit) {
  return value < limit ? value : limit;
}

/* Which part of the GPU is protected is a mode of the whole GPU (all or nothing in practice); the share has it too. */
nvmlReturn_t vc_nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *memory) {
  struct view view;
  nvmlConfComputeMemSizeInfo_t physical;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetConfComputeMemSizeInfo(device, memory == NULL ? NULL : &physical);
  if (result != NVML_SUCCESS || memory == NULL) return result;
  read_view(device, &view);
  memory->protectedMemSizeKib = at_most(physical.protectedMemSizeKib, view.total / 1024);
  memory->unprotectedMemSizeKib =
      at_most(physical.unprotectedMemSizeKib, view.total / 1024 - memory->protectedMemSizeKib);
  return NVML_SUCCESS;
}

/* All zero while confidential computing is off. */
nvmlReturn_t vc_nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
  struct view view;
  nvmlMemory_t physical;
  nvmlReturn_t result =
      real_nvml.nvmlDeviceGetConfComputeProtectedMemoryUsage(device, memory == NULL ? NULL : &physical);
  if (result != NVML_SUCCESS || memory == NULL) return result;
  read_view(device, &view);
  if (physical.total == 0) view = (struct view){0, 0, 0};
  *memory = (nvmlMemory_t){.total = view.total, .free = view.avail, .used = view.used};
  return NVML_SUCCESS;
}

/* Answered for MIG devices only, by the real call. */
#define ATTRIBUTES(function)                                                                    \
  nvmlReturn_t vc_##function(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {         \
    struct view view;                                                                           \
    nvmlReturn_t result = real_nvml.function(device, attributes);                               \
    if (result != NVML_SUCCESS || attributes == NULL) return result;                            \
    read_view(device, &view);                                                                        \
    attributes->memorySizeMB = at_most(attributes->memorySizeMB, view.total >> 20);             \
    return NVML_SUCCESS;                                                                        \
  }

ATTRIBUTES(nvmlDeviceGetAttributes)
ATTRIBUTES(nvmlDeviceGetAttributes_v2)
