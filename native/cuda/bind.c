/* See bind.h.
 * Tests: tests/integration/test_native_import.py. */
#include "bind.h"

#include "cuda_bodies.h"
#include "driver.h"

CUresult bind_memory(const struct bind *bind, CUmemGenericAllocationHandle memory) {
  uint32_t tie = holding_tie_new();
  if (tie == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  uint32_t of = holding_take(bind->to), to = holding_take(memory);
  CUresult result = bind->call(bind);
  holding_tie(tie, of, result == CUDA_SUCCESS ? to : 0, &bind->where);
  holding_give(to);
  holding_give(of);
  return result;
}

/* Whose memory an address is, only the driver can tell. What it does not know as mapped memory, a pool's for example, is
 * not ours to hold. */
CUresult bind_address(const struct bind *bind) {
  CUmemGenericAllocationHandle memory = 0;
  if (real_cuda.cuMemRetainAllocationHandle == NULL ||
      vc_cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)bind->address) != CUDA_SUCCESS)
    return bind->call(bind);
  CUresult result = bind_memory(bind, memory);
  vc_cuMemRelease(memory);
  return result;
}
