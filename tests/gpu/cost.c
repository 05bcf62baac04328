/* SPDX-License-Identifier: Apache-2.0 */
/* What driver calls cost, timed in C: a call of a scripting language is dearer than what is to be measured. Runs plain and
 * under the library, side by side. Reads "COMMAND COUNT" lines, answers "p50 p99" in nanoseconds for each.
 * Compiled where gcc is and brought along; needs no header of NVIDIA's and no symbol newer than glibc 2.17.
 * Tests: tests/unit/gpu/test_rehearsal.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*function)();

enum { MOST = 200000, KIB = 1 << 10, MIB = 1 << 20 };

/* As driver.py's, for 1 microsecond at most. */
static const char ptx[] =
    ".version 6.3\n.target sm_52\n.address_size 64\n.visible .entry work_1us(.param .u64 unused)\n{\n  ret;\n}\n";

static void *driver;
static function mem_alloc, mem_free, launch, event_record, event_query, stream_query, mem_info, alloc_async, free_async, synchronize;
static void *kernel, *stream, *event;
static uint64_t times[MOST];

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static function find(const char *name) {
  function found = NULL;
  *(void **)&found = dlsym(driver, name);
  if (found == NULL) fprintf(stderr, "cost: the driver has no %s\n", name), exit(1);
  return found;
}

static void must(int code, const char *name) {
  if (code == 0) return;
  fprintf(stderr, "cost: %s returned %d\n", name, code);
  exit(1);
}

/* The oldest target that the driver's compiler still takes. */
static void load(void **module) {
  static const struct {
    const char *version, *target;
  } ways[] = {{"6.3", "sm_52"}, {"6.3", "sm_70"}, {"7.0", "sm_80"}, {"7.8", "sm_90"}};
  char image[sizeof ptx];
  int code = -1;
  memcpy(image, ptx, sizeof ptx);
  for (size_t i = 0; code != 0 && i < sizeof ways / sizeof *ways; i++) {
    memcpy(strstr(image, ".version ") + 9, ways[i].version, 3);
    memcpy(strstr(image, "sm_"), ways[i].target, 5);
    code = find("cuModuleLoadData")(module, image);
  }
  must(code, "cuModuleLoadData");
}

static void start(void) {
  void *context = NULL, *module = NULL;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) fprintf(stderr, "cost: %s\n", dlerror()), exit(1);
  must(find("cuInit")(0), "cuInit");
  must(find("cuDevicePrimaryCtxRetain")(&context, 0), "cuDevicePrimaryCtxRetain");
  must(find("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  load(&module);
  must(find("cuModuleGetFunction")(&kernel, module, "work_1us"), "cuModuleGetFunction");
  must(find("cuStreamCreate")(&stream, 1), "cuStreamCreate");
  must(find("cuEventCreate")(&event, 2), "cuEventCreate");
  mem_alloc = find("cuMemAlloc_v2"), mem_free = find("cuMemFree_v2"), launch = find("cuLaunchKernel");
  event_record = find("cuEventRecord"), event_query = find("cuEventQuery"), stream_query = find("cuStreamQuery");
  mem_info = find("cuMemGetInfo_v2"), alloc_async = find("cuMemAllocAsync"), free_async = find("cuMemFreeAsync");
  synchronize = find("cuCtxSynchronize");
  must(event_record(event, stream), "cuEventRecord");
  must(synchronize(), "cuCtxSynchronize");
}

static void pair(size_t size) {
  uint64_t block = 0;
  must(mem_alloc(&block, size), "cuMemAlloc");
  must(mem_free(block), "cuMemFree");
}

static void async_pair(size_t size) {
  uint64_t block = 0;
  must(alloc_async(&block, size, stream), "cuMemAllocAsync");
  must(free_async(block, stream), "cuMemFreeAsync");
}

static void launch_one(void) {
  uint64_t unused = 0;
  void *params[] = {&unused};
  must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static void once(const char *what) {
  size_t left, total;
  if (strcmp(what, "alloc_4k") == 0) pair(4 * KIB);
  else if (strcmp(what, "alloc_2m") == 0) pair(2 * MIB);
  else if (strcmp(what, "alloc_256m") == 0) pair((size_t)256 * MIB);
  else if (strcmp(what, "async_1m") == 0) async_pair(MIB);
  else if (strcmp(what, "launch") == 0) launch_one();
  else if (strcmp(what, "launch_wait") == 0) launch_one(), must(synchronize(), "cuCtxSynchronize");
  else if (strcmp(what, "event_record") == 0) must(event_record(event, stream), "cuEventRecord");
  else if (strcmp(what, "event_query") == 0) (void)event_query(event);
  else if (strcmp(what, "stream_query") == 0) (void)stream_query(stream);
  else if (strcmp(what, "mem_info") == 0) must(mem_info(&left, &total), "cuMemGetInfo");
  else fprintf(stderr, "cost: no command %s\n", what), exit(2);
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

int main(void) {
  char what[32];
  long count;
  start();
  printf("ready\n");
  fflush(stdout);
  while (scanf("%31s %ld", what, &count) == 2) {
    if (count < 1 || count > MOST) fprintf(stderr, "cost: a count of %ld\n", count), exit(2);
    once(what);
    for (long i = 0; i < count; i++) {
      uint64_t begun = now_ns();
      once(what);
      times[i] = now_ns() - begun;
      if (i % 512 == 511) must(synchronize(), "cuCtxSynchronize"); /* the queue stays short */
    }
    must(synchronize(), "cuCtxSynchronize");
    qsort(times, (size_t)count, sizeof *times, by_value);
    printf("%llu %llu\n", (unsigned long long)times[count / 2], (unsigned long long)times[count * 99 / 100]);
    fflush(stdout);
  }
  return 0;
}
