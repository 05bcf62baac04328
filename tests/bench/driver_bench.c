/* SPDX-License-Identifier: Apache-2.0 */
/* The C half of `make bench`: a program that uses the driver API and times itself on request. It runs twice, once plain
 * and once under the vCUDA library, and paired.py alternates between the two, so that both meet the same noise.
 * Reads commands from stdin ("alloc_free 4096 200000"), answers each with nanoseconds per operation. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>
#include <nvml.h>

static struct {
  CUresult (*mem_alloc)(CUdeviceptr *, size_t);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
  CUresult (*free_async)(CUdeviceptr, CUstream);
  CUresult (*stream_sync)(CUstream);
  CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*mem_info)(size_t *, size_t *);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                     void **, void **);
  CUresult (*get_proc)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  nvmlReturn_t (*nvml_memory)(nvmlDevice_t, nvmlMemory_t *);
  nvmlReturn_t (*nvml_memory_v2)(nvmlDevice_t, nvmlMemory_v2_t *);
} api;

static void *driver, *nvml;
static nvmlDevice_t nvml_device;
static CUdeviceptr *live;
static long live_count;

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Time that this thread itself ran: other programs' time on the machine does not count, nor do a library's threads. */
static double now_cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void check(int result, const char *what) {
  if (result == 0) return;
  fprintf(stderr, "driver_bench: %s failed with %d\n", what, result);
  exit(1);
}

static void *symbol(void *handle, const char *name) {
  void *address = dlsym(handle, name);
  if (!address) fprintf(stderr, "driver_bench: no symbol %s\n", name), exit(1);
  return address;
}

/* What a first allocation needs of the driver. */
static struct {
  CUresult (*init)(unsigned);
  CUresult (*retain)(CUcontext *, CUdevice);
  CUresult (*set_current)(CUcontext);
} starting;

static void look_up_start(void) {
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver) fprintf(stderr, "driver_bench: %s\n", dlerror()), exit(1);
  *(void **)&starting.init = symbol(driver, "cuInit");
  *(void **)&starting.retain = symbol(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&starting.set_current = symbol(driver, "cuCtxSetCurrent");
  *(void **)&api.mem_alloc = symbol(driver, "cuMemAlloc_v2");
}

static void make_context(void) {
  CUcontext context;
  check((int)starting.init(0), "cuInit");
  check((int)starting.retain(&context, 0), "cuDevicePrimaryCtxRetain");
  check((int)starting.set_current(context), "cuCtxSetCurrent");
}

static void open_driver(void) {
  nvmlReturn_t (*nvml_init)(void);
  nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *);
  look_up_start();
  nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!nvml) fprintf(stderr, "driver_bench: %s\n", dlerror()), exit(1);
  *(void **)&api.mem_free = symbol(driver, "cuMemFree_v2");
  *(void **)&api.alloc_async = symbol(driver, "cuMemAllocAsync");
  *(void **)&api.free_async = symbol(driver, "cuMemFreeAsync");
  *(void **)&api.stream_sync = symbol(driver, "cuStreamSynchronize");
  *(void **)&api.create = symbol(driver, "cuMemCreate");
  *(void **)&api.release = symbol(driver, "cuMemRelease");
  *(void **)&api.mem_info = symbol(driver, "cuMemGetInfo_v2");
  *(void **)&api.launch = symbol(driver, "cuLaunchKernel");
  *(void **)&api.get_proc = symbol(driver, "cuGetProcAddress_v2");
  *(void **)&nvml_init = symbol(nvml, "nvmlInit_v2");
  *(void **)&by_index = symbol(nvml, "nvmlDeviceGetHandleByIndex_v2");
  *(void **)&api.nvml_memory = symbol(nvml, "nvmlDeviceGetMemoryInfo");
  *(void **)&api.nvml_memory_v2 = symbol(nvml, "nvmlDeviceGetMemoryInfo_v2");
  make_context();
  check((int)nvml_init(), "nvmlInit");
  check((int)by_index(0, &nvml_device), "nvmlDeviceGetHandleByIndex");
}

