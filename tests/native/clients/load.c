/* SPDX-License-Identifier: Apache-2.0 */
/* A program that does nothing but launch, until it is killed or its time is over:
 *
 *   load PATH KERNEL BATCH PAUSE_US SECONDS [STREAMS]
 *
 * PATH: plain, stream, ex, cooperative, graph, ptsz, thread. KERNEL: a name that tells the simulated driver how long it
 * takes (work_200us); several, with commas between, are launched in turn (a graph has the first). BATCH launches are followed by a wait for the GPU; 0: it never waits. Then the program does something
 * else for PAUSE_US. At the end it prints how many launches there were and the longest that one took, in microseconds.
 * Functions come from dlsym, so it runs under the library or without it. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 64, KERNELS = 8 };

static void *library;

static void *function(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "no %s\n", name);
    exit(2);
  }
  return found;
}

#define CALL(name, ...)                                                     \
  do {                                                                      \
    CUresult result_ = ((__typeof__(&name))function(#name))(__VA_ARGS__);   \
    if (result_ != CUDA_SUCCESS) {                                          \
      fprintf(stderr, "%s: %d\n", #name, result_);                          \
      exit(3);                                                              \
    }                                                                       \
  } while (0)

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

typedef CUresult launch_kernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                               void **, void **);
typedef CUresult launch_cooperative(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    CUstream, void **);
typedef CUresult launch_extended(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult launch_graph(CUgraphExec, CUstream);

static CUfunction kernel, kernels[KERNELS];
static uint64_t kernel_count;
static CUgraphExec executable;
static void *call;
static char path;

static CUresult launch(CUstream stream) {
  CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
  config.hStream = stream;
  switch (path) {
    case 'e':
      return ((launch_extended *)call)(&config, kernel, NULL, NULL);
    case 'c':
      return ((launch_cooperative *)call)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL);
    case 'g':
      return ((launch_graph *)call)(executable, stream);
    default:
      return ((launch_kernel *)call)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
  }
}

static void choose(const char *name) {
  static const struct {
    const char *name, *symbol;
  } paths[] = {{"plain", "cuLaunchKernel"},     {"stream", "cuLaunchKernel"},
               {"ex", "cuLaunchKernelEx"},      {"cooperative", "cuLaunchCooperativeKernel"},
               {"graph", "cuGraphLaunch"},      {"ptsz", "cuLaunchKernel_ptsz"},
               {"thread", "cuLaunchKernel"}};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
    if (strcmp(name, paths[i].name) == 0) call = function(paths[i].symbol);
  if (call == NULL) exit(2);
  path = name[0];
}

static void load_kernels(char *names) {
  CUmodule module;
  CALL(cuModuleLoadData, &module, "image");
  for (char *name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) {
    if (kernel_count == KERNELS) exit(2);
    CALL(cuModuleGetFunction, &kernels[kernel_count++], module, name);
  }
  if (kernel_count == 0) exit(2);
  kernel = kernels[0];
}

static void make_graph(void) {
  CUgraph graph;
  CUgraphNode node;
  CUDA_KERNEL_NODE_PARAMS_v1 params = {.func = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
  CALL(cuGraphCreate, &graph, 0);
  CALL(cuGraphAddKernelNode, &node, graph, NULL, 0, &params);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
}

int main(int argc, char **argv) {
  CUcontext context;
  CUstream streams[STREAMS] = {NULL};
  uint64_t launches = 0, longest = 0;
  if (argc < 6) return 2;
  uint64_t batch = strtoull(argv[3], NULL, 10), pause_us = strtoull(argv[4], NULL, 10);
  double seconds = strtod(argv[5], NULL);
  int count = argc > 6 ? atoi(argv[6]) : 1;
  if (count < 1 || count > STREAMS || (library = dlopen("libcuda.so.1", RTLD_NOW)) == NULL) return 2;
  CALL(cuInit, 0);
  CALL(cuCtxCreate_v2, &context, 0, 0);
  load_kernels(argv[2]);
  choose(argv[1]);
  if (path == 'g') make_graph();
  if (strcmp(argv[1], "stream") == 0)
    for (int i = 0; i < count; i++) CALL(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
  if (path == 't') streams[0] = CU_STREAM_PER_THREAD;
  printf("begin\n");
  fflush(stdout);
  uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
  for (uint64_t now = now_ns(); now < end; now = now_ns()) {
    kernel = kernels[launches % kernel_count];
    CUresult result = launch(streams[launches % (uint64_t)count]);
    uint64_t took = now_ns() - now;
    if (result != CUDA_SUCCESS) return 3;
    if (took > longest) longest = took;
    launches++;
    if (batch != 0 && launches % batch == 0) {
      CALL(cuCtxSynchronize);
      struct timespec rest = {(time_t)(pause_us / 1000000), (long)(pause_us % 1000000) * 1000};
      if (pause_us != 0) nanosleep(&rest, NULL);
    }
  }
  printf("%llu %llu\n", (unsigned long long)launches, (unsigned long long)(longest / 1000));
  return 0;
}
