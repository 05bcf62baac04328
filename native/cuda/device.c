/* Device to column, by UUID: ordinals are reordered by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, UUIDs never.
 * Knows no quota. Tests: tests/integration/test_native_nvml.py. */
#include "device.h"

#include <stdatomic.h>
#include <string.h>

#include "driver.h"
#include "guest.h"
#include "ledger.h"
#include "log.h"
#include "view.h"

enum { CACHED = 64, UNKNOWN = 0, NO_SHARE = -1 };

/* Per device: column + 1, NO_SHARE or UNKNOWN. A device never changes its UUID while the driver is loaded. */
static _Atomic signed char cache[CACHED];

static int read_uuid(CUdevice dev, uint8_t out[VC_UUID_BYTES]) {
  CUuuid uuid;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (real_cuda.cuDeviceGetUuid_v2 != NULL)
    result = real_cuda.cuDeviceGetUuid_v2(&uuid, dev);
  else if (real_cuda.cuDeviceGetUuid != NULL)
    result = real_cuda.cuDeviceGetUuid(&uuid, dev);
  if (result != CUDA_SUCCESS) return VC_EINVAL;
  memcpy(out, uuid.bytes, VC_UUID_BYTES);
  return VC_OK;
}

static __attribute__((noinline, cold)) int find_column(CUdevice dev) {
  uint8_t uuid[VC_UUID_BYTES];
  int status = read_uuid(dev, uuid);
  if (status != VC_OK) return status;
  int column = ledger_column(guest_ledger, uuid);
  if (column < 0) view_no_share(uuid);
  return column < 0 ? VC_ENOENT : column;
}

int device_column(CUdevice dev) {
  if (dev < 0 || dev >= CACHED) return find_column(dev);
  int known = atomic_load_explicit(&cache[dev], memory_order_relaxed);
  if (VC_LIKELY(known > 0)) return known - 1;
  if (known == NO_SHARE) return VC_ENOENT;
  int column = find_column(dev);
  if (column == VC_EINVAL) return column;
  atomic_store_explicit(&cache[dev], (signed char)(column < 0 ? NO_SHARE : column + 1), memory_order_relaxed);
  return column;
}

CUdevice device_of_place(const CUmemLocation *place) {
  if (place->type == CU_MEM_LOCATION_TYPE_DEVICE) return place->id;
  return place->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN ? place->localized.deviceId : -1;
}

int device_list(uint8_t (*uuids)[VC_UUID_BYTES], int max) {
  int count = 0, listed = 0;
  CUdevice dev;
  if (!driver_cuda() || real_cuda.cuInit == NULL || real_cuda.cuDeviceGetCount == NULL || real_cuda.cuDeviceGet == NULL)
    return VC_ENODRIVER;
  if (real_cuda.cuInit(0) != CUDA_SUCCESS || real_cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return VC_ENODRIVER;
  for (int ordinal = 0; ordinal < count && listed < max; ordinal++)
    if (real_cuda.cuDeviceGet(&dev, ordinal) == CUDA_SUCCESS && read_uuid(dev, uuids[listed]) == VC_OK) listed++;
  return listed;
}

void device_memory(int column, uint64_t *avail, uint64_t *total) {
  struct view view = {0, 0, 0};
  if (column >= 0) view_memory((uint32_t)column, &view);
  *avail = view.avail;
  *total = view.total;
}
