/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs that have allocation nodes: what each needs, and where it ran last. Graphs without such nodes,
 * nearly all, are not in the list, and while it is empty a launch costs one load.
 * Uses no driver. Tests: tests/integration/test_native_graph.py. */
#ifndef VC_CUDA_GRAPH_EXEC_H
#define VC_CUDA_GRAPH_EXEC_H

#include <stdatomic.h>
#include <stdint.h>

#include "nvidia.h"
#include "shm.h"

struct graph_need {
  uint64_t bytes;   /* pages of all allocation nodes */
  uint64_t unfreed; /* those that are still allocated when the graph has run */
};

enum {
  GRAPH_NO_SHARE = 1, /* it allocates on a device of which the container has no share */
  GRAPH_UNREAD = 2,   /* the driver did not tell what it allocates */
};

struct graph_exec {
  struct graph_exec *next, *previous;
  _Atomic uint64_t stream; /* of the last launch or upload: graph_stream_key() */
  _Atomic uint64_t epoch;  /* of graph_memory.c at that time; 0: none yet */
  _Atomic uint32_t mapped; /* one bit per column: pages there may be the graph's */
  uint32_t columns;        /* one bit per column in which it needs any */
  int denied;              /* why it is never launched, of the following; 0: it may be */
  struct graph_need need[VC_MAX_GPUS];
};

extern _Atomic uint32_t graph_exec_count __attribute__((visibility("hidden")));

static inline int graph_execs_exist(void) {
  return __builtin_expect(atomic_load_explicit(&graph_exec_count, memory_order_relaxed) != 0, 0);
}

/* Records a copy of NEED for the handle. VC_EIO: no memory. */
int graph_exec_add(CUgraphExec handle, const struct graph_exec *need);

/* NULL: a graph without memory, or unknown. */
struct graph_exec *graph_exec_find(CUgraphExec handle);

/* Takes the record out of the list, before the driver ends the graph: the handle may be another thread's new graph at
 * once. It is then put back, or given back for good. */
struct graph_exec *graph_exec_take(CUgraphExec handle);
void graph_exec_put_back(CUgraphExec handle, struct graph_exec *exec);
void graph_exec_drop(struct graph_exec *exec);

/* The handle is another graph's now. */
void graph_exec_forget(CUgraphExec handle);

/* What graphs other than SELF may hold in a column so that a launch into STREAM cannot use it: graphs of one stream
 * never run at once and share their pages, except for what they leave allocated. */
uint64_t graph_exec_others(const struct graph_exec *self, uint32_t column, uint64_t stream);

/* No graph has pages in the column any more. */
void graph_exec_unmap(uint32_t column);

/* In a forked child. */
void graph_exec_after_fork(void);

#endif
