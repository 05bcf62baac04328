/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA program for the demo: does what it is told on standard input, one answer line per line.
 * Linked with the driver libraries as any program is; knows nothing of the library that limits it.
 * Tests: it is one (tests/demo). Commands: see the table at the end. Sizes are bytes. */
#include <cuda.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096 };

static CUdeviceptr held[MOST];
static int count;

static void say_error(const char *what, int code) { printf("error %s %d\n", what, code); }

static void total(unsigned long long unused) {
  (void)unused;
  size_t bytes = 0;
  CUresult result = cuDeviceTotalMem(&bytes, 0);
  if (result) say_error("cuDeviceTotalMem", (int)result);
  else printf("ok %zu\n", bytes);
}

static void info(unsigned long long unused) {
  (void)unused;
  size_t available = 0, bytes = 0;
  CUresult result = cuMemGetInfo(&available, &bytes);
  if (result) say_error("cuMemGetInfo", (int)result);
  else printf("ok %zu %zu\n", available, bytes);
}

static void take(unsigned long long bytes) {
  if (count == MOST) {
    say_error("table", MOST);
    return;
  }
  CUresult result = cuMemAlloc(&held[count], bytes);
  if (result) say_error("cuMemAlloc", (int)result);
  else printf("ok %d\n", count++);
}

static void give(unsigned long long unused) {
  (void)unused;
  int freed = 0;
  for (; count; freed++) {
    CUresult result = cuMemFree(held[--count]);
    if (result) {
      say_error("cuMemFree", (int)result);
      return;
    }
  }
  printf("ok %d\n", freed);
}

/* CUDA's first GPU in NVML: the two number GPUs differently when not all are visible to CUDA. */
static nvmlReturn_t same_gpu(nvmlDevice_t *device) {
  CUuuid id;
  if (cuDeviceGetUuid(&id, 0)) return NVML_ERROR_UNKNOWN;
  char text[48] = "GPU-", *end = text + 4;
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *end++ = '-';
    end += snprintf(end, 3, "%02x", (unsigned char)id.bytes[i]);
  }
  return nvmlDeviceGetHandleByUUID(text, device);
}

/* The GPU as NVML shows it: total, used, then the PIDs that use it. */
static void view(unsigned long long unused) {
  (void)unused;
  nvmlDevice_t device;
  nvmlMemory_t memory;
  nvmlProcessInfo_t processes[64];
  unsigned int found = 64;
  nvmlReturn_t result = nvmlInit();
  if (!result) result = same_gpu(&device);
  if (!result) result = nvmlDeviceGetMemoryInfo(device, &memory);
  if (!result) result = nvmlDeviceGetComputeRunningProcesses(device, &found, processes);
  if (result) {
    say_error("nvml", (int)result);
    return;
  }
  printf("ok %llu %llu", memory.total, memory.used);
  for (unsigned int i = 0; i < found; i++) printf(" %u", processes[i].pid);
  putchar('\n');
  nvmlShutdown();
}

static const struct {
  const char *name;
  void (*act)(unsigned long long);
} commands[] = {{"total", total}, {"info", info}, {"alloc", take}, {"free", give}, {"nvml", view}};

static void obey(const char *line) {
  char name[16] = "";
  unsigned long long number = 0;
  sscanf(line, "%15s %llu", name, &number);
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
    if (!strcmp(name, commands[i].name)) {
      commands[i].act(number);
      return;
    }
  }
  say_error("unknown", 0);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  CUdevice device;
  CUcontext context;
  CUresult result = cuInit(0);
  if (!result) result = cuDeviceGet(&device, 0);
  if (!result) result = cuDevicePrimaryCtxRetain(&context, device);
  if (!result) result = cuCtxSetCurrent(context);
  if (result) {
    say_error("start", (int)result);
    return 1;
  }
  printf("ok %d\n", (int)getpid());
  char line[128];
  while (fgets(line, sizeof line, stdin)) obey(line);
  return 0;
}
