/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the simulated libcuda.so.1 share. The opaque structures of cuda.h are defined here.
 * Uses nothing of NVML. Tests: tests/unit/fakedriver. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "fake_call.h"
#include "fake_state.h"

#include <cuda.h>
#include <stdatomic.h>
#include <string.h>

#define ENTER(symbol) CALL_ENTER(symbol, CUDA_ERROR_NOT_INITIALIZED)
/* An entry point whose whole work is IMPL, which several of them share: twins for per-thread streams, old ABIs. */
#define ENTRY(symbol, parameters, impl, arguments) \
  CUresult symbol parameters { \
    ENTER(symbol); \
    return impl arguments; \
  }
#define ENTRY_PTSZ(symbol, parameters, impl, arguments) \
  ENTRY(symbol, parameters, impl, arguments) \
  ENTRY(symbol##_ptsz, parameters, impl, arguments)
#define ENTRY_PTDS(symbol, parameters, impl, arguments) \
  ENTRY(symbol, parameters, impl, arguments) \
  ENTRY(symbol##_ptds, parameters, impl, arguments)

#define NONNULL(pointer) \
  do { \
    if (!(pointer)) return CUDA_ERROR_INVALID_VALUE; \
  } while (0)
#define TRY(call) \
  do { \
    CUresult result_ = (call); \
    if (result_ != CUDA_SUCCESS) return result_; \
  } while (0)

enum { CONTEXTS = 1024, CONTEXT_LIMITS = 16, CONTEXT_STACK = 24 };

struct CUctx_st {
  _Atomic int alive;
  int device;   /* ordinal as CUDA counts */
  unsigned gpu; /* index in the machine */
  int primary, references;
  CUcontext green_of; /* the primary context that this is another handle of; NULL: an ordinary one */
  unsigned flags, api_version;
  unsigned long long id;
  size_t limit[CONTEXT_LIMITS];
  CUfunc_cache cache_config;
  CUsharedconfig shared_config;
  struct fake_bill bill;       /* context cost plus device heap */
  uint64_t charged;            /* the sum of it */
  _Atomic uint64_t busy_until; /* end of the last launched work, in the GPU's own time */
};

struct context_stack {
  CUcontext at[CONTEXT_STACK];
  int depth;
};
extern _Thread_local struct context_stack context_stack;

static inline CUresult context_current(CUcontext *out) {
  int depth = context_stack.depth;
  if (__builtin_expect(depth == 0 || !context_stack.at[depth - 1], 0)) return CUDA_ERROR_INVALID_CONTEXT;
  CUcontext top = context_stack.at[depth - 1];
  if (__builtin_expect(!atomic_load_explicit(&top->alive, memory_order_relaxed), 0))
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *out = top->green_of ? top->green_of : top;
  return CUDA_SUCCESS;
}
int context_valid(CUcontext context);
unsigned context_index(CUcontext context);
CUcontext context_at(unsigned index);
void context_reset_after_fork(void);
void settings_drop_context(CUcontext context);
/* Another handle of the device's primary context, which it keeps alive until it ends. */
CUresult context_make_green(CUdevice device, CUcontext *out);
void context_end_green(CUcontext context);

/* Devices this process may use: CUDA's ordinal to the machine's index. */
extern int device_count;
extern unsigned device_gpu[FAKE_MAX_GPUS];
int device_valid(CUdevice device);
int device_of_gpu(unsigned gpu); /* -1: not visible */

/* --- memory: fake_arena.c hands out addresses, fake_range.c knows all other ranges, fake_memory.c charges ------- */

enum block_kind {
  BLOCK_FREE,
  BLOCK_DEVICE,  /* owner: context */
  BLOCK_MANAGED, /* owner: context */
  BLOCK_GLOBAL,  /* a module's variable; owner: context */
  BLOCK_POOL,    /* owner: pool */
  BLOCK_GRAPH,   /* owner: context */
};
enum { BLOCK_TOUCHED = 1, BLOCK_SHARED = 2, BLOCK_LEVEL = 1 << 8 /* times the level of the limits that count it */ };

struct block {
  uint64_t size; /* as asked for */
  union {
    struct {
      uint16_t owner;
      uint8_t kind, gpu;
      uint32_t flags;
    };
    uint64_t word; /* the same, to be copied as one: a wider load behind two stores stalls the processor */
  };
};

CUresult arena_take(uint64_t size, struct block block, CUdeviceptr *address);
/* Block around ADDRESS or NULL; *BASE is where it begins. Only for owners: no lock is kept. */
struct block *arena_find(CUdeviceptr address, CUdeviceptr *base);
/* Takes the block that begins at ADDRESS if ACCEPTS agrees and gives its address range back; *BLOCK is what it was. */
CUresult arena_give(CUdeviceptr address, int (*accepts)(const struct block *block), struct block *block);
void arena_each(void (*visit)(CUdeviceptr address, struct block *block, void *arg), void *arg);
int arena_contains(CUdeviceptr address);

enum range_kind { RANGE_LOW, RANGE_HOST, RANGE_REGISTERED, RANGE_RESERVED, RANGE_MAPPED, RANGE_IPC, RANGE_EXTERNAL };
struct range {
  CUdeviceptr base;
  uint64_t size;
  enum range_kind kind;
  unsigned gpu, context, flags;
  void *object;
};
int range_add(const struct range *range);               /* -1: overlaps another of its level, or no memory */
int range_find(CUdeviceptr address, struct range *out); /* innermost; -1: none */
int range_remove(CUdeviceptr base, enum range_kind kind, struct range *out);
int range_find_kind(CUdeviceptr address, enum range_kind kind, struct range *out);
/* A free piece of [LOW, HIGH) between ranges, 0: none. */
CUdeviceptr range_gap(CUdeviceptr low, CUdeviceptr high, uint64_t size, uint64_t alignment);
void range_each(void (*visit)(struct range *range, void *arg), void *arg);

uint64_t memory_rounded(uint64_t bytes);
/* LEVEL: of the limits that count it, for state_uncharge; NULL: none does. */
CUresult memory_charge(unsigned gpu, uint64_t bytes, unsigned *level);
CUresult memory_charge_bill(unsigned gpu, uint64_t bytes, struct fake_bill *bill);
CUresult memory_take(CUcontext context, uint64_t bytes, enum block_kind kind, CUdeviceptr *address);
/* Frees what memory_take or a pool gave; context need not be current. */
CUresult memory_give(CUdeviceptr address);
void memory_drop_context(CUcontext context); /* all that the context owns */
/* Memory that the host can touch behind a device address range; NULL: not device memory, or beyond its end. */
void *memory_reach(CUdeviceptr address, uint64_t bytes);

CUresult external_free(CUdeviceptr address); /* a buffer of external memory */
/* 64 bytes with which another process maps a block of KIND; they fill the SIZE bytes of OUT. */
CUresult ipc_export(void *out, size_t size, CUdeviceptr address, enum block_kind kind);
CUresult ipc_import(CUdeviceptr *out, const void *handle);
CUresult ipc_close(CUdeviceptr address); /* CUDA_ERROR_INVALID_VALUE: not an imported block */
void ipc_forget(CUdeviceptr address); /* the block was shared with other processes and is gone */

/* --- time ------------------------------------------------------------------------------------------------------- */

void work_launch(CUcontext context, CUstream stream, uint64_t ns); /* adds a piece of work of NS to the GPU */
void work_wait(CUcontext context);                                 /* sleeps until its work is done */
void work_sleep(uint64_t ns);
void pool_returned(unsigned pool, uint64_t bytes);                 /* a block of the pool was freed */
void pool_release_unused(unsigned gpu);                            /* before memory is refused */
void pool_drop_device(CUdevice device);                            /* its last context is gone */

/* A default stream in an entry point whose name ends in _ptsz is the thread's own. */
#define OWN_DEFAULT(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
/* Whether what other streams are capturing forbids a call, which then ends those captures: a call that may
 * synchronise, and one on the default stream that all share. */
CUresult capture_forbids_unsafe(void);
CUresult capture_forbids_legacy(CUstream stream, CUcontext context);

/* Memory operations on a stream that is being captured become nodes of its graph. */
CUresult graph_capture_alloc(CUstream stream, unsigned gpu, uint64_t bytes, CUdeviceptr *out);
CUresult graph_capture_free(CUstream stream, CUdeviceptr address);
CUresult graph_capture_launch(CUstream stream, CUfunction function);
CUresult graph_capture_host(CUstream stream, CUhostFn function, void *data);
CUresult graph_memory_free(CUdeviceptr address); /* memory of a graph, by the program itself */

CUresult launch_now(CUfunction function, CUcontext context, CUstream stream);
void pool_trim_after_sync(CUcontext context); /* pools give back what is above their threshold */

#endif
