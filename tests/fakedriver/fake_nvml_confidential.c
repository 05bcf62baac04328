/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML says of confidential computing on the whole system: all GPUs do it, or none can (`confidential`).
 * Must not depend on single GPUs. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

static int is_on(void) { return (int)fake_state->machine.confidential; }

nvmlReturn_t nvmlSystemGetConfComputeCapabilities(nvmlConfComputeSystemCaps_t *out) {
  ENTER(nvmlSystemGetConfComputeCapabilities);
  NONNULL(out);
  *out = (nvmlConfComputeSystemCaps_t){
      .cpuCaps = is_on() ? NVML_CC_SYSTEM_CPU_CAPS_INTEL_TDX : NVML_CC_SYSTEM_CPU_CAPS_NONE,
      .gpusCaps = is_on() ? NVML_CC_SYSTEM_GPUS_CC_CAPABLE : NVML_CC_SYSTEM_GPUS_CC_NOT_CAPABLE,
  };
  return NVML_SUCCESS;
}

/* The three numbers that all versions have; the further ones are 0. */
#define STATE \
  .environment = is_on() ? NVML_CC_SYSTEM_ENVIRONMENT_PROD : NVML_CC_SYSTEM_ENVIRONMENT_UNAVAILABLE, \
  .ccFeature = is_on() ? NVML_CC_SYSTEM_FEATURE_ENABLED : NVML_CC_SYSTEM_FEATURE_DISABLED, \
  .devToolsMode = NVML_CC_SYSTEM_DEVTOOLS_MODE_OFF

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *out) {
  ENTER(nvmlSystemGetConfComputeState);
  NONNULL(out);
  *out = (nvmlConfComputeSystemState_t){STATE};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *out) {
  ENTER(nvmlSystemGetConfComputeSettings);
  NONNULL(out);
  if (out->version != nvmlSystemConfComputeSettings_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  *out = (nvmlSystemConfComputeSettings_t){.version = nvmlSystemConfComputeSettings_v1, STATE};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeSettings_v2(nvmlSystemConfComputeSettings_v2_t *out) {
  ENTER(nvmlSystemGetConfComputeSettings_v2);
  NONNULL(out);
  if (out->version != nvmlSystemConfComputeSettings_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  *out = (nvmlSystemConfComputeSettings_v2_t){.version = nvmlSystemConfComputeSettings_v2, STATE};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned *accepting) {
  ENTER(nvmlSystemGetConfComputeGpusReadyState);
  NONNULL(accepting);
  if (!is_on()) return NVML_ERROR_NOT_SUPPORTED;
  *accepting = NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE;
  return NVML_SUCCESS;
}
