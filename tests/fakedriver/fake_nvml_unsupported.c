/* SPDX-License-Identifier: Apache-2.0 */
/* NVML functions that exist and answer as on a GPU without the feature: no fans, no MIG devices, no vGPU.
 * Must not do anything. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

#define UNSUPPORTED(symbol, parameters) \
  nvmlReturn_t symbol parameters { \
    ENTER_DEVICE(symbol, device); \
    return NVML_ERROR_NOT_SUPPORTED; \
  }

UNSUPPORTED(nvmlDeviceGetFanSpeed, (nvmlDevice_t device, unsigned *))
UNSUPPORTED(nvmlDeviceGetFanSpeed_v2, (nvmlDevice_t device, unsigned, unsigned *))
UNSUPPORTED(nvmlDeviceGetNumFans, (nvmlDevice_t device, unsigned *))
UNSUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned, nvmlDevice_t *))
UNSUPPORTED(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t device, nvmlDevice_t *))
UNSUPPORTED(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t device, unsigned *))
UNSUPPORTED(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t device, unsigned *))
UNSUPPORTED(nvmlDeviceGetDriverModel, (nvmlDevice_t device, nvmlDriverModel_t *, nvmlDriverModel_t *))
UNSUPPORTED(nvmlDeviceGetRetiredPages,
            (nvmlDevice_t device, nvmlPageRetirementCause_t, unsigned *, unsigned long long *))
UNSUPPORTED(nvmlDeviceGetInforomVersion, (nvmlDevice_t device, nvmlInforomObject_t, char *, unsigned))
UNSUPPORTED(nvmlDeviceGetSamples, (nvmlDevice_t device, nvmlSamplingType_t, unsigned long long, nvmlValueType_t *,
                                   unsigned *, nvmlSample_t *))
UNSUPPORTED(nvmlDeviceGetModuleId, (nvmlDevice_t device, unsigned *))
UNSUPPORTED(nvmlDeviceGetAPIRestriction, (nvmlDevice_t device, nvmlRestrictedAPI_t, nvmlEnableState_t *))
UNSUPPORTED(nvmlDeviceGetGspFirmwareVersion, (nvmlDevice_t device, char *))
