/* SPDX-License-Identifier: Apache-2.0 */
/* Sensors and modes: plausible constants, and utilisation from the simulated work.
 * Must not depend on processes' names. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

#include <pthread.h>
#include <stdlib.h>

/* A value of one GPU that never changes. */
#define CONSTANT(symbol, type, value) \
  nvmlReturn_t symbol(nvmlDevice_t device, type *out) { \
    ENTER_DEVICE(symbol, device); \
    NONNULL(out); \
    *out = (value); \
    return NVML_SUCCESS; \
  }

CONSTANT(nvmlDeviceGetPersistenceMode, nvmlEnableState_t,
         fake_state->machine.persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED)
CONSTANT(nvmlDeviceGetComputeMode, nvmlComputeMode_t, NVML_COMPUTEMODE_DEFAULT)
CONSTANT(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
CONSTANT(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
CONSTANT(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
CONSTANT(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_0)
CONSTANT(nvmlDeviceGetPowerState, nvmlPstates_t, NVML_PSTATE_0)
CONSTANT(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
CONSTANT(nvmlDeviceGetPowerUsage, unsigned, 72000)
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, unsigned, 300000)
CONSTANT(nvmlDeviceGetPowerManagementLimit, unsigned, 300000)
CONSTANT(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 300000)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
CONSTANT(nvmlDeviceGetMaxMigDeviceCount, unsigned, 0)
CONSTANT(nvmlDeviceIsMigDeviceHandle, unsigned, fake_state->machine.mig)
CONSTANT(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
CONSTANT(nvmlDeviceGetBoardId, unsigned, nvml_gpu(device)->pci_bus << 8)
CONSTANT(nvmlDeviceGetMemoryBusWidth, unsigned, 6144)
CONSTANT(nvmlDeviceGetNumGpuCores, unsigned, nvml_gpu(device)->multiprocessors * 128)
CONSTANT(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0)
CONSTANT(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length) {
  ENTER_DEVICE(nvmlDeviceGetVbiosVersion, device);
  return nvml_text(version, length, "96.00.00.00.01");
}

static nvmlReturn_t temperature(nvmlTemperatureSensors_t sensor, int *degrees) {
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  *degrees = 34;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned *degrees) {
  ENTER_DEVICE(nvmlDeviceGetTemperature, device);
  int value;
  NONNULL(degrees);
  TRY(temperature(sensor, &value));
  *degrees = (unsigned)value;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *reading) {
  ENTER_DEVICE(nvmlDeviceGetTemperatureV, device);
  NONNULL(reading);
  if (reading->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return temperature(reading->sensorType, &reading->temperature);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold,
                                               unsigned *degrees) {
  ENTER_DEVICE(nvmlDeviceGetTemperatureThreshold, device);
  NONNULL(degrees);
  if (threshold > NVML_TEMPERATURE_THRESHOLD_GPU_MAX) return NVML_ERROR_NOT_SUPPORTED;
  *degrees = threshold == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? 95 : 87;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most) {
  ENTER_DEVICE(nvmlDeviceGetPowerManagementLimitConstraints, device);
  if (!least || !most) return NVML_ERROR_INVALID_ARGUMENT;
  *least = 100000;
  *most = 300000;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
  ENTER_DEVICE(nvmlDeviceGetTotalEnergyConsumption, device);
  NONNULL(millijoules);
  *millijoules = state_now_ns() / 1000000 * 72; /* 72 W since the machine started */
  return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(nvmlClockType_t type, unsigned *mhz) {
  static const unsigned clocks[] = {
      [NVML_CLOCK_GRAPHICS] = 1980, [NVML_CLOCK_SM] = 1980, [NVML_CLOCK_MEM] = 3201, [NVML_CLOCK_VIDEO] = 1545};
  if (!mhz || type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  *mhz = clocks[type];
  return NVML_SUCCESS;
}

#define CLOCK(symbol) \
  nvmlReturn_t symbol(nvmlDevice_t device, nvmlClockType_t type, unsigned *mhz) { \
    ENTER_DEVICE(symbol, device); \
    return clock_of(type, mhz); \
  }
CLOCK(nvmlDeviceGetClockInfo)
CLOCK(nvmlDeviceGetMaxClockInfo)
CLOCK(nvmlDeviceGetApplicationsClock)
CLOCK(nvmlDeviceGetDefaultApplicationsClock)

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned *mhz) {
  ENTER_DEVICE(nvmlDeviceGetClock, device);
  return id >= NVML_CLOCK_ID_COUNT ? NVML_ERROR_INVALID_ARGUMENT : clock_of(type, mhz);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
  ENTER_DEVICE(nvmlDeviceGetEccMode, device);
  if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
  *current = *pending = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *count) {
  ENTER_DEVICE(nvmlDeviceGetTotalEccErrors, device);
  if (!count || type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long *count) {
  ENTER_DEVICE(nvmlDeviceGetMemoryErrorCounter, device);
  (void)location;
  if (!count || type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                       unsigned *pending, unsigned *failed) {
  ENTER_DEVICE(nvmlDeviceGetRemappedRows, device);
  if (!correctable || !uncorrectable || !pending || !failed) return NVML_ERROR_INVALID_ARGUMENT;
  *correctable = *uncorrectable = *pending = *failed = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
  ENTER_DEVICE(nvmlDeviceGetMigMode, device);
  if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
  if (nvml_gpu(device)->major_capability < 9 && nvml_gpu(device)->minor_capability != 0)
    return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned *kilobytes) {
  ENTER_DEVICE(nvmlDeviceGetPcieThroughput, device);
  if (!kilobytes || counter >= NVML_PCIE_UTIL_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  *kilobytes = 0;
  return NVML_SUCCESS;
}

/* --- utilisation: the share of the time since the last question in which kernels ran ----------------------------- */

struct sample {
  uint64_t at, busy;
};
static struct sample last_sample[FAKE_MAX_GPUS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static unsigned percent(struct sample *last, uint64_t busy) {
  uint64_t now = state_now_ns();
  uint64_t time = now - last->at, done = busy > last->busy ? busy - last->busy : 0;
  unsigned result = !last->at || !time ? 0 : done >= time ? 100 : (unsigned)(done * 100 / time);
  *last = (struct sample){.at = now, .busy = busy};
  return result;
}

/* Of the GPU's time, what the slot's process had until now: what was counted when the GPU's time was last moved on, and
 * its part of what has passed since. */
static uint64_t busy_of(unsigned index, unsigned gpu_index) {
  const struct fake_gpu_state *gpu = &fake_state->gpu[gpu_index];
  const struct fake_slot *slot = &fake_state->slot[index];
  unsigned high = atomic_load(&fake_state->slot_high), working = 0;
  uint64_t busy = atomic_load(&slot->busy_ns[gpu_index]), end = atomic_load(&slot->ends[gpu_index]), now = state_now_ns();
  if (end <= gpu->own_ns || now <= gpu->real_ns) return busy;
  for (unsigned i = 0; i < high; i++) working += atomic_load(&fake_state->slot[i].ends[gpu_index]) > gpu->own_ns;
  uint64_t since = (now - gpu->real_ns) / (working ? working : 1), left = end - gpu->own_ns;
  return busy + (since < left ? since : left);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
  ENTER_DEVICE(nvmlDeviceGetUtilizationRates, device);
  NONNULL(utilization);
  uint64_t busy = 0;
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++) busy += busy_of(i, device->gpu);
  pthread_mutex_lock(&mutex);
  utilization->gpu = percent(&last_sample[device->gpu], busy);
  pthread_mutex_unlock(&mutex);
  uint64_t used = atomic_load(&fake_state->gpu[device->gpu].used);
  utilization->memory = utilization->gpu && used ? 1 : 0;
  return NVML_SUCCESS;
}

static nvmlReturn_t codec(nvmlDevice_t device, unsigned *utilization, unsigned *period) {
  TRY(nvml_check(device));
  if (!utilization || !period) return NVML_ERROR_INVALID_ARGUMENT;
  *utilization = 0;
  *period = 167000;
  return NVML_SUCCESS;
}
#define CODEC (nvmlDevice_t device, unsigned *utilization, unsigned *period)
ENTRY(nvmlDeviceGetEncoderUtilization, CODEC, codec, (device, utilization, period))
ENTRY(nvmlDeviceGetDecoderUtilization, CODEC, codec, (device, utilization, period))

/* One sample per process that ever ran a kernel on the GPU. */
struct busy_process {
  unsigned pid, percent;
};

static unsigned busy_processes(unsigned gpu, struct busy_process *out) {
  static struct sample last[FAKE_MAX_GPUS][FAKE_SLOTS];
  unsigned count = 0, high = atomic_load(&fake_state->slot_high);
  pthread_mutex_lock(&mutex);
  for (unsigned i = 0; i < high; i++) {
    uint64_t busy = busy_of(i, gpu);
    if (!busy || !atomic_load(&fake_state->slot[i].generation)) continue;
    pid_t pid = state_slot_pid(i);
    if (pid < 0) continue;
    out[count++] = (struct busy_process){.pid = (unsigned)pid, .percent = percent(&last[gpu][i], busy)};
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned *count, unsigned long long last_seen) {
  ENTER_DEVICE(nvmlDeviceGetProcessUtilization, device);
  NONNULL(count);
  unsigned long long now = state_now_ns() / 1000;
  struct busy_process *found = calloc(FAKE_SLOTS, sizeof *found);
  if (!found) return NVML_ERROR_MEMORY;
  unsigned number = now > last_seen ? busy_processes(device->gpu, found) : 0, room = *count;
  *count = number;
  nvmlReturn_t result = number == 0                 ? NVML_ERROR_NOT_FOUND
                        : number > room || !samples ? NVML_ERROR_INSUFFICIENT_SIZE
                                                    : NVML_SUCCESS;
  for (unsigned i = 0; i < number && result == NVML_SUCCESS; i++)
    samples[i] = (nvmlProcessUtilizationSample_t){.pid = found[i].pid, .timeStamp = now, .smUtil = found[i].percent};
  free(found);
  return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
  ENTER_DEVICE(nvmlDeviceGetProcessesUtilizationInfo, device);
  NONNULL(info);
  if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  unsigned long long now = state_now_ns() / 1000;
  struct busy_process *found = calloc(FAKE_SLOTS, sizeof *found);
  if (!found) return NVML_ERROR_MEMORY;
  unsigned number = now > info->lastSeenTimeStamp ? busy_processes(device->gpu, found) : 0,
           room = info->processSamplesCount;
  info->processSamplesCount = number;
  nvmlReturn_t result = number == 0                             ? NVML_ERROR_NOT_FOUND
                        : number > room || !info->procUtilArray ? NVML_ERROR_INSUFFICIENT_SIZE
                                                                : NVML_SUCCESS;
  for (unsigned i = 0; i < number && result == NVML_SUCCESS; i++)
    info->procUtilArray[i] =
        (nvmlProcessUtilizationInfo_v1_t){.timeStamp = now, .pid = found[i].pid, .smUtil = found[i].percent};
  free(found);
  return result;
}

/* --- fields ----------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
  ENTER_DEVICE(nvmlDeviceGetFieldValues, device);
  if (count <= 0 || !values) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; i++) {
    values[i].timestamp = (long long)(state_now_ns() / 1000);
    values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    if (values[i].fieldId != NVML_FI_DEV_NVLINK_LINK_COUNT) continue;
    values[i].nvmlReturn = NVML_SUCCESS;
    values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    values[i].value.uiVal = nvml_link_count(device->gpu);
  }
  return NVML_SUCCESS;
}
