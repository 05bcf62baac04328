/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that launch into many streams of their own, and create and destroy some meanwhile, until their time is over:
 *
 *   streams THREADS STREAMS SECONDS KERNEL [EVERY]
 *
 * Each thread has STREAMS streams and launches KERNEL into one after the other; after EVERY launches (0: never) it
 * destroys the next stream and makes another, whose handle the driver may take from any thread's. Prints the number of
 * launches, waits for a line and ends. Functions come from dlsym, so it runs under the library or without it. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { THREADS = 64, STREAMS = 4096 };

static struct {
  __typeof__(&cuInit) init;
  __typeof__(&cuCtxCreate_v2) create_context;
  __typeof__(&cuCtxSetCurrent) set_current;
  __typeof__(&cuModuleLoadData) load;
  __typeof__(&cuModuleGetFunction) get;
  __typeof__(&cuStreamCreate) create;
  __typeof__(&cuStreamDestroy_v2) destroy;
  __typeof__(&cuLaunchKernel) launch;
} api;

static CUcontext context;
static CUfunction kernel;
static int streams_each;
static uint64_t every, end_ns;
static _Atomic uint64_t launches;
static _Atomic int failed;

static void *function(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) exit(2);
  return found;
}

static void must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, result);
  atomic_store(&failed, 1);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *run(void *unused) {
  CUstream streams[STREAMS];
  uint64_t done = 0;
  must(api.set_current(context), "cuCtxSetCurrent");
  for (int i = 0; i < streams_each; i++) must(api.create(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  while (now_ns() < end_ns && !atomic_load(&failed)) {
    CUstream *stream = &streams[done++ % (uint64_t)streams_each];
    must(api.launch(kernel, 1, 1, 1, 1, 1, 1, 0, *stream, NULL, NULL), "cuLaunchKernel");
    if (every == 0 || done % every != 0) continue;
    must(api.destroy(*stream), "cuStreamDestroy");
    must(api.create(stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  atomic_fetch_add(&launches, done);
  return unused;
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS];
  CUmodule module;
  if (argc < 5) return 2;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  int count = atoi(argv[1]);
  streams_each = atoi(argv[2]);
  every = argc > 5 ? strtoull(argv[5], NULL, 10) : 0;
  if (library == NULL || count < 1 || count > THREADS || streams_each < 1 || streams_each > STREAMS) return 2;
  *(void **)&api.init = function(library, "cuInit");
  *(void **)&api.create_context = function(library, "cuCtxCreate_v2");
  *(void **)&api.set_current = function(library, "cuCtxSetCurrent");
  *(void **)&api.load = function(library, "cuModuleLoadData");
  *(void **)&api.get = function(library, "cuModuleGetFunction");
  *(void **)&api.create = function(library, "cuStreamCreate");
  *(void **)&api.destroy = function(library, "cuStreamDestroy_v2");
  *(void **)&api.launch = function(library, "cuLaunchKernel");
  must(api.init(0), "cuInit");
  must(api.create_context(&context, 0, 0), "cuCtxCreate");
  must(api.load(&module, "image"), "cuModuleLoadData");
  must(api.get(&kernel, module, argv[4]), "cuModuleGetFunction");
  end_ns = now_ns() + (uint64_t)(strtod(argv[3], NULL) * 1e9);
  for (int i = 0; i < count; i++)
    if (pthread_create(&threads[i], NULL, run, NULL) != 0) return 2;
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  printf("%llu\n", (unsigned long long)atomic_load(&launches));
  fflush(stdout);
  getchar();
  return atomic_load(&failed) ? 3 : 0;
}
