/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation and the devices of the simulated libcuda.so.1.
 * Must not depend on memory or contexts. Tests: tests/unit/fakedriver/test_machine_file.py, test_visibility.py. */
#include "fake_cuda.h"
#include "fake_env.h"
#include "fake_visible.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int device_count;
unsigned device_gpu[FAKE_MAX_GPUS];
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialised, forked;

int device_valid(CUdevice device) { return device >= 0 && device < device_count; }

int device_of_gpu(unsigned gpu) {
  for (int i = 0; i < device_count; i++)
    if (device_gpu[i] == gpu) return i;
  return -1;
}

/* As with the real driver a child of fork cannot use what its parent initialised. */
static void after_fork_in_child(void) {
  pthread_mutex_init(&init_mutex, NULL);
  if (!initialised) return;
  forked = 1;
  initialised = 0;
  call_not_ready();
  context_reset_after_fork();
}

static CUresult initialise(void) {
  unsigned present[FAKE_MAX_GPUS];
  int count = visible_in_container(&fake_state->machine, fake_env_container_devices(), present);
  if (count < 0) return CUDA_ERROR_NO_DEVICE;
  device_count = visible_to_cuda(&fake_state->machine, fake_env_cuda_devices(), present, count, device_gpu);
  if (device_count == 0) return CUDA_ERROR_NO_DEVICE;
  if (state_claim_slot()) {
    fprintf(stderr, "fake driver: %d processes use this machine already\n", FAKE_SLOTS);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (call_ready("cu")) return CUDA_ERROR_SYSTEM_NOT_READY;
  initialised = 1;
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags) {
  static int registered;
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (state_attach()) return CUDA_ERROR_SYSTEM_NOT_READY;
  ENTER(cuInit);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&init_mutex);
  if (!registered) registered = pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
  CUresult result = initialised ? CUDA_SUCCESS : initialise();
  pthread_mutex_unlock(&init_mutex);
  return result;
}

CUresult cuDriverGetVersion(int *version) {
  ENTER(cuDriverGetVersion);
  NONNULL(version);
  if (state_attach()) return CUDA_ERROR_SYSTEM_NOT_READY;
  *version = (int)fake_state->machine.cuda_version;
  return CUDA_SUCCESS;
}

static const struct fake_gpu *gpu_of(CUdevice device) {
  return device_valid(device) ? &fake_state->machine.gpu[device_gpu[device]] : NULL;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER(cuDeviceGet);
  NONNULL(device);
  if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  ENTER(cuDeviceGetCount);
  NONNULL(count);
  *count = device_count;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  ENTER(cuDeviceGetName);
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, (size_t)length, "%s", gpu_of(device)->model);
  return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device) {
  NONNULL(uuid);
  if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid->bytes, gpu_of(device)->uuid, 16);
  return CUDA_SUCCESS;
}

/* The first ABI names the GPU that a MIG device is a part of. */
static CUresult get_gpu_uuid(CUuuid *uuid, CUdevice device) {
  TRY(get_uuid(uuid, device));
  if (fake_state->machine.mig) uuid->bytes[15] = (char)~uuid->bytes[15];
  return CUDA_SUCCESS;
}
ENTRY(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device), get_gpu_uuid, (uuid, device))
ENTRY(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device), get_uuid, (uuid, device))

CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice device) {
  ENTER(cuDeviceGetLuid);
  (void)luid, (void)mask;
  return gpu_of(device) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_DEVICE; /* locally unique IDs are for Windows */
}

static uint64_t total_of(CUdevice device) {
  uint64_t total = gpu_of(device)->memory_bytes, available = total;
  if (limits_are_on() && fake_state->machine.memory_limits_total) limits_narrow(device_gpu[device], &total, &available);
  return total;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
  ENTER(cuDeviceTotalMem);
  NONNULL(bytes);
  if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
  uint64_t total = total_of(device);
  *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER(cuDeviceTotalMem_v2);
  NONNULL(bytes);
  if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = total_of(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
  ENTER(cuDeviceGetPCIBusId);
  if (!text || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const struct fake_gpu *gpu = gpu_of(device);
  if (!gpu) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(text, (size_t)length, "%04X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
  ENTER(cuDeviceGetByPCIBusId);
  unsigned domain = 0, bus, slot;
  if (!device || !text) return CUDA_ERROR_INVALID_VALUE;
  if (sscanf(text, "%8x:%2x:%2x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (sscanf(text, "%2x:%2x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < device_count; i++) {
    const struct fake_gpu *gpu = gpu_of(i);
    if (gpu->pci_domain != domain || gpu->pci_bus != bus || gpu->pci_device != slot) continue;
    *device = i;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER(cuDeviceComputeCapability);
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = (int)gpu_of(device)->major_capability;
  *minor = (int)gpu_of(device)->minor_capability;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice device) {
  ENTER(cuDeviceGetProperties);
  NONNULL(prop);
  if (!gpu_of(device)) return CUDA_ERROR_INVALID_DEVICE;
  *prop = (CUdevprop){.maxThreadsPerBlock = 1024,
                      .maxThreadsDim = {1024, 1024, 64},
                      .maxGridSize = {2147483647, 65535, 65535},
                      .sharedMemPerBlock = 49152,
                      .totalConstantMemory = 65536,
                      .SIMDWidth = 32,
                      .memPitch = 2147483647,
                      .regsPerBlock = 65536,
                      .clockRate = 1980000,
                      .textureAlign = 512};
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  ENTER(cuDeviceCanAccessPeer);
  NONNULL(can);
  if (!gpu_of(device) || !gpu_of(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target) {
  ENTER(cuDeviceGetP2PAttribute);
  NONNULL(value);
  if (!gpu_of(source) || !gpu_of(target) || source == target) return CUDA_ERROR_INVALID_DEVICE;
  unsigned a = device_gpu[source], b = device_gpu[target];
  int linked = fake_state->machine.links[a][b] > 0;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = linked ? 0 : fake_state->machine.level[a][b];
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = linked;
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return CUDA_SUCCESS;
  }
}
