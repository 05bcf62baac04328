/* SPDX-License-Identifier: Apache-2.0 */
/* Binding memory to something that keeps it: multicast objects and logical endpoints (CUDA 13.3). Both cost nothing,
 * but memory that is bound to one lives until it is unbound or the object ends, also when its handle and its mappings
 * are gone. The charge ends then. What another process binds to an endpoint that was exported is that
 * process's to pay.
 * Counts nothing: holding.c does. Tests: tests/integration/test_native_import.py. */
#include "cuda_bodies.h"
#include "driver.h"
#include "holding.h"
#include "nvidia.h"

/* A binding, in all its versions. */
struct bind {
  CUresult (*call)(const struct bind *bind);
  uint64_t to; /* in the table of holding.h */
  CUmemGenericAllocationHandle memory;
  uint64_t offset; /* in the memory */
  CUdeviceptr address;
  struct tie where; /* in what it is bound to */
  unsigned long long flags;
};

/* The driver's answer. The memory is held until it is unbound or what it is bound to ends. */
static CUresult bind_memory(const struct bind *bind, CUmemGenericAllocationHandle memory) {
  uint32_t tie = holding_tie_new();
  if (tie == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  uint32_t of = holding_take(bind->to), to = holding_take(memory);
  CUresult result = bind->call(bind);
  holding_tie(tie, of, result == CUDA_SUCCESS ? to : 0, &bind->where);
  holding_release(to);
  holding_release(of);
  return result;
}

/* The same of what is mapped at the address. Whose memory that is, only the driver can tell. Other memory than mapped
 * one, a pool's for example, is not held here. */
static CUresult bind_address(const struct bind *bind) {
  CUmemGenericAllocationHandle memory = 0;
  if (real_cuda.cuMemRetainAllocationHandle == NULL ||
      vc_cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)bind->address) != CUDA_SUCCESS)
    return bind->call(bind);
  CUresult result = bind_memory(bind, memory);
  vc_cuMemRelease(memory);
  return result;
}

/* --- multicast objects ------------------------------------------------------------------------------------------- */

CUresult vc_cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
  CUmemGenericAllocationHandle made = 0;
  if (handle == NULL) return real_cuda.cuMulticastCreate(handle, prop);
  CUresult result = real_cuda.cuMulticastCreate(&made, prop);
  if (result != CUDA_SUCCESS) return result;
  if (!holding_open(made, NULL, -1)) {
    real_cuda.cuMemRelease(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = made;
  return CUDA_SUCCESS;
}

static CUresult multicast_memory(const struct bind *b) {
  return real_cuda.cuMulticastBindMem(b->to, b->where.offset, b->memory, b->offset, b->where.size, b->flags);
}

static CUresult multicast_memory_v2(const struct bind *b) {
  return real_cuda.cuMulticastBindMem_v2(b->to, b->where.dev, b->where.offset, b->memory, b->offset, b->where.size,
                                         b->flags);
}

static CUresult multicast_address(const struct bind *b) {
  return real_cuda.cuMulticastBindAddr(b->to, b->where.offset, b->address, b->where.size, b->flags);
}

static CUresult multicast_address_v2(const struct bind *b) {
  return real_cuda.cuMulticastBindAddr_v2(b->to, b->where.dev, b->where.offset, b->address, b->where.size,
                                          b->flags);
}

CUresult vc_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t object_offset,
                               CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                               unsigned long long flags) {
  const struct bind bind = {.call = multicast_memory,
                            .to = object,
                            .memory = memory,
                            .offset = offset,
                            .where = {-1, object_offset, size},
                            .flags = flags};
  return bind_memory(&bind, memory);
}

CUresult vc_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t object_offset,
                                  CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                                  unsigned long long flags) {
  const struct bind bind = {.call = multicast_memory_v2,
                            .to = object,
                            .memory = memory,
                            .offset = offset,
                            .where = {dev, object_offset, size},
                            .flags = flags};
  return bind_memory(&bind, memory);
}

