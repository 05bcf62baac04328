/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation and system-wide questions of the simulated libnvidia-ml.so.1.
 * Must not depend on single GPUs. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_env.h"
#include "fake_nvml.h"
#include "fake_visible.h"

#include <pthread.h>
#include <stdio.h>

unsigned nvml_count;
struct nvmlDevice_st nvml_devices[FAKE_MAX_GPUS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;

static nvmlReturn_t attach(void) {
  unsigned present[FAKE_MAX_GPUS];
  int count = visible_in_container(&fake_state->machine, fake_env_container_devices(), present);
  if (count < 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (call_ready("nvml")) return NVML_ERROR_DRIVER_NOT_LOADED;
  nvml_count = (unsigned)count;
  for (unsigned i = 0; i < nvml_count; i++) nvml_devices[i] = (struct nvmlDevice_st){.gpu = present[i], .index = i};
  return NVML_SUCCESS;
}

static nvmlReturn_t initialise(unsigned call) {
  if (state_attach()) return NVML_ERROR_DRIVER_NOT_LOADED;
  pthread_mutex_lock(&mutex);
  nvmlReturn_t result = references ? NVML_SUCCESS : attach();
  int ordered = result == NVML_SUCCESS && *call_armed ? call_enter_slowly(call, 0) : 0;
  if (ordered) result = (nvmlReturn_t)ordered;
  if (result == NVML_SUCCESS) references++;
  if (!references) call_not_ready();
  pthread_mutex_unlock(&mutex);
  return result;
}

nvmlReturn_t nvmlInit(void) { return initialise(CALL_nvmlInit); }
nvmlReturn_t nvmlInit_v2(void) { return initialise(CALL_nvmlInit_v2); }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return initialise(CALL_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void) {
  ENTER(nvmlShutdown);
  pthread_mutex_lock(&mutex);
  if (--references == 0) call_not_ready();
  pthread_mutex_unlock(&mutex);
  return NVML_SUCCESS;
}

static const struct {
  nvmlReturn_t code;
  const char *text;
} errors[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."},
    {NVML_ERROR_IN_USE, "GPU is currently in use"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "Deprecated"},
    {NVML_ERROR_NOT_READY, "Not Ready"},
    {NVML_ERROR_INVALID_STATE, "Invalid State"},
};

const char *nvmlErrorString(nvmlReturn_t result) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == result) return errors[i].text;
  return "Unknown Error";
}

nvmlReturn_t nvml_text(char *out, unsigned length, const char *text) {
  NONNULL(out);
  if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(out, text);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
  ENTER(nvmlSystemGetDriverVersion);
  return nvml_text(version, length, fake_state->machine.driver_version);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned length) {
  ENTER(nvmlSystemGetDriverBranch);
  NONNULL(info);
  if (info->version != nvmlSystemDriverBranchInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const char *version = fake_state->machine.driver_version;
  char text[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
  snprintf(text, sizeof text, "r%.*s_00", (int)strcspn(version, "."), version);
  return nvml_text(info->branch, length < sizeof text ? length : (unsigned)sizeof text, text);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
  ENTER(nvmlSystemGetNVMLVersion);
  char text[64]; /* the CUDA major version before the driver's */
  snprintf(text, sizeof text, "%u.%s", fake_state->machine.cuda_version / 1000, fake_state->machine.driver_version);
  return nvml_text(version, length, text);
}

static nvmlReturn_t cuda_version(int *version) {
  NONNULL(version);
  *version = (int)fake_state->machine.cuda_version;
  return NVML_SUCCESS;
}
ENTRY(nvmlSystemGetCudaDriverVersion, (int *version), cuda_version, (version))
ENTRY(nvmlSystemGetCudaDriverVersion_v2, (int *version), cuda_version, (version))

int nvml_process_name(unsigned pid, char *name, size_t size) {
  char path[64], text[4096];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  size_t read = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[read] = '\0'; /* the program's name ends at the first zero; the driver cuts what does not fit */
  snprintf(name, size, "%s", text);
  return 0;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
  ENTER(nvmlSystemGetProcessName);
  if (!name || !length) return NVML_ERROR_INVALID_ARGUMENT;
  return nvml_process_name(pid, name, length) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned *count) {
  ENTER(nvmlUnitGetCount);
  NONNULL(count);
  *count = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetHandleByIndex(unsigned index, nvmlUnit_t *unit) {
  ENTER(nvmlUnitGetHandleByIndex);
  (void)index, (void)unit; /* there is none */
  return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned *count, nvmlHwbcEntry_t *entries) {
  ENTER(nvmlSystemGetHicVersion);
  if (!count || (*count && !entries)) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0; /* host interface cards are in S-class systems */
  return NVML_SUCCESS;
}

static nvmlReturn_t no_excluded(unsigned *count) {
  NONNULL(count);
  *count = 0;
  return NVML_SUCCESS;
}
ENTRY(nvmlGetExcludedDeviceCount, (unsigned *count), no_excluded, (count))
