/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits of cgroups: what NVML answers. The rules are those of fake_limits.c.
 * Must not depend on how memory is taken. Tests: tests/unit/fakedriver/test_limits.py, test_limits_dmem.py. */
#include "fake_env.h"
#include "fake_nvml.h"

/* A driver before branch 615 has no such function; one that has it may have been told to leave it alone. */
static nvmlReturn_t check(nvmlDevice_t device, int is_given) {
  uint32_t backend = fake_state->machine.memory_limits;
  if (backend == FAKE_LIMITS_NONE) return NVML_ERROR_FUNCTION_NOT_FOUND;
  TRY(nvml_check(device));
  if (!is_given) return NVML_ERROR_INVALID_ARGUMENT;
  return backend == FAKE_LIMITS_OFF || fake_state->machine.mig ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlReturn_t answer(int result) {
  if (result < 0) return NVML_ERROR_OPERATING_SYSTEM;
  switch ((enum fake_limits_result)result) {
    case FAKE_LIMITS_DONE: return NVML_SUCCESS;
    case FAKE_LIMITS_NOT_SUPPORTED: return NVML_ERROR_NOT_SUPPORTED;
    case FAKE_LIMITS_NOT_FOUND: return NVML_ERROR_NOT_FOUND;
    case FAKE_LIMITS_BELOW_USE: return NVML_ERROR_INVALID_ARGUMENT;
    case FAKE_LIMITS_NO_PERMISSION: return NVML_ERROR_NO_PERMISSION;
  }
  return NVML_ERROR_UNKNOWN;
}

static int is_valid(const nvmlSetMemoryLimits_v1_t *limits, uint64_t total) {
  int hard_is_valid = limits->hardLimit <= total || limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX;
  return limits->softLimit <= limits->hardLimit && limits->softLimit <= total && hard_is_valid;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
  ENTER(nvmlDeviceSetMemoryLimits_v1);
  TRY(check(device, limits && limits->nameSpace));
  if (!is_valid(limits, nvml_gpu(device)->memory_bytes)) return NVML_ERROR_INVALID_ARGUMENT;
  if (!fake_env_is_admin()) return NVML_ERROR_NO_PERMISSION;
  return answer(limits_set(device->gpu, limits->nameSpace, limits->softLimit, limits->hardLimit));
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
  ENTER(nvmlDeviceGetMemoryLimits_v1);
  uint64_t soft, hard, used;
  TRY(check(device, limits && limits->nameSpace));
  TRY(answer(limits_get(device->gpu, limits->nameSpace, &soft, &hard, &used)));
  limits->softLimit = soft;
  limits->hardLimit = hard;
  limits->currentUsed = used;
  return NVML_SUCCESS;
}
