/* SPDX-License-Identifier: Apache-2.0 */
/* A program that makes the calls of work.def, one a line of its input, and answers each line with one:
 *
 *   start KERNEL   a context, a stream and memory; KERNEL is what launches launch -> code
 *   call NAME      -> code
 *   look NAME      whether what the call writes is there, and nothing else; then it is gone -> ok, or the bytes
 *   record NAME    the call while its stream captures -> code, number of nodes
 *   capturing      whether the stream captures, which then ends -> code, status
 *   sync           waits for the context's work -> code
 *   keep KERNEL    launches it into another stream -> code
 *   owner NAME     -> the file that the function is in
 *
 * Functions come from dlsym, so it runs under the library or without it; in the linked flavour (-DLINKED) they are those
 * that the loader finds. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each place is of SIZE bytes. Copies bring BYTES of the pattern from FROM to AT. */
enum { SIZE = 64, FROM = 16, AT = 32, BYTES = 16, FILLED = 0x5a };

static unsigned char host[SIZE], out[SIZE];
static CUdeviceptr from, to, managed;
static CUdeviceptr_v1 low_from, low_to;
static CUarray array_from, array_to;
static CUcontext context;
static CUstream main_stream, other_stream, doomed;
static CUfunction kernel;
static CUmodule module;
static CUgraph graph;
static CUevent event;
static unsigned int yes = 1;

/* --- the words of work.def -------------------------------------------------------------------------------------- */

static size_t halves[] = {BYTES / 2, BYTES / 2}, first[] = {0}, failed;
static CUdeviceptr to_halves[2], from_halves[2], managed_halves[2];
static CUmemcpyAttributes in_order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
static CUmemLocation on_device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
static CUmemDecompressParams compressed;
#define LINES to_halves, from_halves, halves, 2
#define RANGES managed_halves, halves, 2

/* Rows of four bytes, in boxes that leave no gaps. */
#define BOX(place) \
  .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host + FROM, .srcPitch = 4, .dstMemoryType = CU_MEMORYTYPE_DEVICE, \
  .dstDevice = (place) + AT, .dstPitch = 4, .WidthInBytes = 4
#define DEEP_BOX(place) BOX(place), .srcHeight = 2, .dstHeight = 2, .Height = 2, .Depth = 2
#define FLAT(type, place) (&(type){BOX(place), .Height = 4})
#define SOLID(type, place) (&(type){DEEP_BOX(place)})
#define PEERS(place) (&(CUDA_MEMCPY3D_PEER){DEEP_BOX(place), .srcContext = context, .dstContext = context})

#define OPERANDS \
  (&(CUDA_MEMCPY3D_BATCH_OP){ \
      .src = {CU_MEMCPY_OPERAND_TYPE_POINTER, {.ptr = {.ptr = from + FROM}}}, \
      .dst = {CU_MEMCPY_OPERAND_TYPE_POINTER, {.ptr = {.ptr = to + AT}}}, \
      .extent = {4, 2, 2}, \
      .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM})
#define FABRIC_OPERANDS \
  (&(CUDA_FABRIC_COPY_BATCH_OP){ \
      .src = {CU_FABRIC_COPY_OPERAND_TYPE_POINTER, {.ptr = {.ptr = from + FROM}}}, \
      .dst = {CU_FABRIC_COPY_OPERAND_TYPE_POINTER, {.ptr = {.ptr = to + AT}}}, \
      .size = BYTES})

#define ONE_THREAD .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1
#define LAUNCH_INTO(stream) (&(CUlaunchConfig){ONE_THREAD, .hStream = (stream)})
#define LAUNCHES_INTO(stream) (&(CUDA_LAUNCH_PARAMS){ONE_THREAD, .function = kernel, .hStream = (stream)})

/* --- the calls -------------------------------------------------------------------------------------------------- */

enum kind {
  LAUNCH,
  HOST,
  DEVICE,
  LOW,
  ARRAY,
  FILL,
  LOW_FILL,
  DISCARD,
  PAGES,
  NO_ENGINE,
  CAPTURE,
  NO_CAPTURE,
  END,
  QUERY,
};

