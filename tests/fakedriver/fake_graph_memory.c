/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of graphs: kept after it is free, until it is trimmed. Graphs that are launched into the same stream
 * share their pages, since they never run at once; what a graph leaves allocated belongs to no other graph.
 * Must not depend on nodes. Tests: tests/unit/fakedriver/test_graphs.py. */
#include "fake_graph.h"

#include <pthread.h>
#include <stdlib.h>

static struct graph_memory *all;

/* Pages of a GPU: RESERVED is what allocations hold, what streams keep for their next launch, and the rest. */
enum { STREAMS = 64 };
static struct device_memory {
  uint64_t used, used_high, reserved, reserved_high;
  struct fake_bill bill; /* for RESERVED */
  struct {
    CUstream stream;
    uint64_t bytes; /* mapped by graphs that last ran here; 0: the entry is free */
  } kept[STREAMS];
} devices[FAKE_MAX_GPUS];
static _Thread_local struct graph_run *running;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

uint64_t graph_memory_bytes(const struct graph_memory *memory) {
  return memory_rounded((memory->bytes + 511) & ~511ull);
}

CUresult graph_memory_make(unsigned gpu, uint64_t bytes, struct graph_memory **out) {
  struct graph_memory *memory = calloc(1, sizeof *memory);
  struct block block = {.owner = UINT16_MAX, .kind = BLOCK_GRAPH, .gpu = (uint8_t)gpu};
  if (!memory || bytes > 1ull << 47 || arena_take(bytes, block, &memory->address) != CUDA_SUCCESS) {
    free(memory);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory->gpu = gpu;
  memory->bytes = bytes;
  memory->references = 1;
  pthread_mutex_lock(&mutex);
  memory->next = all;
  all = memory;
  pthread_mutex_unlock(&mutex);
  *out = memory;
  return CUDA_SUCCESS;
}

struct graph_memory *graph_memory_at(CUdeviceptr address) {
  pthread_mutex_lock(&mutex);
  struct graph_memory *memory = all;
  while (memory && memory->address != address) memory = memory->next;
  pthread_mutex_unlock(&mutex);
  return memory;
}

static int any(const struct block *block) { return block->kind == BLOCK_GRAPH; }

/* Under the mutex. */
static void delete_if_unused(struct graph_memory *memory) {
  if (memory->references || memory->live) return;
  struct block block;
  struct graph_memory **link = &all;
  while (*link != memory) link = &(*link)->next;
  *link = memory->next;
  arena_give(memory->address, any, &block);
  free(memory);
}

void graph_memory_retain(struct graph_memory *memory) {
  pthread_mutex_lock(&mutex);
  memory->references++;
  pthread_mutex_unlock(&mutex);
}

void graph_memory_drop(struct graph_memory *memory) {
  pthread_mutex_lock(&mutex);
  memory->references--;
  delete_if_unused(memory);
  pthread_mutex_unlock(&mutex);
}

/* --- pages ------------------------------------------------------------------------------------------------------- */

static uint64_t *kept_by(struct device_memory *device, CUstream stream) {
  uint64_t *empty = NULL;
  for (int i = 0; i < STREAMS; i++) {
    if (device->kept[i].bytes && device->kept[i].stream == stream) return &device->kept[i].bytes;
    if (!device->kept[i].bytes && !empty) {
      device->kept[i].stream = stream;
      empty = &device->kept[i].bytes;
    }
  }
  return empty;
}

static uint64_t kept_elsewhere(const struct device_memory *device, CUstream stream) {
  uint64_t sum = 0;
  for (int i = 0; i < STREAMS; i++)
    if (device->kept[i].stream != stream) sum += device->kept[i].bytes;
  return sum;
}

CUresult graph_memory_borrow(struct graph_run *run, unsigned gpu, uint64_t bytes) {
  struct device_memory *device = &devices[gpu];
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&mutex);
  uint64_t needed = device->used + kept_elsewhere(device, run->stream) + bytes;
  if (needed > device->reserved && (result = memory_charge_bill(gpu, needed - device->reserved, &device->bill)) == CUDA_SUCCESS)
    device->reserved = needed;
  if (device->reserved > device->reserved_high) device->reserved_high = device->reserved;
  if (result == CUDA_SUCCESS) {
    uint64_t *kept = kept_by(device, run->stream);
    if (kept) *kept -= *kept < bytes ? *kept : bytes;
    device->used += bytes;
    run->busy[gpu] = bytes;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

void graph_memory_run(struct graph_run *run) { running = run; }

void graph_memory_return(struct graph_run *run) {
  running = NULL;
  pthread_mutex_lock(&mutex);
  for (unsigned gpu = 0; gpu < FAKE_MAX_GPUS; gpu++) {
    uint64_t *kept = run->busy[gpu] ? kept_by(&devices[gpu], run->stream) : NULL;
    if (kept) *kept += run->busy[gpu];
    devices[gpu].used -= run->busy[gpu];
    run->busy[gpu] = 0;
  }
  pthread_mutex_unlock(&mutex);
}

void graph_memory_keep(unsigned gpu, CUstream stream, uint64_t most) {
  pthread_mutex_lock(&mutex);
  uint64_t *kept = kept_by(&devices[gpu], stream);
  if (kept && *kept > most) *kept = most;
  pthread_mutex_unlock(&mutex);
}

void graph_memory_live(struct graph_memory *memory) {
  struct device_memory *device = &devices[memory->gpu];
  pthread_mutex_lock(&mutex);
  if (!memory->live && running) running->busy[memory->gpu] -= graph_memory_bytes(memory); /* stays used */
  if (device->used > device->used_high) device->used_high = device->used;
  memory->live = 1;
  pthread_mutex_unlock(&mutex);
}

CUresult graph_memory_free(CUdeviceptr address) {
  struct graph_memory *memory = graph_memory_at(address);
  if (!memory || !memory->live) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  memory->live = 0;
  if (running) running->busy[memory->gpu] += graph_memory_bytes(memory);
  else devices[memory->gpu].used -= graph_memory_bytes(memory);
  delete_if_unused(memory);
  pthread_mutex_unlock(&mutex);
  return CUDA_SUCCESS;
}

/* Under the mutex. */
static void shrink(unsigned gpu) {
  struct device_memory *memory = &devices[gpu];
  uint64_t unused = memory->reserved - memory->used;
  if (unused) state_uncharge_bill(gpu, unused, &memory->bill);
  memory->reserved = memory->used;
  memset(memory->kept, 0, sizeof memory->kept);
}

void graph_memory_drop_gpu(unsigned gpu) {
  pthread_mutex_lock(&mutex);
  struct graph_memory *next;
  for (struct graph_memory *memory = all; memory; memory = next) {
    next = memory->next;
    if (memory->gpu != gpu || !memory->live) continue;
    memory->live = 0;
    devices[gpu].used -= graph_memory_bytes(memory);
    delete_if_unused(memory);
  }
  shrink(gpu);
  pthread_mutex_unlock(&mutex);
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  ENTER(cuDeviceGraphMemTrim);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&mutex);
  shrink(device_gpu[device]);
  pthread_mutex_unlock(&mutex);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
  ENTER(cuDeviceGetGraphMemAttribute);
  NONNULL(value);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  const struct device_memory *memory = &devices[device_gpu[device]];
  const uint64_t values[] = {memory->used, memory->used_high, memory->reserved, memory->reserved_high};
  if ((unsigned)attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  *(cuuint64_t *)value = values[attribute];
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
  ENTER(cuDeviceSetGraphMemAttribute);
  if (!value || *(cuuint64_t *)value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  struct device_memory *memory = &devices[device_gpu[device]];
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) memory->used_high = memory->used;
  else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) memory->reserved_high = memory->reserved;
  else return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
