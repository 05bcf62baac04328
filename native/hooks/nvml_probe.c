/* SPDX-License-Identifier: Apache-2.0 */
/* See nvml_probe.h.
 * Charges nothing itself. Tests: tests/integration/test_native_context.py, test_native_undeclared.py. */
#define _GNU_SOURCE
#include "nvml_probe.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "driver.h"
#include "runtime_state.h"
#include "ledger.h"
#include "objects.h"
#include "os.h"
#include "place.h"
#include "starts.h"

/* More processes than a machine can have PIDs are a number that a driver did not mean. */
enum { LIST_TRIES = 4, MOST_LISTED = 1 << 22 };

static _Atomic int started;
static _Atomic int32_t held; /* starts of NVML */
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

/* Two threads that come here at once start it twice, which both end. */
static int start(void) {
  if (atomic_load_explicit(&started, memory_order_acquire)) return 1;
  if (!driver_nvml_is_known() || !starts_take()) return 0;
  atomic_fetch_add(&held, 1);
  find_clock();
  atomic_store_explicit(&started, 1, memory_order_release);
  return 1;
}

static void forget_devices(void) {
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    atomic_store_explicit(&devices[column], NULL, memory_order_relaxed);
}

/* By calls that do not pass here the program has ended NVML more often than it had started it, and with it our own
 * start; or another thread has just stopped it. */
static int start_again(void) {
  int32_t lost = atomic_exchange(&held, 0);
  if (lost != 0) starts_lost(lost);
  atomic_store_explicit(&started, 0, memory_order_release);
  forget_devices();
  return start();
}

void nvml_probe_stop(void) {
  int32_t taken = atomic_exchange(&held, 0);
  atomic_store_explicit(&started, 0, memory_order_release);
  forget_devices();
  if (taken != 0) starts_drop(taken);
}