static void *lookup(const char *symbol) {
  static void *library;
  if (library == NULL) library = dlopen("libcuda.so.1", RTLD_NOW);
  void *function = library ? dlsym(library, symbol) : NULL;
  if (function != NULL) return function;
  fprintf(stderr, "%s: %s\n", symbol, dlerror());
  exit(9);
}

#ifdef LINKED
#define CALL(symbol) symbol
#else
#define CALL(symbol) ((__typeof__(&symbol))lookup(#symbol))
#endif

#define WORK(symbol, kind, arguments)       \
  static CUresult do_##symbol(CUstream stream) { \
    (void)stream;                           \
    return CALL(symbol) arguments;          \
  }
#include "work.def"
#undef WORK

static const struct work {
  const char *name;
  enum kind kind;
  CUresult (*call)(CUstream stream);
} works[] = {
#define WORK(symbol, kind, arguments) {#symbol, kind, do_##symbol},
#include "work.def"
#undef WORK
};

static const struct work *find(const char *name) {
  for (size_t i = 0; i < sizeof works / sizeof *works; i++)
    if (!strcmp(works[i].name, name)) return &works[i];
  fprintf(stderr, "no such line: %s\n", name);
  exit(2);
}

/* --- before and after ------------------------------------------------------------------------------------------- */

static void must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(3);
}
#define MUST(call) must(call, #call)

/* What is there before a call: the pattern at the sources and in managed memory, zeros at the destinations. */
static void clear(void) {
  static const unsigned char zeros[SIZE];
  for (int i = 0; i < SIZE; i++) host[i] = (unsigned char)(i + 1);
  memset(out, 0, SIZE);
  MUST(CALL(cuMemcpyHtoD_v2)(from, host, SIZE));
  MUST(CALL(cuMemcpyHtoD_v2)(low_from, host, SIZE));
  MUST(CALL(cuMemcpyHtoA_v2)(array_from, 0, host, SIZE));
  MUST(CALL(cuMemcpyHtoD_v2)(to, zeros, SIZE));
  MUST(CALL(cuMemcpyHtoD_v2)(low_to, zeros, SIZE));
  MUST(CALL(cuMemcpyHtoA_v2)(array_to, 0, zeros, SIZE));
  MUST(CALL(cuMemcpyHtoD_v2)(managed, host, SIZE));
}

