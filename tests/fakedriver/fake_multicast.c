/* SPDX-License-Identifier: Apache-2.0 */
/* Multicast objects: memory of several GPUs under one handle. What is written to a mapping of one goes nowhere.
 * Must not depend on other processes' objects: an imported one has bindings of its own.
 * Tests: tests/unit/fakedriver/test_vmm_sharing.py. */
#include "fake_vmm.h"

#include <stdlib.h>

struct binding {
  struct binding *next;
  struct memory *memory;
  unsigned gpu;
  uint64_t offset, size;
};

static CUresult check_prop(const CUmulticastObjectProp *prop) {
  NONNULL(prop);
  if (!prop->numDevices || prop->numDevices > (unsigned)device_count || prop->flags) return CUDA_ERROR_INVALID_VALUE;
  return prop->size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastGetGranularity(size_t *out, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option) {
  ENTER(cuMulticastGetGranularity);
  if (!out || (unsigned)option > 1) return CUDA_ERROR_INVALID_VALUE;
  TRY(check_prop(prop));
  *out = GRANULARITY;
  return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop) {
  ENTER(cuMulticastCreate);
  NONNULL(out);
  TRY(check_prop(prop));
  if (prop->size % GRANULARITY) return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  struct memory *object = memory_new();
  if (object) {
    object->multicast = 1;
    object->size = prop->size;
    object->devices_required = prop->numDevices;
    object->prop.requestedHandleTypes = (CUmemAllocationHandleType)prop->handleTypes;
  }
  vmm_unlock();
  if (!object) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = (CUmemGenericAllocationHandle)(uintptr_t)object;
  return CUDA_SUCCESS;
}

static struct memory *check(CUmemGenericAllocationHandle handle) {
  struct memory *object = memory_check(handle);
  return object && object->multicast ? object : NULL;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  ENTER(cuMulticastAddDevice);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  unsigned bit = 1u << device_gpu[device];
  vmm_lock();
  struct memory *object = check(handle);
  int failed =
      !object || object->devices & bit || (unsigned)__builtin_popcount(object->devices) == object->devices_required;
  if (!failed) object->devices |= bit;
  vmm_unlock();
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Under the lock. The real call waits until all devices are there; this one refuses. */
CUresult multicast_bind(struct memory *object, CUdevice device, uint64_t offset, struct memory *memory,
                        uint64_t memory_offset, uint64_t size) {
  if (!object || !memory || memory->multicast || memory->host || !size || (offset | memory_offset | size) % GRANULARITY)
    return CUDA_ERROR_INVALID_VALUE;
  if (offset > object->size || size > object->size - offset) return CUDA_ERROR_INVALID_VALUE;
  if (memory_offset > memory->size || size > memory->size - memory_offset) return CUDA_ERROR_INVALID_VALUE;
  if (device >= 0 && (!device_valid(device) || device_gpu[device] != memory->gpu)) return CUDA_ERROR_INVALID_DEVICE;
  if (!(object->devices >> memory->gpu & 1) || (unsigned)__builtin_popcount(object->devices) < object->devices_required)
    return CUDA_ERROR_INVALID_DEVICE;
  for (struct binding *other = object->bindings; other; other = other->next)
    if (other->gpu == memory->gpu && other->offset < offset + size && offset < other->offset + other->size)
      return CUDA_ERROR_INVALID_VALUE;
  struct binding *binding = malloc(sizeof *binding);
  if (!binding) return CUDA_ERROR_OUT_OF_MEMORY;
  *binding = (struct binding){object->bindings, memory, memory->gpu, offset, size};
  object->bindings = binding;
  memory->mappings++;
  return CUDA_SUCCESS;
}

static CUresult bind_memory(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                            unsigned long long flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  CUresult result = multicast_bind(check(handle), device, offset, memory_check(memory), memory_offset, size);
  vmm_unlock();
  return result;
}

CUresult multicast_bind_at(struct memory *object, CUdevice device, uint64_t offset, CUdeviceptr address, uint64_t size) {
  struct range range;
  if (range_find_kind(address, RANGE_MAPPED, &range) || size > range.base + range.size - address)
    return CUDA_ERROR_INVALID_VALUE;
  return multicast_bind(object, device, offset, range.object, address - range.base, size);
}

static CUresult bind_address(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, CUdeviceptr address,
                             size_t size, unsigned long long flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  CUresult result = multicast_bind_at(check(handle), device, offset, address, size);
  vmm_unlock();
  return result;
}

#define NO_DEVICE -1
ENTRY(cuMulticastBindMem,
      (CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset,
       size_t size, unsigned long long flags),
      bind_memory, (object, NO_DEVICE, offset, memory, memory_offset, size, flags))
ENTRY(cuMulticastBindMem_v2,
      (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, CUmemGenericAllocationHandle memory,
       size_t memory_offset, size_t size, unsigned long long flags),
      bind_memory, (object, device, offset, memory, memory_offset, size, flags))
ENTRY(cuMulticastBindAddr,
      (CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size, unsigned long long flags),
      bind_address, (object, NO_DEVICE, offset, address, size, flags))
ENTRY(cuMulticastBindAddr_v2,
      (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, CUdeviceptr address, size_t size,
       unsigned long long flags),
      bind_address, (object, device, offset, address, size, flags))

static void drop(struct binding **link) {
  struct binding *binding = *link;
  *link = binding->next;
  binding->memory->mappings--;
  memory_settle(binding->memory);
  free(binding);
}

int multicast_unbind(struct memory *object, CUdevice device, uint64_t offset, uint64_t size) {
  uint64_t covered = 0, end = offset + size;
  struct binding **link = object ? &object->bindings : NULL;
  for (struct binding *one = link ? *link : NULL; one; one = one->next) {
    if (one->gpu != device_gpu[device] || one->offset >= end || one->offset + one->size <= offset) continue;
    if (one->offset < offset || one->offset + one->size > end) return 0;
    covered += one->size;
  }
  if (!covered) return 0;
  while (*link) {
    int inside = (*link)->gpu == device_gpu[device] && (*link)->offset >= offset && (*link)->offset < end;
    if (inside) drop(link);
    else link = &(*link)->next;
  }
  return 1;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size) {
  ENTER(cuMulticastUnbind);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  vmm_lock();
  int found = multicast_unbind(check(handle), device, offset, size);
  vmm_unlock();
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void multicast_forget(struct memory *object) {
  while (object->bindings) drop(&object->bindings);
}