static nvmlReturn_t device_of(uint32_t column, nvmlDevice_t *out) {
  uint8_t uuid[VC_UUID_BYTES];
  uint32_t flags;
  char text[48];
  *out = atomic_load_explicit(&devices[column], memory_order_relaxed);
  if (*out != NULL) return NVML_SUCCESS;
  ledger_column_uuid(runtime_ledger, column, uuid, &flags);
  if (real_nvml.nvmlDeviceGetHandleByUUID == NULL || uuid_format(uuid, flags, text, sizeof text) < 0)
    return NVML_ERROR_NOT_FOUND;
  nvmlReturn_t result = real_nvml.nvmlDeviceGetHandleByUUID(text, out);
  if (result == NVML_SUCCESS) atomic_store_explicit(&devices[column], *out, memory_order_relaxed);
  return result;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
  return real_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

/* What has no number (NVML_VALUE_NOT_AVAILABLE) is left out. The list may take the place of what it is made from: an
 * entry is no longer than NVML's. */
static void take_list(struct growth_view *view, struct growth_process *to, const nvmlProcessInfo_t *infos,
                      unsigned int count) {
  for (unsigned int i = 0; i < count; i++) {
    const struct growth_process process = {infos[i].pid, infos[i].usedGpuMemory};
    if (process.bytes <= VC_MAX_BYTES) to[view->count++] = process;
  }
  view->listed = 1;
}

_Static_assert(sizeof(struct growth_process) <= sizeof(nvmlProcessInfo_t), "see take_list()");

/* Room for more than NVML has just counted: processes start until the next call. */
static nvmlReturn_t list_many(nvmlDevice_t device, unsigned int count, struct growth_view *view) {
  nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
  for (int tries = 0; tries < LIST_TRIES && count < MOST_LISTED; tries++) {
    unsigned int room = count + count / 4 + GROWTH_FEW;
    view->many_bytes = room * sizeof(nvmlProcessInfo_t);
    void *memory = mmap(NULL, view->many_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) break;
    view->many = memory;
    count = room;
    result = list(device, &count, memory);
    if (result == NVML_SUCCESS && count <= room) take_list(view, memory, memory, count);
    if (view->listed) break;
    nvml_probe_drop(view);
    if (result != NVML_ERROR_INSUFFICIENT_SIZE) break;
    if (count < room) count = room * 2; /* a driver that does not say how many there are */
  }
  return result;
}

static nvmlReturn_t list_processes(nvmlDevice_t device, struct growth_view *view) {
  nvmlProcessInfo_t infos[GROWTH_FEW];
  unsigned int count = GROWTH_FEW;
  view->count = 0;
  view->listed = 0;
  if (real_nvml.nvmlDeviceGetComputeRunningProcesses_v3 == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
  nvmlReturn_t result = list(device, &count, infos);
  if (result == NVML_SUCCESS && count <= GROWTH_FEW) take_list(view, view->few, infos, count);
  return result == NVML_ERROR_INSUFFICIENT_SIZE ? list_many(device, count, view) : result;
}

void nvml_probe_drop(struct growth_view *view) {
  if (view->many != NULL) munmap(view->many, view->many_bytes);
  view->many = NULL;
}

static nvmlReturn_t read_total(uint32_t column, uint64_t *used, uint64_t *size) {
  nvmlMemory_t memory;
  nvmlDevice_t device;
  nvmlReturn_t result = device_of(column, &device);
  if (real_nvml.nvmlDeviceGetMemoryInfo == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (result != NVML_SUCCESS) return result;
  result = real_nvml.nvmlDeviceGetMemoryInfo(device, &memory);
  if (result != NVML_SUCCESS) return result;
  *used = memory.used;
  *size = memory.total;
  return result;
}

int nvml_probe_is_prepared(void) { return driver_nvml_is_known(); }

int nvml_probe_is_started(void) { return atomic_load_explicit(&started, memory_order_acquire); }

/* A machine that has none, or a process that may not load it, is not asked at every reading. */
static __attribute__((noinline, cold)) void find_nvml(void) {
  enum { TRIES = 3 };
  static _Atomic int failed;
  if (atomic_load_explicit(&failed, memory_order_relaxed) >= TRIES) return;
  if (!driver_nvml()) atomic_fetch_add_explicit(&failed, 1, memory_order_relaxed);
}

void nvml_probe_prepare(void) {
  if (!driver_nvml_is_known()) find_nvml();
}

/* A GPU without a list is half a view; when another thread ended NVML between two of the queries, there is none. */
static nvmlReturn_t read_view(uint32_t column, struct growth_view *view) {
  nvmlDevice_t device;
  nvmlReturn_t result = read_total(column, &view->total, &view->size);
  if (result == NVML_SUCCESS) result = device_of(column, &device);
  if (result == NVML_SUCCESS && list_processes(device, view) == NVML_ERROR_UNINITIALIZED)
    result = NVML_ERROR_UNINITIALIZED;
  return result;
}

static int read_all(uint32_t column, struct growth_view *out) {
  if (!start()) return 0;
  nvmlReturn_t result = read_view(column, out);
  if (result != NVML_ERROR_UNINITIALIZED) return result == NVML_SUCCESS;
  return start_again() && read_view(column, out) == NVML_SUCCESS;
}

static int read_gpu(uint32_t column, uint64_t *used, uint64_t *size) {
  if (!start()) return 0;
  nvmlReturn_t result = read_total(column, used, size);
  if (result != NVML_ERROR_UNINITIALIZED) return result == NVML_SUCCESS;
  return start_again() && read_total(column, used, size) == NVML_SUCCESS;
}

/* NVML has locks of its own: a signal handler of the program that calls NVML while this thread is inside it would wait
 * for its own thread. */
int nvml_probe_read(uint32_t column, struct growth_view *out) {
  uint64_t signals;
  os_signals_block(&signals);
  out->many = NULL;
  starts_inside++;
  int seen = read_all(column, out);
  starts_inside--;
  os_signals_restore(&signals);
  return seen;
}

int nvml_probe_total(uint32_t column, uint64_t *used, uint64_t *size) {
  uint64_t signals;
  os_signals_block(&signals);
  starts_inside++;
  int seen = read_gpu(column, used, size);
  starts_inside--;
  os_signals_restore(&signals);
  return seen;
}

/* The parent's start is the child's too, but NVML does not promise to survive a fork: start it again. */
void nvml_probe_after_fork(void) {
  atomic_store(&started, 0);
  forget_devices();
}
