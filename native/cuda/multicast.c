/* Multicast objects cost nothing, but memory that is bound to one lives until it is unbound or the object ends, also
 * when its handle and its mappings are gone. Which is when the charge ends.
 * Knows no counts, holding.c has them. Tests: tests/integration/test_native_import.py. */
#include "cuda_bodies.h"
#include "driver.h"
#include "holding.h"

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

/* A binding, in all its versions. */
struct bind {
  CUresult (*call)(const struct bind *bind);
  CUmemGenericAllocationHandle object, memory;
  size_t offset; /* in the memory */
  CUdeviceptr address;
  struct tie where; /* in the object */
  unsigned long long flags;
};

static CUresult bind_memory(const struct bind *bind, CUmemGenericAllocationHandle memory) {
  uint32_t tie = holding_tie_new();
  if (tie == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  uint32_t of = holding_take(bind->object), to = holding_take(memory);
  CUresult result = bind->call(bind);
  holding_tie(tie, of, result == CUDA_SUCCESS ? to : 0, &bind->where);
  holding_give(to);
  holding_give(of);
  return result;
}

/* Whose memory an address is, only the driver can tell. What it does not know as mapped memory is not ours to hold. */
static CUresult bind_address(const struct bind *bind) {
  CUmemGenericAllocationHandle memory = 0;
  if (real_cuda.cuMemRetainAllocationHandle == NULL ||
      vc_cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)bind->address) != CUDA_SUCCESS)
    return bind->call(bind);
  CUresult result = bind_memory(bind, memory);
  vc_cuMemRelease(memory);
  return result;
}

static CUresult call_memory(const struct bind *b) {
  return real_cuda.cuMulticastBindMem(b->object, b->where.offset, b->memory, b->offset, b->where.size, b->flags);
}

static CUresult call_memory_v2(const struct bind *b) {
  return real_cuda.cuMulticastBindMem_v2(b->object, b->where.dev, b->where.offset, b->memory, b->offset, b->where.size,
                                         b->flags);
}

static CUresult call_address(const struct bind *b) {
  return real_cuda.cuMulticastBindAddr(b->object, b->where.offset, b->address, b->where.size, b->flags);
}

static CUresult call_address_v2(const struct bind *b) {
  return real_cuda.cuMulticastBindAddr_v2(b->object, b->where.dev, b->where.offset, b->address, b->where.size,
                                          b->flags);
}

CUresult vc_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t object_offset,
                               CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                               unsigned long long flags) {
  const struct bind bind = {.call = call_memory,
                            .object = object,
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
                            .object = object,
                            .memory = memory,
                            .offset = offset,
                            .where = {dev, object_offset, size},
                            .flags = flags};
  return bind_memory(&bind, memory);
}

CUresult vc_cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t object_offset, CUdeviceptr address,
                                size_t size, unsigned long long flags) {
  const struct bind bind = {.call = call_address,
                            .object = object,
                            .address = address,
                            .where = {-1, object_offset, size},
                            .flags = flags};
  return bind_address(&bind);
}

CUresult vc_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t object_offset,
                                   CUdeviceptr address, size_t size, unsigned long long flags) {
  const struct bind bind = {.call = call_address_v2,
                            .object = object,
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
