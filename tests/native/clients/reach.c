/* SPDX-License-Identifier: Apache-2.0 */
/* Implements reach.h. The linked flavour (-DLINKED) has the functions in a table the compiler fills. */
#define _GNU_SOURCE
#include "reach.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *handle;
static const char *mode;
static void *(*lookup)(void *, const char *);
static CUresult (*proc1)(const char *, void **, int, cuuint64_t);
static CUresult (*proc2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

static void *must(void *found, const char *what) {
  if (found == NULL) {
    fprintf(stderr, "%s: not found: %s\n", what, dlerror());
    exit(9);
  }
  return found;
}

void reach_start(const char *way) {
  mode = way;
  if (!strcmp(mode, "linked")) return;
  int scope = strcmp(mode, "default") ? RTLD_LOCAL : RTLD_GLOBAL;
  handle = must(dlopen("libcuda.so.1", RTLD_NOW | scope), "libcuda.so.1");
  void *libc = must(dlopen("libc.so.6", RTLD_NOW), "libc.so.6");
  lookup = dlsym;
  if (!strcmp(mode, "default")) handle = RTLD_DEFAULT;
  if (!strcmp(mode, "libc")) *(void **)&lookup = must(dlsym(libc, "dlsym"), "dlsym");
  if (!strcmp(mode, "dlvsym")) *(void **)&lookup = must(dlvsym(libc, "dlsym", OLDEST), "dlsym");
  if (!strcmp(mode, "proc1")) *(void **)&proc1 = must(dlsym(handle, "cuGetProcAddress"), "cuGetProcAddress");
  if (!strcmp(mode, "proc2")) *(void **)&proc2 = must(dlsym(handle, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
}

/* cuMemAlloc_v2 -> cuMemAlloc at the version in which that ABI came. */
static void *by_version(const char *symbol) {
  static const struct {
    const char *symbol;
    int version;
  } special[] = {{"cuCtxCreate_v3", 11040}, {"cuCtxCreate_v4", 12050}, {"cuCtxDestroy_v2", 4000},
                 {"cuDevicePrimaryCtxRelease_v2", 11000}, {"cuDevicePrimaryCtxReset_v2", 11000},
                 {"cuMemAllocManaged", 6000}, {"cuDevicePrimaryCtxRetain", 7000}, {"cuCtxSetCurrent", 4000},
                 {"cuCtxGetCurrent", 4000}, {"cuMemCreate", 10020}, {"cuMemRelease", 10020}};
  char base[64];
  void *found = NULL;
  int suffixed = strstr(symbol, "_v") != NULL, version = suffixed ? 3020 : 2000;
  snprintf(base, sizeof base, "%s", symbol);
  if (suffixed) *strstr(base, "_v") = 0;
  for (size_t i = 0; i < sizeof special / sizeof *special; i++)
    if (!strcmp(symbol, special[i].symbol)) version = special[i].version;
  CUresult result = proc1 ? proc1(base, &found, version, 0) : proc2(base, &found, version, 0, NULL);
  if (result != CUDA_SUCCESS) fprintf(stderr, "%s at %d: %d\n", base, version, (int)result);
  return must(found, symbol);
}

#ifdef LINKED
#define ENTRY(symbol) {#symbol, (void *)symbol}
static const struct {
  const char *name;
  void *function;
} linked[] = {ENTRY(cuInit), ENTRY(cuMemAlloc), ENTRY(cuMemAlloc_v2), ENTRY(cuMemAllocManaged), ENTRY(cuMemAllocPitch),
              ENTRY(cuMemAllocPitch_v2), ENTRY(cuMemFree), ENTRY(cuMemFree_v2), ENTRY(cuMemGetInfo),
              ENTRY(cuMemCreate), ENTRY(cuMemRelease),
              ENTRY(cuMemGetInfo_v2), ENTRY(cuDeviceTotalMem), ENTRY(cuDeviceTotalMem_v2), ENTRY(cuCtxCreate),
              ENTRY(cuCtxCreate_v2), ENTRY(cuCtxCreate_v3), ENTRY(cuCtxCreate_v4), ENTRY(cuCtxDestroy_v2),
              ENTRY(cuCtxDetach), ENTRY(cuCtxSetCurrent), ENTRY(cuCtxGetCurrent), ENTRY(cuDevicePrimaryCtxRetain),
              ENTRY(cuDevicePrimaryCtxRelease_v2), ENTRY(cuDevicePrimaryCtxReset_v2)};
#endif

void *reach(const char *symbol) {
#ifdef LINKED
  for (size_t i = 0; i < sizeof linked / sizeof *linked; i++)
    if (!strcmp(linked[i].name, symbol)) return linked[i].function;
#endif
  if (proc1 != NULL || proc2 != NULL) return by_version(symbol);
  return must(lookup(handle, symbol), symbol);
}
