/* Multicast objects cost nothing, but memory that is bound to one lives until it is unbound or the object ends, also
 * when its handle and its mappings are gone. Which is when the charge ends.
 * Knows no counts, holding.c has them. Tests: tests/integration/test_native_import.py. */
#include "bind.h"
#include "cuda_bodies.h"
#include "driver.h"

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

static CUresult call_memory(const struct bind *b) {
  return real_cuda.cuMulticastBindMem(b->to, b->where.offset, b->memory, b->offset, b->where.size, b->flags);
}

static CUresult call_memory_v2(const struct bind *b) {
  return real_cuda.cuMulticastBindMem_v2(b->to, b->where.dev, b->where.offset, b->memory, b->offset, b->where.size,
                                         b->flags);
}

static CUresult call_address(const struct bind *b) {
  return real_cuda.cuMulticastBindAddr(b->to, b->where.offset, b->address, b->where.size, b->flags);
}

static CUresult call_address_v2(const struct bind *b) {
  return real_cuda.cuMulticastBindAddr_v2(b->to, b->where.dev, b->where.offset, b->address, b->where.size,
                                          b->flags);
}

CUresult vc_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t object_offset,
                               CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                               unsigned long long flags) {
  const struct bind bind = {.call = call_memory,
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
  const struct bind bind = {.call = call_memory_v2,
                            .to = object,
                            .memory = memory,
                            .offset = offset,
                            .where = {dev, object_offset, size},
                            .flags = flags};
  return bind_memory(&bind, memory);
}

CUresult vc_cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t object_offset, CUdeviceptr address,
                                size_t size, unsigned long long flags) {
  const struct bind bind = {.call = call_address,
                            .to = object,
                            .address = address,
                            .where = {-1, object_offset, size},
                            .flags = flags};
  return bind_address(&bind);
}

CUresult vc_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t object_offset,
                                   CUdeviceptr address, size_t size, unsigned long long flags) {
  const struct bind bind = {.call = call_address_v2,
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
  holding_give(of);
  return result;
}
