/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of GPUs and who they are.
 * Must not depend on what runs on them. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

#include <stdio.h>
#include <strings.h>

nvmlReturn_t nvml_check(nvmlDevice_t device) {
  uintptr_t offset = (uintptr_t)device - (uintptr_t)nvml_devices;
  if (offset >= nvml_count * sizeof *nvml_devices || offset % sizeof *nvml_devices) return NVML_ERROR_INVALID_ARGUMENT;
  return atomic_load(&fake_state->gpu[device->gpu].lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

void nvml_pci_text(const struct fake_gpu *gpu, char *text, size_t size) {
  snprintf(text, size, "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
}

void nvml_fill_pci(const struct fake_gpu *gpu, nvmlPciInfo_t *pci) {
  memset(pci, 0, sizeof *pci);
  nvml_pci_text(gpu, pci->busId, sizeof pci->busId);
  snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", gpu->pci_domain & 0xffff, gpu->pci_bus,
           gpu->pci_device);
  pci->domain = gpu->pci_domain;
  pci->bus = gpu->pci_bus;
  pci->device = gpu->pci_device;
  pci->pciDeviceId = 0x233510de;
  pci->pciSubSystemId = 0x18be10de;
}

static nvmlReturn_t get_count(unsigned *count) {
  NONNULL(count);
  *count = nvml_count;
  return NVML_SUCCESS;
}
ENTRY(nvmlDeviceGetCount, (unsigned *count), get_count, (count))
ENTRY(nvmlDeviceGetCount_v2, (unsigned *count), get_count, (count))

static nvmlReturn_t answer(unsigned index, nvmlDevice_t *device) {
  if (atomic_load(&fake_state->gpu[nvml_devices[index].gpu].lost)) return NVML_ERROR_GPU_IS_LOST;
  *device = &nvml_devices[index];
  return NVML_SUCCESS;
}

static nvmlReturn_t by_index(unsigned index, nvmlDevice_t *device) {
  NONNULL(device);
  return index < nvml_count ? answer(index, device) : NVML_ERROR_INVALID_ARGUMENT;
}
ENTRY(nvmlDeviceGetHandleByIndex, (unsigned index, nvmlDevice_t *device), by_index, (index, device))
ENTRY(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device), by_index, (index, device))

static nvmlReturn_t by_uuid(const char *uuid, nvmlDevice_t *device) {
  if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < nvml_count; i++) {
    char text[41];
    machine_gpu_name(&fake_state->machine, nvml_gpu(&nvml_devices[i]), text);
    if (!strcasecmp(text, uuid)) return answer(i, device);
  }
  return NVML_ERROR_NOT_FOUND;
}
ENTRY(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device), by_uuid, (uuid, device))

static nvmlReturn_t by_uuid_value(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
  if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->type == NVML_UUID_TYPE_ASCII) return by_uuid(uuid->value.str, device);
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < nvml_count; i++)
    if (!memcmp(fake_state->machine.gpu[nvml_devices[i].gpu].uuid, uuid->value.bytes, 16)) return answer(i, device);
  return NVML_ERROR_NOT_FOUND;
}
ENTRY(nvmlDeviceGetHandleByUUIDV, (const nvmlUUID_t *uuid, nvmlDevice_t *device), by_uuid_value, (uuid, device))

static nvmlReturn_t by_pci(const char *text, nvmlDevice_t *device) {
  unsigned domain = 0, bus, slot;
  if (!text || !device) return NVML_ERROR_INVALID_ARGUMENT;
  if (sscanf(text, "%8x:%2x:%2x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (sscanf(text, "%2x:%2x", &bus, &slot) != 2) return NVML_ERROR_INVALID_ARGUMENT;
  }
  for (unsigned i = 0; i < nvml_count; i++) {
    const struct fake_gpu *gpu = nvml_gpu(&nvml_devices[i]);
    if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot) return answer(i, device);
  }
  return NVML_ERROR_NOT_FOUND;
}
ENTRY(nvmlDeviceGetHandleByPciBusId, (const char *text, nvmlDevice_t *device), by_pci, (text, device))
ENTRY(nvmlDeviceGetHandleByPciBusId_v2, (const char *text, nvmlDevice_t *device), by_pci, (text, device))

