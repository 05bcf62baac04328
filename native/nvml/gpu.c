/* SPDX-License-Identifier: Apache-2.0 */
/* Device handle to column, by UUID. A handle stands for the same GPU as long as the driver is loaded.
 * Decides no numbers. Tests: tests/integration/test_native_nvml.py. */
#include "gpu.h"

#include <stdatomic.h>

#include "driver.h"
#include "runtime_state.h"
#include "ledger.h"
#include "lock.h"
#include "place.h"
#include "starts.h"
#include "view.h"

enum { CACHED = 64, UUID_TEXT = 96 };

static VC_LARGE struct {
  nvmlDevice_t device;
  int column;
} cache[CACHED];
static _Atomic unsigned int cached; /* entries below it are complete and never change */
struct lock gpu_lock;

static int read_uuid(nvmlDevice_t device, uint8_t uuid[VC_UUID_BYTES]) {
  char text[UUID_TEXT];
  uint32_t flags;
  if (real_nvml.nvmlDeviceGetUUID == NULL) return VC_ENODRIVER;
  if (real_nvml.nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS) return VC_EINVAL;
  return uuid_parse(text, uuid, &flags);
}

/* Where another thread holds the lock, the next call remembers it. */
static void remember(nvmlDevice_t device, int column) {
  if (!lock_try(&gpu_lock)) return;
  unsigned int count = atomic_load_explicit(&cached, memory_order_relaxed);
  if (count < CACHED) {
    cache[count].device = device;
    cache[count].column = column;
    atomic_store_explicit(&cached, count + 1, memory_order_release);
  }
  lock_give(&gpu_lock);
}

static __attribute__((noinline, cold)) int find_column(nvmlDevice_t device) {
  uint8_t uuid[VC_UUID_BYTES];
  int status = read_uuid(device, uuid);
  if (status < 0) return VC_ENOENT;
  int column = ledger_column(runtime_ledger, uuid);
  if (column < 0) view_no_share(uuid);
  column = column < 0 ? VC_ENOENT : column;
  remember(device, column);
  return column;
}

int gpu_column(nvmlDevice_t device) {
  unsigned int count = atomic_load_explicit(&cached, memory_order_acquire);
  for (unsigned int i = 0; i < count; i++)
    if (cache[i].device == device) return cache[i].column;
  return find_column(device);
}

static int list(uint8_t (*uuids)[VC_UUID_BYTES], int max) {
  unsigned int count = 0;
  nvmlDevice_t device;
  if (real_nvml.nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS) return VC_ENODRIVER;
  for (unsigned int index = 0; index < count && index < (unsigned int)max; index++) {
    if (real_nvml.nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS) return VC_ENODRIVER;
    if (read_uuid(device, uuids[index]) < 0) return VC_ENODRIVER;
  }
  return (int)count;
}

int gpu_list(uint8_t (*uuids)[VC_UUID_BYTES], int max) {
  if (!driver_nvml() || real_nvml.nvmlDeviceGetCount_v2 == NULL || real_nvml.nvmlDeviceGetHandleByIndex_v2 == NULL)
    return VC_ENODRIVER;
  if (!starts_take()) return VC_ENODRIVER;
  starts_inside++;
  int count = list(uuids, max);
  starts_inside--;
  starts_drop(1);
  return count;
}

void gpu_after_fork(void) { lock_give(&gpu_lock); }
