/* SPDX-License-Identifier: Apache-2.0 */
/* `runtime LIBCUDART`, or linked with a static one (-DSTATIC): calls the CUDA runtime as a program would and prints what
 * each call answers. Without NVIDIA's driver the runtime gives up after its start (it asks for private tables); with it,
 * the allocations say whether a limit of 1 GiB holds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef STATIC
#define FUNCTION(name) __extension__ extern int name();
#else
#define FUNCTION(name) static int (*name)();
#endif
#define FUNCTIONS(X) \
  X(cudaRuntimeGetVersion) X(cudaDriverGetVersion) X(cudaGetDeviceCount) X(cudaMalloc) X(cudaFree) X(cudaMemGetInfo) \
  X(cudaMallocManaged) X(cudaMallocPitch) X(cudaMallocAsync) X(cudaFreeAsync) X(cudaGetDriverEntryPoint) \
  X(cudaDeviceSynchronize)
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
FUNCTIONS(FUNCTION)

static void open_runtime(const char *file) {
#ifndef STATIC
  void *handle = dlopen(file, RTLD_NOW);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror()), exit(9);
#define FIND(name) name = (int (*)())dlsym(handle, #name);
  FUNCTIONS(FIND)
#else
  (void)file;
#endif
}

static void *block, *managed, *pitched, *async, *large, *entry;
static size_t left, total, pitch;
static int number;

static void show(const char *what, int code, unsigned long long value) { printf("%s %d %llu\n", what, code, value); }

int main(int argc, char **argv) {
  open_runtime(argc > 1 ? argv[1] : "");
  int code = cudaRuntimeGetVersion(&number);
  show("cudaRuntimeGetVersion", code, (unsigned)number);
  code = cudaDriverGetVersion(&number);
  show("cudaDriverGetVersion", code, (unsigned)number);
  code = cudaGetDeviceCount(&number);
  show("cudaGetDeviceCount", code, (unsigned)number);
  code = cudaMalloc(&block, (size_t)10 << 20);
  show("cudaMalloc", code, block != NULL);
  code = cudaMallocManaged(&managed, (size_t)10 << 20, 1u);
  show("cudaMallocManaged", code, managed != NULL);
  code = cudaMallocPitch(&pitched, &pitch, (size_t)1000, (size_t)1000);
  show("cudaMallocPitch", code, pitched != NULL);
  code = cudaMallocAsync(&async, (size_t)10 << 20, (void *)0);
  show("cudaMallocAsync", code, async != NULL);
  code = cudaMemGetInfo(&left, &total);
  show("cudaMemGetInfo", code, total);
  code = cudaMalloc(&large, (size_t)2 << 30);
  show("cudaMalloc of 2 GiB", code, large != NULL);
#ifndef STATIC
  if (cudaGetDriverEntryPoint != NULL) {
    code = cudaGetDriverEntryPoint("cuMemAlloc", &entry, 0ull, (void *)0);
    show("cudaGetDriverEntryPoint", code, entry != NULL);
  }
#endif
  code = cudaFree(block);
  show("cudaFree", code, 0);
  return 0;
}
