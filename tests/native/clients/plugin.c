/* SPDX-License-Identifier: Apache-2.0 */
/* A plug-in that finds the driver by itself (or is linked with it: -DLINKED), when asked or, with -DCONSTRUCTOR, while
 * it is being loaded. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "ways.h"

const char *plugin_use(void);

#ifdef LINKED
static void *find(const char *name) {
  static const struct {
    const char *name;
    void *function;
  } bound[] = {{"cuInit", (void *)cuInit},
               {"cuDevicePrimaryCtxRetain", (void *)cuDevicePrimaryCtxRetain},
               {"cuCtxSetCurrent", (void *)cuCtxSetCurrent},
               {"cuMemGetInfo_v2", (void *)cuMemGetInfo_v2},
               {"cuMemAlloc_v2", (void *)cuMemAlloc_v2},
               {"cuMemFree_v2", (void *)cuMemFree_v2}};
  for (size_t i = 0; i < sizeof bound / sizeof *bound; i++)
    if (!strcmp(name, bound[i].name)) return bound[i].function;
  return NULL;
}
#else
static void *find(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }
#endif

#ifdef CONSTRUCTOR
static const char *result;
__attribute__((constructor)) static void start(void) { result = use_driver(find); }
const char *plugin_use(void) { return result; }
#else
const char *plugin_use(void) { return use_driver(find); }
#endif
