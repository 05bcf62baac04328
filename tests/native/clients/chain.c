/* SPDX-License-Identifier: Apache-2.0 */
/* A tool that stands between program and driver: it counts allocations and passes them to the next library. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes) {
  static int depth;
  __typeof__(&cuMemAlloc_v2) next = (__typeof__(next))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
  if (next == NULL || next == &cuMemAlloc_v2 || depth > 0) {
    fprintf(stderr, "chain: went round in a circle\n");
    return CUDA_ERROR_UNKNOWN;
  }
  depth++;
  CUresult result = next(dptr, bytes);
  depth--;
  fprintf(stderr, "chain: %zu bytes -> %d\n", bytes, (int)result);
  return result;
}