/* A made-up serial number that stays with the GPU. */
static void serial_text(nvmlDevice_t device, char text[32]) {
  const uint8_t *uuid = nvml_gpu(device)->uuid;
  snprintf(text, 32, "16%03u%03u%03u%02u", uuid[0], uuid[1], uuid[2], uuid[3] % 100);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length) {
  ENTER_DEVICE(nvmlDeviceGetSerial, device);
  char text[32];
  serial_text(device, text);
  return nvml_text(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
  ENTER(nvmlDeviceGetHandleBySerial);
  if (!serial || !device) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < nvml_count; i++) {
    char text[32];
    serial_text(&nvml_devices[i], text);
    if (!strcmp(text, serial)) return answer(i, device);
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
  ENTER_DEVICE(nvmlDeviceGetName, device);
  return nvml_text(name, length, nvml_gpu(device)->model);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
  ENTER_DEVICE(nvmlDeviceGetUUID, device);
  char text[41];
  machine_gpu_name(&fake_state->machine, nvml_gpu(device), text);
  return nvml_text(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
  ENTER_DEVICE(nvmlDeviceGetIndex, device);
  NONNULL(index);
  *index = device->index;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
  ENTER_DEVICE(nvmlDeviceGetMinorNumber, device);
  NONNULL(minor);
  *minor = nvml_gpu(device)->minor;
  return NVML_SUCCESS;
}

static nvmlReturn_t get_pci(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  TRY(nvml_check(device));
  NONNULL(pci);
  nvml_fill_pci(nvml_gpu(device), pci);
  return NVML_SUCCESS;
}
ENTRY(nvmlDeviceGetPciInfo_v2, (nvmlDevice_t device, nvmlPciInfo_t *pci), get_pci, (device, pci))
ENTRY(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t *pci), get_pci, (device, pci))

/* The first version knew only the short bus id, the numbers after it, and four reserved words. */
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  ENTER(nvmlDeviceGetPciInfo);
  nvmlPciInfo_t full;
  NONNULL(pci);
  TRY(get_pci(device, &full));
  struct {
    char busId[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4];
  } old = {"", full.domain, full.bus, full.device, full.pciDeviceId, full.pciSubSystemId, {0}};
  memcpy(old.busId, full.busIdLegacy, sizeof old.busId);
  memcpy(pci, &old, sizeof old);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  ENTER_DEVICE(nvmlDeviceGetCudaComputeCapability, device);
  if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
  *major = (int)nvml_gpu(device)->major_capability;
  *minor = (int)nvml_gpu(device)->minor_capability;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
  ENTER_DEVICE(nvmlDeviceGetBrand, device);
  NONNULL(brand);
  *brand = NVML_BRAND_NVIDIA;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture) {
  ENTER_DEVICE(nvmlDeviceGetArchitecture, device);
  NONNULL(architecture);
  unsigned major = nvml_gpu(device)->major_capability, minor = nvml_gpu(device)->minor_capability;
  *architecture = major >= 10  ? NVML_DEVICE_ARCH_BLACKWELL
                  : major == 9 ? NVML_DEVICE_ARCH_HOPPER
                  : major == 8 ? (minor == 9 ? NVML_DEVICE_ARCH_ADA : NVML_DEVICE_ARCH_AMPERE)
                  : major == 7 ? (minor == 5 ? NVML_DEVICE_ARCH_TURING : NVML_DEVICE_ARCH_VOLTA)
                               : NVML_DEVICE_ARCH_UNKNOWN;
  return NVML_SUCCESS;
}
