/* SPDX-License-Identifier: Apache-2.0 */
/* Device to column, by UUID: ordinals are reordered by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, UUIDs never.
 * A device that cannot be matched has no memory: it is never taken for one without a limit.
 * Charges nothing itself. Tests: tests/integration/test_native_nvml.py, test_native_fail_closed.py. */
#include "device.h"

#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#include "driver.h"
#include "ledger.h"
#include "log.h"
#include "os.h"
#include "runtime_state.h"
#include "starts.h"
#include "view.h"

enum { CACHED = 64, UNKNOWN = 0, NO_SHARE = -1, UUID_TEXT = 96, BUS_ID_TEXT = 32 };

/* Per device: column + 1, NO_SHARE or UNKNOWN. A device never changes its UUID while the driver is loaded. */
static _Atomic signed char cache[CACHED];

static int read_uuid(CUdevice dev, uint8_t out[VC_UUID_BYTES]) {
  CUuuid uuid;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (real_cuda.cuDeviceGetUuid_v2 != NULL) result = real_cuda.cuDeviceGetUuid_v2(&uuid, dev);
  if (result != CUDA_SUCCESS && real_cuda.cuDeviceGetUuid != NULL) result = real_cuda.cuDeviceGetUuid(&uuid, dev);
  if (result != CUDA_SUCCESS) return VC_EINVAL;
  memcpy(out, uuid.bytes, VC_UUID_BYTES);
  return VC_OK;
}

/* Whether the driver refuses every call about the device. */
static int driver_denies(CUdevice dev) {
  int value;
  if (real_cuda.cuDeviceGetAttribute == NULL) return 0;
  CUresult result = real_cuda.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev);
  return result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_INITIALIZED ||
         result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_NO_DEVICE;
}

/* What NVML calls the GPU at this place of the bus. */
static int ask_nvml(const char *bus_id, uint8_t out[VC_UUID_BYTES]) {
  nvmlDevice_t device;
  char text[UUID_TEXT];
  uint32_t flags;
  if (!driver_nvml() || real_nvml.nvmlDeviceGetHandleByPciBusId_v2 == NULL || real_nvml.nvmlDeviceGetUUID == NULL)
    return VC_ENODRIVER;
  if (!starts_take()) return VC_ENODRIVER;
  starts_inside++;
  int known = real_nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id, &device) == NVML_SUCCESS &&
              real_nvml.nvmlDeviceGetUUID(device, text, sizeof text) == NVML_SUCCESS;
  starts_inside--;
  starts_drop(1);
  return known ? uuid_parse(text, out, &flags) : VC_ENODRIVER;
}

static int find_on_bus(CUdevice dev, uint8_t out[VC_UUID_BYTES]) {
  char bus_id[BUS_ID_TEXT] = "";
  uint64_t signals;
  if (real_cuda.cuDeviceGetPCIBusId == NULL ||
      real_cuda.cuDeviceGetPCIBusId(bus_id, sizeof bus_id, dev) != CUDA_SUCCESS)
    return VC_ENODRIVER;
  os_signals_block(&signals); /* a handler of the program's would meet NVML's own locks */
  int status = ask_nvml(bus_id, out);
  os_signals_restore(&signals);
  return status;
}

/* Drivers before CUDA 9.2 have no UUIDs. Where the container has one GPU and the driver shows one, that is it. An error
 * of a driver that has UUIDs does not prove that. */
static int is_the_only_one(void) {
  return real_cuda.cuDeviceGetUuid_v2 == NULL && real_cuda.cuDeviceGetUuid == NULL &&
         ledger_gpu_count(runtime_ledger) == 1 && device_count() == 1;
}

static int say_unknown(CUdevice dev) {
  static _Atomic int said;
  if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR,
             "neither the CUDA driver nor NVML says which GPU device %d is: it shows no memory and every allocation on it "
             "is refused; make libnvidia-ml.so.1 of the same driver available to the program",
             dev);
  return VC_ENODRIVER;
}

/* VC_ENODRIVER: neither CUDA nor NVML answered; a later call may succeed. */
static __attribute__((noinline, cold)) int find_column(CUdevice dev) {
  uint8_t uuid[VC_UUID_BYTES];
  int status = read_uuid(dev, uuid);
  if (status != VC_OK && driver_denies(dev)) return VC_EINVAL;
  if (status != VC_OK) status = find_on_bus(dev, uuid);
  if (status < 0) return is_the_only_one() ? 0 : say_unknown(dev);
  int column = ledger_column(runtime_ledger, uuid);
  if (column < 0) view_no_share(uuid);
  return column < 0 ? VC_ENOENT : column;
}

static int remember(CUdevice dev, int column) {
  if (column == VC_EINVAL) return column;
  if (column == VC_ENODRIVER) return VC_ENOENT;
  if (dev >= 0 && dev < CACHED)
    atomic_store_explicit(&cache[dev], (signed char)(column < 0 ? NO_SHARE : column + 1), memory_order_relaxed);
  return column;
}

int device_column(CUdevice dev) {
  if (dev < 0 || dev >= CACHED) return remember(dev, find_column(dev));
  int known = atomic_load_explicit(&cache[dev], memory_order_relaxed);
  if (VC_LIKELY(known > 0)) return known - 1;
  return known == NO_SHARE ? VC_ENOENT : remember(dev, find_column(dev));
}

int device_count(void) {
  int count = 0;
  if (real_cuda.cuDeviceGetCount == NULL || real_cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return -1;
  return count;
}

CUdevice device_in_column(uint32_t column) {
  int count = device_count();
  for (CUdevice dev = 0; dev < count; dev++)
    if (device_column(dev) == (int)column) return dev;
  return -1;
}

enum { NO_DEVICE = INT_MAX }; /* the driver will say so */

/* Host memory, by the names that it has so far. NONE is no place, which the driver refuses or takes for the host. */
CUdevice device_of_location(const CUmemLocation *location) {
  switch ((int)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location->id >= 0 ? location->id : NO_DEVICE;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
      return location->localized.deviceId;
    case CU_MEM_LOCATION_TYPE_NONE:
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return LOCATION_HOST;
    default:
      return LOCATION_UNKNOWN;
  }
}

int device_place_column(CUdevice dev) {
  static _Atomic int said;
  if (VC_LIKELY(dev != LOCATION_UNKNOWN)) return device_column(dev);
  if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "memory was asked for at a kind of place that this library does not know: refused; use a newer "
                        "version of it, or an older one of CUDA");
  return VC_ENOENT;
}

int device_list(uint8_t (*uuids)[VC_UUID_BYTES], int max) {
  int listed = 0;
  CUdevice dev;
  if (!driver_cuda() || real_cuda.cuInit == NULL || real_cuda.cuDeviceGet == NULL) return VC_ENODRIVER;
  int count = real_cuda.cuInit(0) == CUDA_SUCCESS ? device_count() : -1;
  if (count < 0) return VC_ENODRIVER;
  for (int ordinal = 0; ordinal < count && listed < max; ordinal++)
    if (real_cuda.cuDeviceGet(&dev, ordinal) != CUDA_SUCCESS || read_uuid(dev, uuids[listed++]) != VC_OK)
      return VC_ENODRIVER;
  return listed;
}

void device_memory(int column, uint64_t *avail, uint64_t *total) {
  struct view view = {0, 0, 0};
  if (column >= 0) view_memory((uint32_t)column, &view);
  *avail = view.avail;
  *total = view.total;
}
