/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs: what a graph was when it was instantiated, and running it.
 * Must not depend on how nodes are made. Tests: tests/unit/fakedriver/test_graphs.py. */
#include "fake_graph.h"

#include <stdlib.h>

HANDLE_SIZE_CHECK(struct CUgraphExec_st);
struct handles graph_execs = HANDLES(struct CUgraphExec_st, 1 << 16);

static CUresult instantiate(CUgraphExec *out, CUgraph graph, cuuint64_t flags) {
  CUcontext context;
  if (!out || !graph_valid(graph) || flags & ~15ull) return CUDA_ERROR_INVALID_VALUE;
  TRY(context_current(&context));
  int memory = graph_has_memory(graph);
  if (graph->owner || graph->body || (memory && graph->instantiated)) return CUDA_ERROR_NOT_SUPPORTED;
  CUgraphExec exec = handle_new(&graph_execs);
  if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
  exec->flags = flags;
  exec->context = context;
  exec->source = memory ? graph : NULL;
  TRY(graph_copy(graph, &exec->graph));
  graph->instantiated = memory;
  *out = exec;
  return CUDA_SUCCESS;
}

static CUresult instantiate_with_log(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
  if (error) *error = NULL;
  if (log && size) *log = '\0';
  return instantiate(out, graph, 0);
}
#define LOGGED (CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
ENTRY(cuGraphInstantiate, LOGGED, instantiate_with_log, (out, graph, error, log, size))
ENTRY(cuGraphInstantiate_v2, LOGGED, instantiate_with_log, (out, graph, error, log, size))
ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec *out, CUgraph graph, unsigned long long flags), instantiate,
      (out, graph, flags))

/* --- running ---------------------------------------------------------------------------------------------------- */

/* Pages that the graph's allocations take: all of them at once, each address once. LIVE: also those that hold one. */
struct demand {
  unsigned gpu;
  int live;
  uint64_t bytes;
};

static int seen_before(CUgraph graph, size_t count, const struct graph_memory *memory) {
  for (size_t i = 0; i < count; i++)
    if (graph->nodes[i]->work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && graph->nodes[i]->work->memory == memory) return 1;
  return 0;
}

static void measure(CUgraph graph, struct demand *demand) {
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = graph->nodes[i]->work;
    if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) measure(work->child, demand);
    if (work->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || work->memory->gpu != demand->gpu) continue;
    if (work->memory->live && !demand->live) continue;
    if (!seen_before(graph, i, work->memory)) demand->bytes += graph_memory_bytes(work->memory);
  }
}

static uint64_t demand_of(CUgraph graph, unsigned gpu, int live) {
  struct demand demand = {.gpu = gpu, .live = live};
  measure(graph, &demand);
  return demand.bytes;
}

struct stream_demand {
  unsigned gpu;
  CUstream stream;
  uint64_t bytes;
};

static void add_demand(void *item, void *arg) {
  CUgraphExec exec = item;
  struct stream_demand *demand = arg;
  if (exec->mapped && exec->stream == demand->stream) demand->bytes += demand_of(exec->graph, demand->gpu, 1);
}

/* A stream keeps no more pages than the graphs that last ran there need. */
static void settle(CUstream stream) {
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++) {
    struct stream_demand demand = {.gpu = gpu, .stream = stream};
    handle_each(&graph_execs, add_demand, &demand);
    graph_memory_keep(gpu, stream, demand.bytes);
  }
}

static void move_to(CUgraphExec exec, CUstream stream) {
  CUstream old = exec->stream;
  int moved = exec->mapped && old != stream;
  exec->stream = stream;
  exec->mapped = 1;
  if (moved) settle(old);
}

static CUresult provide(CUgraphExec exec, CUstream stream, struct graph_run *run) {
  move_to(exec, stream);
  *run = (struct graph_run){.stream = stream};
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++) {
    uint64_t bytes = demand_of(exec->graph, gpu, 0);
    CUresult result = bytes ? graph_memory_borrow(run, gpu, bytes) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) continue;
    graph_memory_return(run);
    return result;
  }
  return CUDA_SUCCESS;
}

static int has_unfreed(CUgraph graph) {
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = graph->nodes[i]->work;
    if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && work->memory->live) return 1;
    if (work->type == CU_GRAPH_NODE_TYPE_GRAPH && has_unfreed(work->child)) return 1;
  }
  return 0;
}

static CUresult run(CUgraph graph, CUcontext context, CUstream stream);

static CUresult run_node(const struct node_work *work, CUcontext context, CUstream stream) {
  switch ((int)work->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return launch_now(work->kernel.func, context, stream);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return copy_box(&work->copy);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return fill_now(&work->fill);
    case CU_GRAPH_NODE_TYPE_HOST:
      work->host.fn(work->host.userData);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return run(work->child, context, stream);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return event_record(work->event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return event_wait(work->event, stream);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      graph_memory_live(work->memory);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return graph_memory_free(work->memory->address);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return graph_condition_body(work->condition) ? run(graph_condition_body(work->condition), context, stream)
                                                   : CUDA_SUCCESS;
    default:
      return CUDA_SUCCESS;
  }
}

static CUresult run(CUgraph graph, CUcontext context, CUstream stream) {
  for (size_t i = 0; i < graph->count; i++) TRY(run_node(graph->nodes[i]->work, context, stream));
  return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream stream) {
  CUcontext context;
  CUstream own;
  if (!handle_valid(&graph_execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  if (own && own->capture) return graph_capture_graph(own, exec->graph);
  if (!(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) && has_unfreed(exec->graph))
    return CUDA_ERROR_INVALID_VALUE;
  if (!exec->source) return run(exec->graph, context, stream);
  struct graph_run pages;
  TRY(provide(exec, stream, &pages));
  graph_memory_run(&pages);
  CUresult result = run(exec->graph, context, stream);
  graph_memory_return(&pages);
  settle(stream);
  return result;
}
ENTRY_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch, (exec, stream))

static CUresult upload(CUgraphExec exec, CUstream stream) {
  CUstream own;
  if (!handle_valid(&graph_execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_check(stream, &own));
  if (!exec->source) return CUDA_SUCCESS;
  struct graph_run pages;
  TRY(provide(exec, stream, &pages));
  graph_memory_return(&pages);
  settle(stream);
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload, (exec, stream))

static void delete_exec(CUgraphExec exec) {
  CUstream stream = exec->stream;
  if (exec->source && graph_valid(exec->source)) exec->source->instantiated = 0;
  graph_delete(exec->graph);
  handle_delete(&graph_execs, exec);
  settle(stream);
}

static void drop_of_context(void *item, void *context) {
  if (((CUgraphExec)item)->context == context) delete_exec(item);
}

void graph_drop_context(CUcontext context, int last_on_gpu) {
  handle_each(&graph_execs, drop_of_context, context);
  if (last_on_gpu) graph_memory_drop_gpu(context->gpu);
}

static CUresult instantiate_params(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  NONNULL(params);
  params->hErrNode_out = NULL;
  params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  TRY(instantiate(out, graph, params->flags));
  params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  if (!(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) return CUDA_SUCCESS;
  CUresult result = upload(*out, params->hUploadStream);
  if (result == CUDA_SUCCESS) return result;
  params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  delete_exec(*out);
  return result;
}
ENTRY_PTSZ(cuGraphInstantiateWithParams, (CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
           instantiate_params, (out, graph, params))

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  ENTER(cuGraphExecDestroy);
  if (!handle_valid(&graph_execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  delete_exec(exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
  ENTER(cuGraphExecGetFlags);
  if (!flags || !handle_valid(&graph_execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}
