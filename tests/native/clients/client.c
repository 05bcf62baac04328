/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA program that knows nothing of the library: it does what it is told on stdin, one command a line, and answers
 * each with one line: the result code and then values. How it reaches the driver is its first argument (reach.h).
 * Blocks are kept under names, so that a test reads like a program. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reach.h"

enum { NAMES = 26 };

static CUdeviceptr block[NAMES];
static CUcontext context[NAMES];
static CUmemGenericAllocationHandle physical[NAMES];

#define CALL(symbol) ((__typeof__(&symbol))reach(#symbol))

static int slot(const char *name) { return (name[0] - 'a' + NAMES) % NAMES; }

static void answer(CUresult result, unsigned long long a, unsigned long long b) {
  printf("%d %llu %llu\n", (int)result, a, b);
  fflush(stdout);
}

struct work {
  int rounds;
  size_t bytes;
  CUcontext context;
  int refused;
};

static void *allocate_and_free(void *data) {
  struct work *work = data;
  CALL(cuCtxSetCurrent)(work->context);
  for (int i = 0; i < work->rounds; i++) {
    CUdeviceptr p;
    if (CALL(cuMemAlloc_v2)(&p, work->bytes) != CUDA_SUCCESS)
      work->refused++;
    else if (CALL(cuMemFree_v2)(p) != CUDA_SUCCESS)
      work->refused += 1000000;
  }
  return NULL;
}

/* THREADS at once, each allocates and frees; answers the number of refusals. */
static void run_threads(int threads, int rounds, size_t bytes) {
  pthread_t thread[64];
  struct work work[64];
  int refused = 0;
  CUcontext current = NULL;
  CALL(cuCtxGetCurrent)(&current);
  for (int i = 0; i < threads; i++) {
    work[i] = (struct work){rounds, bytes, current, 0};
    pthread_create(&thread[i], NULL, allocate_and_free, &work[i]);
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(thread[i], NULL);
    refused += work[i].refused;
  }
  answer(CUDA_SUCCESS, (unsigned long long)refused, 0);
}

/* Takes blocks of BYTES until refused, keeps them; answers how many. */
static void fill(size_t bytes) {
  unsigned long long count = 0;
  CUdeviceptr p;
  CUresult result;
  while ((result = CALL(cuMemAlloc_v2)(&p, bytes)) == CUDA_SUCCESS) count++;
  answer(result, count, 0);
}

/* The child follows further commands, the parent waits for it and then goes on reading. */
static void fork_child(void) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    answer(CUDA_SUCCESS, (unsigned long long)getpid(), 0);
    return;
  }
  waitpid(pid, NULL, 0);
}

static CUresult make_context(const char *version, CUcontext *out, int device) {
  switch (version[0]) {
    case '1': return CALL(cuCtxCreate)(out, 0, device);
    case '2': return CALL(cuCtxCreate_v2)(out, 0, device);
    case '3': return CALL(cuCtxCreate_v3)(out, NULL, 0, 0, device);
    default: return CALL(cuCtxCreate_v4)(out, NULL, 0, device);
  }
}

static void physical_command(const char *what, const char *name, size_t size) {
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  if (!strcmp(what, "let")) return answer(CALL(cuMemRelease)(physical[slot(name)]), 0, 0);
  physical[slot(name)] = 0x5555;
  CUresult result = CALL(cuMemCreate)(&physical[slot(name)], size, &prop, 0);
  answer(result, physical[slot(name)], 0);
}

static void memory_command(const char *what, const char *name, size_t size, size_t height) {
  CUdeviceptr_v1 small = 0x55;
  CUdeviceptr p = 0x5555;
  size_t pitch = 0x77, a = 0, b = 0;
  unsigned int small_pitch = 0, a1 = 0, b1 = 0;
  CUresult result;
  if (!strcmp(what, "alloc")) {
    result = CALL(cuMemAlloc_v2)(&p, size);
    answer(result, block[slot(name)] = p, 0);
  } else if (!strcmp(what, "alloc1")) {
    result = CALL(cuMemAlloc)(&small, (unsigned int)size);
    answer(result, block[slot(name)] = small, 0);
  } else if (!strcmp(what, "managed")) {
    result = CALL(cuMemAllocManaged)(&p, size, CU_MEM_ATTACH_GLOBAL);
    answer(result, block[slot(name)] = p, 0);
  } else if (!strcmp(what, "pitch")) {
    result = CALL(cuMemAllocPitch_v2)(&p, &pitch, size, height, 4);
    answer(result, block[slot(name)] = p, pitch);
  } else if (!strcmp(what, "pitch1")) {
    result = CALL(cuMemAllocPitch)(&small, &small_pitch, (unsigned int)size, (unsigned int)height, 4);
    answer(result, block[slot(name)] = small, small_pitch);
  } else if (!strcmp(what, "free")) {
    answer(CALL(cuMemFree_v2)(block[slot(name)]), 0, 0);
  } else if (!strcmp(what, "free1")) {
    answer(CALL(cuMemFree)((CUdeviceptr_v1)block[slot(name)]), 0, 0);
  } else if (!strcmp(what, "freeaddress")) {
    answer(CALL(cuMemFree_v2)((CUdeviceptr)size), 0, 0);
  } else if (!strcmp(what, "info")) {
    result = CALL(cuMemGetInfo_v2)(&a, &b);
    answer(result, a, b);
  } else if (!strcmp(what, "info1")) {
    result = CALL(cuMemGetInfo)(&a1, &b1);
    answer(result, a1, b1);
  } else {
    answer(CUDA_ERROR_UNKNOWN, 0, 0);
  }
}