CUresult vc_cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t object_offset, CUdeviceptr address,
                                size_t size, unsigned long long flags) {
  const struct bind bind = {.call = multicast_address,
                            .to = object,
                            .address = address,
                            .where = {-1, object_offset, size},
                            .flags = flags};
  return bind_address(&bind);
}

CUresult vc_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t object_offset,
                                   CUdeviceptr address, size_t size, unsigned long long flags) {
  const struct bind bind = {.call = multicast_address_v2,
                            .to = object,
                            .address = address,
                            .where = {dev, object_offset, size},
                            .flags = flags};
  return bind_address(&bind);
}

CUresult vc_cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice dev, size_t offset, size_t size) {
  const struct tie where = {dev, offset, size};
  uint32_t of = holding_take(object);
  CUresult result = real_cuda.cuMulticastUnbind(object, dev, offset, size);
  if (result == CUDA_SUCCESS) holding_cut(of, &where);
  holding_release(of);
  return result;
}

/* --- logical endpoints ------------------------------------------------------------------------------------------- */

/* An endpoint has a number, not a handle; no handle of the driver's is that high. */
static uint64_t endpoint_key(CUlogicalEndpointId id) { return UINT64_C(1) << 63 | id; }

/* The driver made it. */
static CUresult endpoint_open(CUlogicalEndpointId id) {
  if (holding_open(endpoint_key(id), NULL, -1)) return CUDA_SUCCESS;
  if (real_cuda.cuLogicalEndpointDestroy != NULL) real_cuda.cuLogicalEndpointDestroy(id);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vc_cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *prop) {
  CUresult result = real_cuda.cuLogicalEndpointCreate(id, prop);
  return result == CUDA_SUCCESS ? endpoint_open(id) : result;
}

CUresult vc_cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle, CUlogicalEndpointIpcHandleType type) {
  CUresult result = real_cuda.cuLogicalEndpointImport(id, handle, type);
  return result == CUDA_SUCCESS ? endpoint_open(id) : result;
}

CUresult vc_cuLogicalEndpointDestroy(CUlogicalEndpointId id) {
  struct release_probe probe = {.column = -1};
  uint32_t holding = holding_take(endpoint_key(id));
  holding_probe_release(holding, &probe);
  CUresult result = real_cuda.cuLogicalEndpointDestroy(id);
  holding_release_probed(holding, result == CUDA_SUCCESS, &probe);
  release_probe_end(&probe);
  return result;
}

static CUresult endpoint_memory(const struct bind *b) {
  return real_cuda.cuLogicalEndpointBindMem((CUlogicalEndpointId)b->to, b->where.dev, b->where.offset, b->memory,
                                            b->offset, b->where.size, b->flags);
}

static CUresult endpoint_address(const struct bind *b) {
  return real_cuda.cuLogicalEndpointBindAddr((CUlogicalEndpointId)b->to, b->where.dev, b->where.offset,
                                             (void *)(uintptr_t)b->address, b->where.size, b->flags);
}

CUresult vc_cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice dev, cuuint64_t at,
                                     CUmemGenericAllocationHandle memory, cuuint64_t offset, cuuint64_t size,
                                     unsigned long long flags) {
  const struct bind bind = {.call = endpoint_memory,
                            .to = endpoint_key(id),
                            .memory = memory,
                            .offset = offset,
                            .where = {dev, at, size},
                            .flags = flags};
  return bind_memory(&bind, memory);
}

CUresult vc_cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice dev, cuuint64_t at, void *address,
                                      cuuint64_t size, unsigned long long flags) {
  const struct bind bind = {.call = endpoint_address,
                            .to = endpoint_key(id),
                            .address = (CUdeviceptr)(uintptr_t)address,
                            .where = {dev, at, size},
                            .flags = flags};
  return bind_address(&bind);
}

CUresult vc_cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice dev, cuuint64_t offset, cuuint64_t size) {
  const struct tie where = {dev, offset, size};
  uint32_t of = holding_take(endpoint_key(id));
  CUresult result = real_cuda.cuLogicalEndpointUnbind(id, dev, offset, size);
  if (result == CUDA_SUCCESS) holding_cut(of, &where);
  holding_release(of);
  return result;
}
