/* SPDX-License-Identifier: Apache-2.0 */
/* Changing executable graphs.
 * Must not depend on how they run. Tests: tests/unit/fakedriver/test_graphs.py. */
#include "fake_graph.h"

/* The same kinds of nodes in the same order can take over; anything else cannot. */
static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphNode *error, CUgraphExecUpdateResult *result) {
  if (!handle_valid(&graph_execs, exec) || !graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  CUgraph old = exec->graph, fresh;
  int same = old->count == graph->count;
  *result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (size_t i = 0; same && i < graph->count; i++) {
    const struct node_work *new_work = graph->nodes[i]->work, *old_work = old->nodes[i]->work;
    int type_is_same = new_work->type == old_work->type;
    if (type_is_same && (!graph_node_is_memory(new_work) || new_work->memory == old_work->memory)) continue;
    *error = graph->nodes[i];
    *result = type_is_same ? CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED : CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
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
  if (!handle_valid(&graph_execs, exec)) return NULL;
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