static void device_command(const char *what, const char *name, int device) {
  size_t total = 0;
  unsigned int total1 = 0;
  CUresult result;
  if (!strcmp(what, "total")) {
    result = CALL(cuDeviceTotalMem_v2)(&total, device);
    answer(result, total, 0);
  } else if (!strcmp(what, "total1")) {
    result = CALL(cuDeviceTotalMem)(&total1, device);
    answer(result, total1, 0);
  } else if (!strcmp(what, "retain")) {
    result = CALL(cuDevicePrimaryCtxRetain)(&context[slot(name)], device);
    answer(result, 0, 0);
  } else if (!strcmp(what, "release")) {
    answer(CALL(cuDevicePrimaryCtxRelease_v2)(device), 0, 0);
  } else if (!strcmp(what, "reset")) {
    answer(CALL(cuDevicePrimaryCtxReset_v2)(device), 0, 0);
  } else if (!strncmp(what, "create", 6)) {
    context[slot(name)] = (CUcontext)0x5555;
    result = make_context(what + 6, &context[slot(name)], device);
    answer(result, (unsigned long long)(uintptr_t)context[slot(name)], 0);
  } else {
    memory_command(what, name, (size_t)device, 0);
  }
}

static void command(const char *what, const char *name, unsigned long long a, unsigned long long b) {
  static const char *const device[] = {"total", "total1", "retain", "release", "reset"};
  for (size_t i = 0; i < sizeof device / sizeof *device; i++)
    if (!strcmp(what, device[i])) return device_command(what, name, (int)a);
  if (!strncmp(what, "create", 6)) return device_command(what, name, (int)a);
  if (!strcmp(what, "init")) return answer(CALL(cuInit)(0), 0, 0);
  if (!strcmp(what, "destroy")) return answer(CALL(cuCtxDestroy_v2)(context[slot(name)]), 0, 0);
  if (!strcmp(what, "detach")) return answer(CALL(cuCtxDetach)(context[slot(name)]), 0, 0);
  if (!strcmp(what, "current")) return answer(CALL(cuCtxSetCurrent)(context[slot(name)]), 0, 0);
  if (!strcmp(what, "nocontext")) return answer(CALL(cuCtxSetCurrent)(NULL), 0, 0);
  if (!strcmp(what, "threads")) return run_threads(name[0] - '0', (int)a, (size_t)b);
  if (!strcmp(what, "fill")) return fill((size_t)a);
  if (!strcmp(what, "fork")) return fork_child();
  if (!strcmp(what, "physical") || !strcmp(what, "let")) return physical_command(what, name, (size_t)a);
  if (!strcmp(what, "pid")) return answer(CUDA_SUCCESS, (unsigned long long)getpid(), 0);
  if (!strcmp(what, "exec")) {
    char mode[] = REACH_DEFAULT, *argv[] = {"client", mode, NULL};
    execv("/proc/self/exe", argv);
  }
  memory_command(what, name, (size_t)a, (size_t)b);
}

int main(int argc, char **argv) {
  char line[256], what[32], name[32];
  unsigned long long a, b;
  reach_start(argc > 1 ? argv[1] : REACH_DEFAULT);
  setvbuf(stdin, NULL, _IONBF, 0);
  while (fgets(line, sizeof line, stdin) != NULL) {
    a = b = 0;
    strcpy(name, "a");
    if (sscanf(line, "%31s %31s %llu %llu", what, name, &a, &b) < 1) continue;
    command(what, name, a, b);
  }
  return 0;
}
