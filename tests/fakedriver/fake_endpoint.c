/* SPDX-License-Identifier: Apache-2.0 */
/* Logical endpoints: objects with a number, to which memory of one GPU or several is bound. Complete at once.
 * Must not depend on other processes: what one exports, no other can import, as on a machine without a fabric.
 * Tests: tests/unit/fakedriver/test_vmm_sharing.py. */
#include "fake_vmm.h"

#include <unistd.h>

enum { ENDPOINTS = 256 };

static struct endpoint {
  int reserved, exportable;
  struct memory *object; /* NULL: none */
} endpoints[ENDPOINTS];

/* Under the lock. */
static struct memory *find(CUlogicalEndpointId id) { return id < ENDPOINTS ? endpoints[id].object : NULL; }

static int range_is(CUlogicalEndpointId base, cuuint32_t count, int reserved) {
  if (!count || base >= ENDPOINTS || count > ENDPOINTS - base) return 0;
  for (cuuint32_t i = 0; i < count; i++)
    if (endpoints[base + i].reserved != reserved || endpoints[base + i].object) return 0;
  return 1;
}

static void mark(CUlogicalEndpointId base, cuuint32_t count, int reserved) {
  for (cuuint32_t i = 0; i < count; i++) endpoints[base + i].reserved = reserved;
}

CUresult cuLogicalEndpointIdReserve(CUlogicalEndpointId *base, cuuint32_t count) {
  ENTER(cuLogicalEndpointIdReserve);
  if (!base || !count) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  vmm_lock();
  for (CUlogicalEndpointId at = 0; at < ENDPOINTS && result; at++) {
    if (!range_is(at, count, 0)) continue;
    mark(at, count, 1);
    *base = at;
    result = CUDA_SUCCESS;
  }
  vmm_unlock();
  return result;
}

CUresult cuLogicalEndpointIdRelease(CUlogicalEndpointId base, cuuint32_t count) {
  ENTER(cuLogicalEndpointIdRelease);
  vmm_lock();
  int free = range_is(base, count, 1);
  if (free) mark(base, count, 0);
  vmm_unlock();
  return free ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_prop(const CUlogicalEndpointProp *prop) {
  NONNULL(prop);
  if (!prop->size || prop->size % GRANULARITY || prop->ipcHandleTypes > 1 || prop->flags > 1)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST)
    return device_valid(prop->unicast.device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  if (prop->type != CU_LOGICAL_ENDPOINT_TYPE_MULTICAST) return CUDA_ERROR_INVALID_VALUE;
  return prop->multicast.numDevices && prop->multicast.numDevices <= (unsigned)device_count ? CUDA_SUCCESS
                                                                                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointGetLimits(cuuint64_t *alignment, cuuint64_t *most, const CUlogicalEndpointProp *prop) {
  ENTER(cuLogicalEndpointGetLimits);
  if (!alignment || !most) return CUDA_ERROR_INVALID_VALUE;
  TRY(check_prop(prop));
  *alignment = GRANULARITY;
  *most = UINT64_C(1) << 40;
  return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *prop) {
  ENTER(cuLogicalEndpointCreate);
  TRY(check_prop(prop));
  int alone = prop->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST;
  vmm_lock();
  CUresult result = range_is(id, 1, 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  struct memory *object = result ? NULL : memory_new();
  if (object) {
    object->multicast = 1;
    object->size = prop->size;
    object->devices_required = alone ? 1 : prop->multicast.numDevices;
    object->devices = alone ? 1u << device_gpu[prop->unicast.device] : 0;
    endpoints[id].object = object;
    endpoints[id].exportable = (int)prop->ipcHandleTypes;
  } else if (!result) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  vmm_unlock();
  return result;
}

CUresult cuLogicalEndpointAddDevice(CUlogicalEndpointId id, CUdevice device) {
  ENTER(cuLogicalEndpointAddDevice);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  unsigned bit = 1u << device_gpu[device];
  vmm_lock();
  struct memory *object = find(id);
  int failed =
      !object || object->devices & bit || (unsigned)__builtin_popcount(object->devices) == object->devices_required;
  if (!failed) object->devices |= bit;
  vmm_unlock();
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id) {
  ENTER(cuLogicalEndpointDestroy);
  vmm_lock();
  struct memory *object = find(id);
  if (object) {
    endpoints[id].object = NULL;
    object->references--;
    memory_settle(object);
  }
  vmm_unlock();
  return object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memory, cuuint64_t memory_offset, cuuint64_t size,
                                  unsigned long long flags) {
  ENTER(cuLogicalEndpointBindMem);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  vmm_lock();
  CUresult result = multicast_bind(find(id), device, offset, memory_check(memory), memory_offset, size);
  vmm_unlock();
  return result;
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset, void *address,
                                   cuuint64_t size, unsigned long long flags) {
  ENTER(cuLogicalEndpointBindAddr);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  vmm_lock();
  CUresult result = multicast_bind_at(find(id), device, offset, (CUdeviceptr)(uintptr_t)address, size);
  vmm_unlock();
  return result;
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset, cuuint64_t size) {
  ENTER(cuLogicalEndpointUnbind);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  vmm_lock();
  int found = multicast_unbind(find(id), device, offset, size);
  vmm_unlock();
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What is exported can be imported in the same process: there it is the same object under another number. */
struct exported {
  char magic[16];
  int32_t pid;
  CUlogicalEndpointId id;
};
static const char magic[16] = "fake endpoint 1";

CUresult cuLogicalEndpointExport(void *handle, CUlogicalEndpointId id, CUlogicalEndpointIpcHandleType type) {
  ENTER(cuLogicalEndpointExport);
  if (!handle || type != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC) return CUDA_ERROR_INVALID_VALUE;
  struct exported made = {.pid = getpid(), .id = id};
  memcpy(made.magic, magic, sizeof magic);
  vmm_lock();
  int known = find(id) != NULL && endpoints[id].exportable;
  vmm_unlock();
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  memcpy(handle, &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle, CUlogicalEndpointIpcHandleType type) {
  ENTER(cuLogicalEndpointImport);
  struct exported from;
  if (!handle || type != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC) return CUDA_ERROR_INVALID_VALUE;
  memcpy(&from, handle, sizeof from);
  if (memcmp(from.magic, magic, sizeof magic) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (from.pid != getpid()) return CUDA_ERROR_NOT_SUPPORTED;
  vmm_lock();
  struct memory *object = find(from.id);
  int possible = object && range_is(id, 1, 1);
  if (possible) {
    object->references++;
    endpoints[id].object = object;
    endpoints[id].exportable = 1;
  }
  vmm_unlock();
  return possible ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointQuery(CUlogicalEndpointId id, cuuint32_t count, int *status) {
  ENTER(cuLogicalEndpointQuery);
  if (!status || !count || id >= ENDPOINTS || count > ENDPOINTS - id) return CUDA_ERROR_INVALID_VALUE;
  *status = 1;
  vmm_lock();
  for (cuuint32_t i = 0; i < count; i++) {
    const struct memory *object = find(id + i);
    if (!object || (unsigned)__builtin_popcount(object->devices) < object->devices_required) *status = 0;
  }
  vmm_unlock();
  return CUDA_SUCCESS;
}