static void make_memory(void) {
  const CUDA_ARRAY_DESCRIPTOR line = {.Width = SIZE, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
  MUST(CALL(cuMemAlloc_v2)(&from, SIZE));
  MUST(CALL(cuMemAlloc_v2)(&to, SIZE));
  MUST(CALL(cuMemAlloc)(&low_from, SIZE));
  MUST(CALL(cuMemAlloc)(&low_to, SIZE));
  MUST(CALL(cuMemAllocManaged)(&managed, SIZE, CU_MEM_ATTACH_GLOBAL));
  MUST(CALL(cuArrayCreate_v2)(&array_from, &line));
  MUST(CALL(cuArrayCreate_v2)(&array_to, &line));
  for (int i = 0; i < 2; i++) {
    to_halves[i] = to + AT + (size_t)i * BYTES / 2;
    from_halves[i] = from + FROM + (size_t)i * BYTES / 2;
    managed_halves[i] = managed + AT + (size_t)i * BYTES / 2;
  }
  clear();
}

static CUresult start(const char *name) {
  MUST(CALL(cuInit)(0));
  MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
  MUST(CALL(cuCtxSetCurrent)(context));
  MUST(CALL(cuModuleLoadData)(&module, "image"));
  MUST(CALL(cuModuleGetFunction)(&kernel, module, name));
  MUST(CALL(cuFuncSetBlockShape)(kernel, 1, 1, 1)); /* for cuLaunch and its like */
  MUST(CALL(cuStreamCreate)(&main_stream, CU_STREAM_NON_BLOCKING));
  MUST(CALL(cuStreamCreate)(&other_stream, CU_STREAM_NON_BLOCKING));
  MUST(CALL(cuStreamCreate)(&doomed, CU_STREAM_NON_BLOCKING));
  MUST(CALL(cuGraphCreate)(&graph, 0));
  MUST(CALL(cuEventCreate)(&event, 0));
  make_memory();
  return CUDA_SUCCESS;
}

static CUresult call(const struct work *work) {
  CUresult result = work->call(main_stream);
  if (work->kind == END && result == CUDA_SUCCESS) MUST(CALL(cuStreamCreate)(&doomed, CU_STREAM_NON_BLOCKING));
  return result;
}

/* What is there, and what should be. */
static void look(const struct work *work) {
  unsigned char seen[SIZE], wanted[SIZE] = {0};
  memcpy(wanted + AT, host + FROM, BYTES);
  if (work->kind == FILL || work->kind == LOW_FILL) memset(wanted + AT, FILLED, BYTES);
  if (work->kind == DISCARD || work->kind == PAGES) memcpy(wanted, host, SIZE);
  if (work->kind == DISCARD) memset(wanted + AT, 0, BYTES);
  switch (work->kind) {
    case HOST: memcpy(seen, out, SIZE); break;
    case DEVICE: case FILL: MUST(CALL(cuMemcpyDtoH_v2)(seen, to, SIZE)); break;
    case LOW: case LOW_FILL: MUST(CALL(cuMemcpyDtoH_v2)(seen, low_to, SIZE)); break;
    case ARRAY: MUST(CALL(cuMemcpyAtoH_v2)(seen, array_to, 0, SIZE)); break;
    case DISCARD: case PAGES: MUST(CALL(cuMemcpyDtoH_v2)(seen, managed, SIZE)); break;
    default: memcpy(seen, wanted, SIZE);
  }
  clear();
  if (memcmp(seen, wanted, SIZE) == 0) {
    puts("ok");
    return;
  }
  for (int i = 0; i < SIZE; i++) printf("%02x", seen[i]);
  puts("");
}

static CUresult end_capture(int *status, size_t *nodes) {
  CUgraph captured = NULL;
  CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = CALL(cuStreamIsCapturing)(main_stream, &now);
  *status = (int)now;
  if (now == CU_STREAM_CAPTURE_STATUS_NONE) return result;
  MUST(CALL(cuStreamEndCapture)(main_stream, &captured));
  return CALL(cuGraphGetNodes)(captured, NULL, nodes);
}

static void record(const struct work *work) {
  int status;
  size_t nodes = 0;
  MUST(CALL(cuStreamBeginCapture_v2)(main_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUresult result = call(work);
  MUST(end_capture(&status, &nodes));
  printf("%d %zu\n", (int)result, nodes);
}

static void capturing(void) {
  int status;
  size_t nodes;
  CUresult result = end_capture(&status, &nodes);
  printf("%d %d\n", (int)result, status);
}

static CUresult keep(const char *name) {
  CUfunction long_kernel;
  MUST(CALL(cuModuleGetFunction)(&long_kernel, module, name));
  return CALL(cuLaunchKernel)(long_kernel, 1, 1, 1, 1, 1, 1, 0, other_stream, NULL, NULL);
}

static void owner(const char *name) {
  Dl_info info;
  if (!dladdr(lookup(name), &info)) exit(4);
  puts(strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname);
}

int main(void) {
  char line[256], what[32], name[128];
  while (fgets(line, sizeof line, stdin) != NULL) {
    name[0] = 0;
    if (sscanf(line, "%31s %127s", what, name) < 1) continue;
    if (!strcmp(what, "start")) printf("%d\n", (int)start(name));
    else if (!strcmp(what, "call")) printf("%d\n", (int)call(find(name)));
    else if (!strcmp(what, "look")) look(find(name));
    else if (!strcmp(what, "record")) record(find(name));
    else if (!strcmp(what, "capturing")) capturing();
    else if (!strcmp(what, "sync")) printf("%d\n", (int)CALL(cuCtxSynchronize)());
    else if (!strcmp(what, "keep")) printf("%d\n", (int)keep(name));
    else if (!strcmp(what, "owner")) owner(name);
    else return 2;
    fflush(stdout);
  }
  return 0;
}
