/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that map, unmap, retain and release the same handles at once. Whatever of two racing calls the driver serves
 * first, at the end the charge must be where it began. Prints the free bytes before and after, and how often each side
 * of a race won. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cuda.h>

enum { PART = 2 << 20, THREADS = 4 };

static long rounds;
static CUdeviceptr area;                    /* one place for each thread, and a common one */
static CUmemGenericAllocationHandle handle; /* of the round */
static _Atomic long reached[2], won[4];
static CUcontext context;
static size_t before; /* free bytes */

static void must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(1);
}

static CUmemGenericAllocationHandle create(void) {
  CUmemGenericAllocationHandle made;
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  must(cuMemCreate(&made, PART, &prop, 0), "cuMemCreate");
  return made;
}

static size_t free_bytes(void) {
  size_t left, total;
  must(cuMemGetInfo(&left, &total), "cuMemGetInfo");
  return left;
}

/* Both threads leave this at the same moment, again and again. */
static void meet(int side, long round) {
  atomic_store(&reached[side], round);
  while (atomic_load(&reached[!side]) < round) sched_yield();
}

/* Lets the other side go first, more or less. */
static void dither(long round) {
  if (round % 3 == 0) usleep(60);
  for (volatile long i = 0; i < round * 37 % 5000; i++) continue;
}

/* Between two races, by the one thread that runs then: WON pieces are still held. */
static void expect(long held, const char *what) {
  if (free_bytes() == before - (size_t)held * PART) return;
  fprintf(stderr, "after %s: %ld of %d bytes are counted\n", what, (long)(before - free_bytes()), (int)(held * PART));
  exit(1);
}

/* Races over a handle with one reference: against a mapping, against another release, against a retain. */
static void *racer(void *data) {
  int side = data != NULL;
  CUdeviceptr own = area + (CUdeviceptr)side * PART;
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  for (long round = 1; round <= rounds * 8; round += 8) {
    CUmemGenericAllocationHandle found;
    CUresult result;
    if (side == 0) handle = create();
    meet(side, round);
    if (side == 0) dither(round);
    result = side == 0 ? cuMemRelease(handle) : cuMemMap(own, PART, 0, handle, 0);
    meet(side, round + 1);
    if (side == 1) expect(result == CUDA_SUCCESS, "a mapping and a release");
    if (side == 1 && result == CUDA_SUCCESS) must(cuMemUnmap(own, PART), "cuMemUnmap"), won[0]++;
    if (side == 1) handle = create();
    meet(side, round + 2);
    if (cuMemRelease(handle) == CUDA_SUCCESS) won[1]++;
    meet(side, round + 3);
    if (side == 0) {
      expect(0, "two releases");
      handle = create();
      must(cuMemMap(own, PART, 0, handle, 0), "cuMemMap");
      must(cuMemRelease(handle), "cuMemRelease");
    }
    meet(side, round + 4);
    if (side == 0) dither(round);
    result = side == 0 ? cuMemUnmap(own, PART) : cuMemRetainAllocationHandle(&found, (void *)(area + 1));
    meet(side, round + 5);
    if (side == 1) expect(result == CUDA_SUCCESS, "an unmapping and a retain");
    if (side == 1 && result == CUDA_SUCCESS) must(cuMemRelease(found), "cuMemRelease"), won[2]++;
    if (side == 1) must(cuMemMap(area, PART, 0, handle = create(), 0), "cuMemMap");
    meet(side, round + 6);
    must(side == 0 ? cuMemUnmap(own, PART) : cuMemRelease(handle), "the end of both"), won[3]++;
    meet(side, round + 7);
    if (side == 0) expect(0, "an unmapping and a release");
  }
  return NULL;
}

/* No races between calls on one thing, but all on the same handle, which is made and freed all the time elsewhere. */
static void *worker(void *data) {
  CUdeviceptr own = area + (2 + (CUdeviceptr)(uintptr_t)data) * PART;
  for (long round = 0; round < rounds; round++) {
    CUmemGenericAllocationHandle found, made = create();
    must(cuMemRetainAllocationHandle(&found, (void *)(area + PART + 5)), "cuMemRetainAllocationHandle");
    must(cuMemMap(own, PART, 0, round % 2 ? found : made, 0), "cuMemMap");
    must(cuMemRelease(found), "cuMemRelease");
    if (round % 3) must(cuMemRelease(made), "cuMemRelease");
    must(cuMemUnmap(own, PART), "cuMemUnmap");
    if (round % 3 == 0) must(cuMemRelease(made), "cuMemRelease");
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t thread[THREADS];
  rounds = argc > 1 ? atol(argv[1]) : 1000;
  must(cuInit(0), "cuInit");
  must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuMemAddressReserve(&area, (2 + THREADS) * (size_t)PART, 0, 0, 0), "cuMemAddressReserve");
  before = free_bytes();
  for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, racer, i ? &area : NULL);
  for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
  size_t between = free_bytes();
  CUmemGenericAllocationHandle common = create();
  must(cuMemMap(area + PART, PART, 0, common, 0), "cuMemMap");
  for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, worker, (void *)(uintptr_t)i);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  must(cuMemRelease(common), "cuMemRelease");
  size_t held = free_bytes();
  must(cuMemUnmap(area + PART, PART), "cuMemUnmap");
  printf("%zu %zu %zu %zu %ld %ld %ld %ld\n", before, between, held, free_bytes(), won[0], won[1], won[2], won[3]);
  return 0;
}
