/* Executable graphs: what a graph was when it was instantiated, and running it.
 * Must not know how nodes are made. Tests: tests/unit/fakedriver/test_graphs.py. */
#include "fake_graph.h"

#include <stdlib.h>

struct CUgraphExec_st {
  struct handle handle;
  CUgraph graph; /* a copy, so nodes of the original can be found by it */
  cuuint64_t flags;
  CUcontext context;
};
HANDLE_SIZE_CHECK(struct CUgraphExec_st);
static struct handles execs = HANDLES(struct CUgraphExec_st, 1 << 16);

static CUresult instantiate(CUgraphExec *out, CUgraph graph, cuuint64_t flags) {
  CUcontext context;
  if (!out || !graph_valid(graph) || flags & ~15ull) return CUDA_ERROR_INVALID_VALUE;
  TRY(context_current(&context));
  CUgraphExec exec = handle_new(&execs);
  if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
  exec->flags = flags;
  exec->context = context;
  TRY(graph_copy(graph, &exec->graph));
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

struct demand {
  unsigned gpu;
  int64_t now, peak;
};

/* Device memory a run of the graph needs at most beyond what is live. */
static void measure(CUgraph graph, struct demand *demand) {
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = graph->nodes[i]->work;
    if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) measure(work->child, demand);
    if (work->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC && work->type != CU_GRAPH_NODE_TYPE_MEM_FREE) continue;
    if (work->memory->gpu != demand->gpu) continue;
    int64_t bytes = (int64_t)graph_memory_bytes(work->memory);
    if (work->type == CU_GRAPH_NODE_TYPE_MEM_FREE) demand->now -= bytes;
    else if (!work->memory->live) demand->now += bytes;
    if (demand->now > demand->peak) demand->peak = demand->now;
  }
}

static CUresult provide(CUgraph graph) {
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++) {
    struct demand demand = {.gpu = gpu};
    measure(graph, &demand);
    if (demand.peak > 0) TRY(graph_memory_provide(gpu, (uint64_t)demand.peak));
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
  if (!handle_valid(&execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  if (own && own->capture) return graph_capture_graph(own, exec->graph);
  if (!(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) && has_unfreed(exec->graph))
    return CUDA_ERROR_INVALID_VALUE;
  TRY(provide(exec->graph));
  return run(exec->graph, context, stream);
}
ENTRY_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch, (exec, stream))

static CUresult upload(CUgraphExec exec, CUstream stream) {
  CUstream own;
  if (!handle_valid(&execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_check(stream, &own));
  return provide(exec->graph);
}
ENTRY_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload, (exec, stream))

static CUresult instantiate_params(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  NONNULL(params);
  params->hErrNode_out = NULL;
  params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  TRY(instantiate(out, graph, params->flags));
  params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? upload(*out, params->hUploadStream) : CUDA_SUCCESS;
}
ENTRY_PTSZ(cuGraphInstantiateWithParams, (CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
           instantiate_params, (out, graph, params))

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  ENTER(cuGraphExecDestroy);
  if (!handle_valid(&execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  graph_delete(exec->graph);
  handle_delete(&execs, exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
  ENTER(cuGraphExecGetFlags);
  if (!flags || !handle_valid(&execs, exec)) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

/* --- changing ----------------------------------------------------------------------------------------------------- */

/* The same kinds of nodes in the same order can take over; anything else cannot. */
static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphNode *error, CUgraphExecUpdateResult *result) {
  if (!handle_valid(&execs, exec) || !graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  CUgraph old = exec->graph, fresh;
  int same = old->count == graph->count;
  *result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (size_t i = 0; same && i < graph->count; i++) {
    if (graph->nodes[i]->work->type == old->nodes[i]->work->type) continue;
    *error = graph->nodes[i];
    *result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    same = 0;
  }
  if (!same) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  TRY(graph_copy(graph, &fresh));
  graph_delete(old);
  exec->graph = fresh;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, CUgraphExecUpdateResult *result) {
  ENTER(cuGraphExecUpdate);
  if (!error || !result) return CUDA_ERROR_INVALID_VALUE;
  *error = NULL;
  return update(exec, graph, error, result);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  ENTER(cuGraphExecUpdate_v2);
  NONNULL(info);
  memset(info, 0, sizeof *info);
  return update(exec, graph, &info->errorNode, &info->result);
}

/* The work of the exec's own copy of NODE, if it is of TYPE. */
static struct node_work *own_work(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type) {
  if (!handle_valid(&execs, exec)) return NULL;
  for (size_t i = 0; i < exec->graph->count; i++) {
    CUgraphNode own = exec->graph->nodes[i];
    if (own->original == node && own->work->type == type) return own->work;
  }
  return NULL;
}

static CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const void *params, size_t size) {
  struct node_work work, *own = own_work(exec, node, CU_GRAPH_NODE_TYPE_KERNEL);
  if (!own || !params) return CUDA_ERROR_INVALID_VALUE;
  TRY(graph_kernel_work(params, size, &work));
  *own = work;
  return CUDA_SUCCESS;
}
ENTRY(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p),
      set_kernel, (exec, node, p, sizeof *p))
ENTRY(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p),
      set_kernel, (exec, node, p, sizeof *p))

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *box,
                                        CUcontext context) {
  ENTER(cuGraphExecMemcpyNodeSetParams);
  struct node_work *own = own_work(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY);
  if (!own || !box || !context_valid(context)) return CUDA_ERROR_INVALID_VALUE;
  own->copy = *box;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params) {
  ENTER(cuGraphExecHostNodeSetParams);
  struct node_work *own = own_work(exec, node, CU_GRAPH_NODE_TYPE_HOST);
  if (!own || !params || !params->fn) return CUDA_ERROR_INVALID_VALUE;
  own->host = *params;
  return CUDA_SUCCESS;
}
