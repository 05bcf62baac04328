/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: nodes that describe work, and memory that graphs own.
 * Uses nothing of how work is done; fake_graph_exec.c does it. Tests: tests/unit/fakedriver/test_graphs.py. */
#ifndef FAKE_GRAPH_H
#define FAKE_GRAPH_H

#include "fake_copy.h"
#include "fake_work.h"

/* Memory of an alloc node: one address for as long as anything names it, device memory from a launch to a free. */
struct graph_memory {
  struct graph_memory *next;
  CUdeviceptr address;
  uint64_t bytes;
  unsigned gpu;
  uint32_t references; /* nodes and executable graphs */
  int live;
  CUmemLocation location;
};

/* A conditional node: its bodies, and which of them runs. */
struct graph_condition {
  CUgraphConditionalNodeType type;
  unsigned size, value;
  CUgraph body[];
};

struct node_work {
  CUgraphNodeType type;
  union {
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMCPY3D copy;
    struct fill fill;
    CUDA_HOST_NODE_PARAMS host;
    CUgraph child;
    CUevent event;
    struct graph_memory *memory; /* alloc and free */
    struct graph_condition *condition;
  };
};

struct CUgraphNode_st {
  struct handle handle;
  CUgraph graph;
  CUgraphNode original; /* of a clone */
  CUgraphNode *before;  /* what it depends on */
  size_t before_count;
  struct node_work *work;
  uint64_t rest[2];
};

struct CUgraph_st {
  struct handle handle;
  CUgraphNode *nodes; /* in the order they were added, which is the order they run in */
  size_t count, capacity;
  CUgraphNode owner; /* of a child graph */
  int instantiated;  /* times; at most once when it has memory nodes */
  int body;          /* of a conditional node */
  uint64_t rest[2];
};

struct CUgraphExec_st {
  struct handle handle;
  CUgraph graph; /* a copy, so nodes of the original can be found by it */
  cuuint64_t flags;
  CUcontext context;
  CUgraph source; /* NULL: may have others */
  CUstream stream; /* of the last launch or upload */
  int mapped;     /* there was one */
  uint32_t rest[3];
};
extern struct handles graph_execs;

static inline int graph_node_is_memory(const struct node_work *work) {
  return work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || work->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

int graph_valid(CUgraph graph);
int graph_node_valid(CUgraphNode node);
int graph_has_memory(CUgraph graph);
void graph_drop_context(CUcontext context, int last_on_gpu);
CUresult graph_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                   const struct node_work *work);
CUresult graph_make(CUgraph *out);
void graph_delete(CUgraph graph);
CUresult graph_copy(CUgraph from, CUgraph *out);

/* P names the bodies afterwards. */
CUresult graph_condition_make(CUDA_CONDITIONAL_NODE_PARAMS *p, struct graph_condition **out);
CUresult graph_condition_copy(const struct graph_condition *from, struct graph_condition **out);
void graph_condition_drop(struct graph_condition *condition);
CUgraph graph_condition_body(const struct graph_condition *condition); /* NULL: none runs */

CUresult graph_kernel_work(const void *params, size_t size, struct node_work *work);
CUresult graph_add_free(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr address);
CUresult graph_capture_graph(CUstream stream, CUgraph graph);

CUresult graph_memory_make(unsigned gpu, uint64_t bytes, struct graph_memory **out);
struct graph_memory *graph_memory_reusable(CUgraph graph, const CUgraphNode *before, size_t count, unsigned gpu,
                                           uint64_t bytes);
struct graph_memory *graph_memory_at(CUdeviceptr address);
void graph_memory_retain(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);

/* One launch: the pages that it has taken and that hold no allocation. */
struct graph_run {
  CUstream stream;
  uint64_t busy[FAKE_MAX_GPUS];
};
/* Pages for BYTES: those kept for the stream, then free ones, then new ones. */
CUresult graph_memory_borrow(struct graph_run *run, unsigned gpu, uint64_t bytes);
void graph_memory_run(struct graph_run *run); /* allocations and frees of this thread are the run's */
void graph_memory_return(struct graph_run *run); /* its pages are kept for the stream */
void graph_memory_keep(unsigned gpu, CUstream stream, uint64_t most); /* no more than its graphs need */
void graph_memory_drop_gpu(unsigned gpu);
void graph_memory_live(struct graph_memory *memory);
uint64_t graph_memory_bytes(const struct graph_memory *memory);

#endif
