/* Logical endpoints (CUDA 13.3): like multicast objects they cost nothing, and memory that is bound to one lives until it
 * is unbound or the endpoint ends, also when its handle and its mappings are gone. What another process binds to an
 * endpoint that was exported is that process's to pay.
 * Knows no counts, holding.c has them. Tests: tests/integration/test_native_import.py. */
#include "bind.h"
#include "cuda_bodies.h"
#include "driver.h"

/* An endpoint has a number, not a handle; no handle of the driver's is that high. */
static uint64_t key_of(CUlogicalEndpointId id) { return UINT64_C(1) << 63 | id; }

/* The driver made it. */
static CUresult open(CUlogicalEndpointId id) {
  if (holding_open(key_of(id), NULL, -1)) return CUDA_SUCCESS;
  if (real_cuda.cuLogicalEndpointDestroy != NULL) real_cuda.cuLogicalEndpointDestroy(id);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vc_cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *prop) {
  CUresult result = real_cuda.cuLogicalEndpointCreate(id, prop);
  return result == CUDA_SUCCESS ? open(id) : result;
}

CUresult vc_cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle, CUlogicalEndpointIpcHandleType type) {
  CUresult result = real_cuda.cuLogicalEndpointImport(id, handle, type);
  return result == CUDA_SUCCESS ? open(id) : result;
}

CUresult vc_cuLogicalEndpointDestroy(CUlogicalEndpointId id) {
  struct parting parting = {.column = -1};
  uint32_t holding = holding_take(key_of(id));
  parting_begin(&parting, holding);
  CUresult result = real_cuda.cuLogicalEndpointDestroy(id);
  holding_part(holding, result == CUDA_SUCCESS, &parting);
  parting_end(&parting);
  return result;
}

static CUresult call_memory(const struct bind *b) {
  return real_cuda.cuLogicalEndpointBindMem((CUlogicalEndpointId)b->to, b->where.dev, b->where.offset, b->memory,
                                            b->offset, b->where.size, b->flags);
}

static CUresult call_address(const struct bind *b) {
  return real_cuda.cuLogicalEndpointBindAddr((CUlogicalEndpointId)b->to, b->where.dev, b->where.offset,
                                             (void *)(uintptr_t)b->address, b->where.size, b->flags);
}

CUresult vc_cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice dev, cuuint64_t at,
                                     CUmemGenericAllocationHandle memory, cuuint64_t offset, cuuint64_t size,
                                     unsigned long long flags) {
  const struct bind bind = {.call = call_memory,
                            .to = key_of(id),
                            .memory = memory,
                            .offset = offset,
                            .where = {dev, at, size},
                            .flags = flags};
  return bind_memory(&bind, memory);
}

CUresult vc_cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice dev, cuuint64_t at, void *address,
                                      cuuint64_t size, unsigned long long flags) {
  const struct bind bind = {.call = call_address,
                            .to = key_of(id),
                            .address = (CUdeviceptr)(uintptr_t)address,
                            .where = {dev, at, size},
                            .flags = flags};
  return bind_address(&bind);
}

CUresult vc_cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice dev, cuuint64_t offset, cuuint64_t size) {
  const struct tie where = {dev, offset, size};
  uint32_t of = holding_take(key_of(id));
  CUresult result = real_cuda.cuLogicalEndpointUnbind(id, dev, offset, size);
  if (result == CUDA_SUCCESS) holding_cut(of, &where);
  holding_give(of);
  return result;
}