/* cuInit, context and first allocation, and nothing else: the microseconds that these calls take. */
static double first(void) {
  CUdeviceptr block;
  look_up_start();
  double begin = now_ns();
  make_context();
  check((int)api.mem_alloc(&block, 4096), "cuMemAlloc");
  return (now_ns() - begin) / 1e3;
}

/* What a program does besides. */
static void compute(double ms) {
  double end = now_cpu_ns() + ms * 1e6;
  while (now_cpu_ns() < end) continue;
}

static void alloc_free(size_t size, long count) {
  CUdeviceptr block;
  for (long i = 0; i < count; i++) {
    check((int)api.mem_alloc(&block, size), "cuMemAlloc");
    check((int)api.mem_free(block), "cuMemFree");
  }
}

static void async_pairs(CUstream stream, size_t size, long count) {
  CUdeviceptr block;
  for (long i = 0; i < count; i++) {
    check((int)api.alloc_async(&block, size, stream), "cuMemAllocAsync");
    check((int)api.free_async(block, stream), "cuMemFreeAsync");
  }
}

/* On the default stream, and on one that could be captured. */
static void alloc_free_async(size_t size, long count, int own) {
  static CUstream stream;
  CUresult (*create)(CUstream *, unsigned);
  *(void **)&create = symbol(driver, "cuStreamCreate");
  if (own && !stream) check((int)create(&stream, 0), "cuStreamCreate");
  async_pairs(own ? stream : NULL, size, count);
}

static void create_release(size_t size, long count) {
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle;
  for (long i = 0; i < count; i++) {
    check((int)api.create(&handle, size, &prop, 0), "cuMemCreate");
    check((int)api.release(handle), "cuMemRelease");
  }
}

/* COUNT allocations are left alive for the commands that follow. */
static void hold(size_t size, long count) {
  for (; live_count > count; live_count--) check((int)api.mem_free(live[live_count - 1]), "cuMemFree");
  live = realloc(live, sizeof *live * (size_t)(count + 1));
  for (; live_count < count; live_count++) check((int)api.mem_alloc(&live[live_count], size), "cuMemAlloc");
}

/* Frees and allocates at random places among the live ones: what a long-running allocator looks like. */
static void random_pairs(size_t size, long count) {
  uint64_t state = 88172645463325252u;
  for (long i = 0; i < count; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    long at = (long)(state % (uint64_t)live_count);
    check((int)api.mem_free(live[at]), "cuMemFree");
    check((int)api.mem_alloc(&live[at], size), "cuMemAlloc");
  }
}

static void refused(size_t size, long count) {
  CUdeviceptr block;
  for (long i = 0; i < count; i++)
    if (api.mem_alloc(&block, size) != CUDA_ERROR_OUT_OF_MEMORY) check(-1, "refusal of cuMemAlloc");
}

