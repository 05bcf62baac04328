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

int main(void) {
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
