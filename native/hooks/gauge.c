/* See gauge.h.
 * Knows no quota. Tests: tests/integration/test_native_context.py, test_native_excess.py. */
#include "gauge.h"

#include <stdatomic.h>

#include "driver.h"
#include "guest.h"
#include "ledger.h"
#include "objects.h"
#include "os.h"
#include "place.h"

static _Atomic int started;
static VC_LARGE _Atomic(nvmlDevice_t) devices[VC_MAX_GPUS]; /* by column; valid while NVML is started */

/* The clock is read at every glance. The loader lists the kernel's object among its own. */
static void find_clock(void) {
#if defined(__x86_64__)
  static const char object_name[] = "linux-vdso.so.1", function_name[] = "__vdso_clock_gettime";
#else
  static const char object_name[] = "linux-vdso.so.1", function_name[] = "__kernel_clock_gettime";
#endif
  struct object object;
  if (objects_find_soname(object_name, &object)) os_use_clock((os_clock *)objects_function(&object, function_name));
}

/* NVML counts its users: two threads that come here at once start it twice, which does no harm. */
static int start(void) {
  if (atomic_load_explicit(&started, memory_order_acquire)) return 1;
  if (!driver_nvml_is_known() || real_nvml.nvmlInit_v2 == NULL || real_nvml.nvmlInit_v2() != NVML_SUCCESS) return 0;
  find_clock();
  atomic_store_explicit(&started, 1, memory_order_release);
  return 1;
}

static void forget_devices(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    atomic_store_explicit(&devices[column], NULL, memory_order_relaxed);
}

static nvmlDevice_t device_of(uint32_t column) {
  nvmlDevice_t device = atomic_load_explicit(&devices[column], memory_order_relaxed);
  uint8_t uuid[VC_UUID_BYTES];
  uint32_t flags;
  char text[48];
  if (device != NULL) return device;
  ledger_column_uuid(guest_ledger, column, uuid, &flags);
  if (real_nvml.nvmlDeviceGetHandleByUUID == NULL || uuid_format(uuid, flags, text, sizeof text) < 0) return NULL;
  if (real_nvml.nvmlDeviceGetHandleByUUID(text, &device) != NVML_SUCCESS) return NULL;
  atomic_store_explicit(&devices[column], device, memory_order_relaxed);
  return device;
}

static void look_at_processes(nvmlDevice_t device, struct growth_view *view) {
  nvmlProcessInfo_t infos[GROWTH_MAX];
  unsigned int count = GROWTH_MAX;
  view->count = 0;
  view->listed = 0;
  if (real_nvml.nvmlDeviceGetComputeRunningProcesses_v3 == NULL) return;
  if (real_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos) != NVML_SUCCESS) return;
  view->listed = 1;
  for (unsigned int i = 0; i < count && i < GROWTH_MAX; i++) {
    if (infos[i].usedGpuMemory > VC_MAX_BYTES) continue; /* NVML_VALUE_NOT_AVAILABLE */
    view->process[view->count++] = (struct growth_process){infos[i].pid, infos[i].usedGpuMemory};
  }
}

static nvmlReturn_t look_at_total(uint32_t column, uint64_t *total) {
  nvmlMemory_t memory;
  nvmlDevice_t device = device_of(column);
  if (device == NULL || real_nvml.nvmlDeviceGetMemoryInfo == NULL) return NVML_ERROR_NOT_FOUND;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryInfo(device, &memory);
  if (result == NVML_SUCCESS) *total = memory.used;
  return result;
}

int gauge_is_prepared(void) { return driver_nvml_is_known(); }

int gauge_is_started(void) { return atomic_load_explicit(&started, memory_order_acquire); }

/* A machine that has none, or a process that may not load it, is not asked at every look. */
static __attribute__((noinline, cold)) void find_nvml(void) {
  enum { TRIES = 3 };
  static _Atomic int failed;
  if (atomic_load_explicit(&failed, memory_order_relaxed) >= TRIES) return;
  if (!driver_nvml()) atomic_fetch_add_explicit(&failed, 1, memory_order_relaxed);
}

void gauge_prepare(void) {
  if (!driver_nvml_is_known()) find_nvml();
}

static nvmlReturn_t look(uint32_t column, struct growth_view *view) {
  nvmlReturn_t result = look_at_total(column, &view->total);
  if (result == NVML_SUCCESS) look_at_processes(device_of(column), view);
  return result;
}

static int look_at_all(uint32_t column, struct growth_view *out) {
  if (!start()) return 0;
  nvmlReturn_t result = look(column, out);
  if (result != NVML_ERROR_UNINITIALIZED) return result == NVML_SUCCESS;
  /* The program ended NVML more often than it had started it, and with it our own start. */
  atomic_store_explicit(&started, 0, memory_order_release);
  forget_devices();
  return start() && look(column, out) == NVML_SUCCESS;
}

static int look_at_card(uint32_t column, uint64_t *out) {
  if (!start()) return 0;
  nvmlReturn_t result = look_at_total(column, out);
  if (result != NVML_ERROR_UNINITIALIZED) return result == NVML_SUCCESS;
  atomic_store_explicit(&started, 0, memory_order_release);
  forget_devices();
  return start() && look_at_total(column, out) == NVML_SUCCESS;
}

/* NVML has locks of its own, which a handler of the program's would meet that asks it for something while this thread
 * asks. */
int gauge_look(uint32_t column, struct growth_view *out) {
  uint64_t signals;
  os_signals_block(&signals);
  int seen = look_at_all(column, out);
  os_signals_restore(&signals);
  return seen;
}

int gauge_total(uint32_t column, uint64_t *out) {
  uint64_t signals;
  os_signals_block(&signals);
  int seen = look_at_card(column, out);
  os_signals_restore(&signals);
  return seen;
}

/* The parent's start is the child's too, but nobody says that NVML survives a fork: start it again. */
void gauge_after_fork(void) {
  atomic_store(&started, 0);
  forget_devices();
}
