/* SPDX-License-Identifier: Apache-2.0 */
/* What every way of reaching the driver is tried with; FIND is the way. */
#ifndef WAYS_H
#define WAYS_H

#include <stddef.h>

typedef void *find_function(const char *name);

static inline const char *use_driver(find_function *find) {
  static __thread char what[64];
  CUresult (*init)(unsigned) = (CUresult(*)(unsigned))find("cuInit");
  CUresult (*retain)(CUcontext *, CUdevice) = (CUresult(*)(CUcontext *, CUdevice))find("cuDevicePrimaryCtxRetain");
  CUresult (*current)(CUcontext) = (CUresult(*)(CUcontext))find("cuCtxSetCurrent");
  CUresult (*info)(size_t *, size_t *) = (CUresult(*)(size_t *, size_t *))find("cuMemGetInfo_v2");
  CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2");
  CUresult (*release)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))find("cuMemFree_v2");
  CUcontext context;
  CUdeviceptr block = 0, large = 0;
  size_t left, total = 0;
  int result = -1;
  if (!init || !retain || !current || !info || !alloc || !release) return "nothing found";
  if ((result = (int)init(0)) != 0 || (result = (int)retain(&context, 0)) != 0 || (result = (int)current(context)) != 0 ||
      (result = (int)info(&left, &total)) != 0 || (result = (int)alloc(&block, 10u << 20)) != 0) {
    snprintf(what, sizeof what, "error %d", result);
    return what;
  }
  result = (int)alloc(&large, (size_t)2 << 30);
  if (result == 0) release(large);
  release(block);
  if (total == (size_t)1 << 30 && result == CUDA_ERROR_OUT_OF_MEMORY) return "limited";
  return result == 0 ? "unlimited" : "something else";
}

#endif
