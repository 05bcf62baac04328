/* SPDX-License-Identifier: Apache-2.0 */
/* The semantics of cuGetProcAddress, both versions, as text to compare with and without the library. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *const marker = (void *)0x77;

static const char *describe(const void *found) {
  if (found == marker) return "untouched";
  return found != NULL ? "found" : "NULL";
}

/* Every name on stdin, in both ABIs, at many versions and flags: which function of which file. */
static int sweep(__typeof__(&cuGetProcAddress) old, __typeof__(&cuGetProcAddress_v2) new) {
  static const int versions[] = {0, 2000, 3020, 4010, 7000, 11000, 11030, 12000, 12040, 99000};
  char name[128];
  while (scanf("%127s", name) == 1)
    for (size_t i = 0; i < 3 * sizeof versions / sizeof *versions; i++) {
      Dl_info info[2] = {{0}, {0}};
      void *found[2] = {NULL, NULL};
      int version = versions[i / 3], flags = (int)(i % 3);
      int code = (int)old(name, &found[0], version, (cuuint64_t)flags);
      int code2 = (int)new(name, &found[1], version, (cuuint64_t)flags, NULL);
      for (int abi = 0; abi < 2; abi++)
        if (found[abi] != NULL && !dladdr(found[abi], &info[abi])) return 1;
      printf("%s %d %d %d %d %s %s %s %s\n", name, version, flags, code, code2, found[0] ? info[0].dli_sname : "-",
             found[0] ? strrchr(info[0].dli_fname, '/') + 1 : "-", found[1] ? info[1].dli_sname : "-",
             found[1] ? strrchr(info[1].dli_fname, '/') + 1 : "-");
    }
  return 0;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    int version;
    cuuint64_t flags;
  } query[] = {{"cuMemAlloc", 3020, 0},
               {"cuMemAlloc", 2000, 0},
               {"cuMemAlloc", 99000, 2},
               {"cuMemAlloc", 1000, 0},
               {"cuMemAlloc_v2", 12000, 0},
               {"", 0, 0},
               {"cuNoSuch", 12000, 0},
               {"cuMemAlloc", 12000, 64},
               {"cuGetProcAddress", 11030, 0},
               {"cuGetProcAddress", 12000, 0},
               {"cuCtxCreate", 3020, 0},
               {"cuCtxCreate", 11040, 0},
               {"cuLaunchKernel", 7000, 2},
               {"cuInit", 2000, 1}};
  void *handle = dlopen("libcuda.so.1", RTLD_NOW);
  __typeof__(&cuGetProcAddress) old = (__typeof__(old))dlsym(handle, "cuGetProcAddress");
  __typeof__(&cuGetProcAddress_v2) new = (__typeof__(new))dlsym(handle, "cuGetProcAddress_v2");
  if (argc > 1 && !strcmp(argv[1], "sweep")) return sweep(old, new);
  for (size_t i = 0; i < sizeof query / sizeof *query; i++) {
    void *found = marker, *found2 = marker, *found3 = marker;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)7;
    int a = (int)old(query[i].name, &found, query[i].version, query[i].flags);
    int b = (int)new(query[i].name, &found2, query[i].version, query[i].flags, &status);
    int c = (int)new(query[i].name, &found3, query[i].version, query[i].flags, NULL);
    printf("\"%s\" %d %llu: %d %s, %d %s status %d, %d %s\n", query[i].name, query[i].version,
           (unsigned long long)query[i].flags, a, describe(found), b, describe(found2), (int)status, c,
           found3 == found2 ? "same" : "other");
  }
  void *alloc = NULL, *self = NULL;
  new("cuMemAlloc", &alloc, 12000, 0, NULL);
  new("cuGetProcAddress", &self, 12000, 0, NULL);
  printf("one address per function: %d %d\n", alloc == dlsym(handle, "cuMemAlloc_v2"), self == (void *)new);
  return 0;
}