/* A kernel that takes no time, on the default stream or, with OWN, on one of the program's. */
static void launch(long count, int own) {
  static CUfunction kernel;
  static CUstream stream;
  if (!kernel) {
    CUmodule module;
    CUresult (*load)(CUmodule *, const void *);
    CUresult (*get)(CUfunction *, CUmodule, const char *);
    CUresult (*create)(CUstream *, unsigned);
    *(void **)&load = symbol(driver, "cuModuleLoadData");
    *(void **)&get = symbol(driver, "cuModuleGetFunction");
    *(void **)&create = symbol(driver, "cuStreamCreate");
    check((int)load(&module, "image"), "cuModuleLoadData");
    check((int)get(&kernel, module, "nothing"), "cuModuleGetFunction");
    check((int)create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  CUstream into = own ? stream : NULL;
  for (long i = 0; i < count; i++) check((int)api.launch(kernel, 1, 1, 1, 1, 1, 1, 0, into, NULL, NULL), "cuLaunchKernel");
}

static void run(const char *name, size_t size, long count) {
  if (strcmp(name, "alloc_free") == 0) alloc_free(size, count);
  else if (strcmp(name, "create_release") == 0) create_release(size, count);
  else if (strcmp(name, "alloc_free_async") == 0) alloc_free_async(size, count, 0);
  else if (strcmp(name, "alloc_free_stream") == 0) alloc_free_async(size, count, 1);
  else if (strcmp(name, "synchronize") == 0) {
    for (long i = 0; i < count; i++) check((int)api.stream_sync(NULL), "cuStreamSynchronize");
  } else if (strcmp(name, "hold") == 0) hold(size, count);
  else if (strcmp(name, "random") == 0) random_pairs(size, count);
  else if (strcmp(name, "refused") == 0) refused(size, count);
  else if (strcmp(name, "mem_info") == 0) {
    size_t a, b;
    for (long i = 0; i < count; i++) check((int)api.mem_info(&a, &b), "cuMemGetInfo");
  } else if (strcmp(name, "nvml_memory") == 0) {
    nvmlMemory_t memory;
    for (long i = 0; i < count; i++) check((int)api.nvml_memory(nvml_device, &memory), "nvmlDeviceGetMemoryInfo");
  } else if (strcmp(name, "nvml_memory_v2") == 0) {
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    for (long i = 0; i < count; i++) check((int)api.nvml_memory_v2(nvml_device, &memory), "nvmlDeviceGetMemoryInfo_v2");
  } else if (strcmp(name, "launch") == 0 || strcmp(name, "launch_stream") == 0) {
    launch(count, name[6] != '\0');
  } else if (strcmp(name, "dlsym") == 0) {
    for (long i = 0; i < count; i++) symbol(driver, "cuMemAlloc_v2");
  } else if (strcmp(name, "dlsym_other") == 0) {
    for (long i = 0; i < count; i++) symbol(driver, "cuDriverGetVersion");
  } else if (strcmp(name, "dlsym_default") == 0) {
    for (long i = 0; i < count; i++) symbol(RTLD_DEFAULT, "cuMemAlloc_v2");
  } else if (strcmp(name, "dlsym_foreign") == 0) {
    for (long i = 0; i < count; i++) symbol(RTLD_DEFAULT, "strerror");
  } else if (strcmp(name, "get_proc_other") == 0) {
    void *address;
    for (long i = 0; i < count; i++) check((int)api.get_proc("cuDriverGetVersion", &address, 12000, 0, NULL), "cuGetProcAddress");
  } else if (strcmp(name, "get_proc") == 0) {
    void *address;
    for (long i = 0; i < count; i++) check((int)api.get_proc("cuMemAlloc", &address, 12000, 0, NULL), "cuGetProcAddress");
  } else {
    fprintf(stderr, "driver_bench: unknown command %s\n", name);
    exit(2);
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Microseconds that processes of ours took: by the clock, and on a processor (other programs' time does not count). */
struct cost {
  double wall, cpu;
};

static double children_cpu_us(void) {
  struct rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  return ((double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec) * 1e6 + (double)usage.ru_utime.tv_usec +
         (double)usage.ru_stime.tv_usec;
}

/* COUNT processes at the same time, until the last has ended. */
static struct cost start_many(int count, char **argv, char **environment) {
  pid_t *pids = calloc((size_t)count, sizeof *pids);
  int status, failed = 0;
  double begin = now_ns(), cpu = children_cpu_us();
  for (int i = 0; i < count; i++) check(posix_spawn(&pids[i], argv[0], NULL, NULL, argv, environment), "posix_spawn");
  for (int i = 0; i < count; i++) {
    waitpid(pids[i], &status, 0);
    failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  struct cost cost = {(now_ns() - begin) / 1e3, children_cpu_us() - cpu};
  if (failed) fprintf(stderr, "driver_bench: %d of %d %s failed\n", failed, count, argv[0]), exit(1);
  free(pids);
  return cost;
}

static char **with_preload(const char *preload) {
  static char assignment[4096];
  int n = 0;
  while (environ[n]) n++;
  char **with = calloc((size_t)n + 2, sizeof *with);
  memcpy(with, environ, sizeof *with * (size_t)n);
  snprintf(assignment, sizeof assignment, "LD_PRELOAD=%s", preload);
  with[n] = assignment;
  return with;
}

static void print_medians(double (*time)[2], int rounds) {
  double *sorted[4]; /* plain, hooked, difference, ratio */
  for (int i = 0; i < 4; i++) sorted[i] = calloc((size_t)rounds, sizeof *sorted[i]);
  for (int i = 0; i < rounds; i++) {
    sorted[0][i] = time[i][0];
    sorted[1][i] = time[i][1];
    sorted[2][i] = time[i][1] - time[i][0];
    sorted[3][i] = time[i][1] / time[i][0];
  }
  for (int i = 0; i < 4; i++) qsort(sorted[i], (size_t)rounds, sizeof *sorted[i], by_value);
  for (int i = 0; i < 4; i++) printf("%.3f ", sorted[i][rounds / 2]);
}

/* `driver_bench start COUNT ROUNDS PRELOAD PROGRAM [ARGS]`: starts COUNT times PROGRAM at once, alternately plain and with
 * LD_PRELOAD. Prints medians over the rounds: microseconds plain, with, difference and ratio within a round, all by the
 * clock, then the same four of processor time. */
static int start_pairs(int count, int rounds, const char *preload, char **argv) {
  char **with = with_preload(preload);
  double(*wall)[2] = calloc((size_t)rounds, sizeof *wall), (*cpu)[2] = calloc((size_t)rounds, sizeof *cpu);
  for (int i = 0; i < rounds; i++)
    for (int side = 0; side < 2; side++) {
      int hooked = side ^ (i % 2);
      struct cost cost = start_many(count, argv, hooked ? with : environ);
      wall[i][hooked] = cost.wall;
      cpu[i][hooked] = cost.cpu;
    }
  print_medians(wall, rounds);
  print_medians(cpu, rounds);
  printf("\n");
  return 0;
}

/* What the calls of first() took in a process of its own. */
static double calls_of(char **argv, char **environment, int from) {
  double us = 0;
  pid_t pid;
  int status;
  check(posix_spawn(&pid, argv[0], NULL, NULL, argv, environment), "posix_spawn");
  if (read(from, &us, sizeof us) != (ssize_t)sizeof us) us = 0;
  waitpid(pid, &status, 0);
  if (us == 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) fprintf(stderr, "driver_bench: first failed\n"), exit(1);
  return us;
}

/* `driver_bench calls ROUNDS PRELOAD`: medians as start_pairs() prints them, of the first calls alone. */
static int calls_pairs(char *program, int rounds, const char *preload) {
  char **with = with_preload(preload), number[16];
  char *argv[] = {program, "first", "0", number, NULL};
  double(*time)[2] = calloc((size_t)rounds, sizeof *time);
  int ends[2];
  check(pipe(ends), "pipe");
  snprintf(number, sizeof number, "%d", ends[1]);
  for (int i = 0; i < rounds; i++)
    for (int side = 0; side < 2; side++) {
      int hooked = side ^ (i % 2);
      time[i][hooked] = calls_of(argv, hooked ? with : environ, ends[0]);
    }
  print_medians(time, rounds);
  printf("\n");
  return 0;
}

/* `driver_bench first [MS [FD]]`: computes for so long besides, and writes to FD what first() returns. */
static int run_first(int argc, char **argv) {
  double us = first();
  if (argc > 2) compute(atof(argv[2]));
  return argc > 3 && write(atoi(argv[3]), &us, sizeof us) != (ssize_t)sizeof us;
}

int main(int argc, char **argv) {
  char name[64];
  size_t size;
  long count;
  if (argc > 5 && strcmp(argv[1], "start") == 0)
    return start_pairs(atoi(argv[2]), atoi(argv[3]), argv[4], argv + 5);
  if (argc > 3 && strcmp(argv[1], "calls") == 0) return calls_pairs(argv[0], atoi(argv[2]), argv[3]);
  if (argc > 1 && strcmp(argv[1], "first") == 0) return run_first(argc, argv);
  open_driver();
  setvbuf(stdout, NULL, _IOLBF, 0);
  while (scanf("%63s %zu %ld", name, &size, &count) == 3) {
    double begin = now_cpu_ns();
    run(name, size, count);
    printf("%.3f\n", (now_cpu_ns() - begin) / (double)(count > 0 ? count : 1));
  }
  return 0;
}
