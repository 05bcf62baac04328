/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs as descriptions: making, changing and asking them.
 * Must not depend on how they run. Tests: tests/unit/fakedriver/test_graphs.py. */
#include "fake_graph.h"

#include <stdlib.h>

HANDLE_SIZE_CHECK(struct CUgraph_st);
HANDLE_SIZE_CHECK(struct CUgraphNode_st);
static struct handles graphs = HANDLES(struct CUgraph_st, 1 << 16);
static struct handles nodes = HANDLES(struct CUgraphNode_st, 1 << 20);

int graph_valid(CUgraph graph) { return handle_valid(&graphs, graph); }
int graph_node_valid(CUgraphNode node) { return handle_valid(&nodes, node); }

CUresult graph_make(CUgraph *out) {
  CUgraph graph = handle_new(&graphs);
  if (!graph) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = graph;
  return CUDA_SUCCESS;
}

static int depends(CUgraphNode node, CUgraphNode before) {
  for (size_t i = 0; i < node->before_count; i++)
    if (node->before[i] == before) return 1;
  return 0;
}

static CUresult add_dependency(CUgraphNode node, CUgraphNode before) {
  if (depends(node, before)) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNode *grown = realloc(node->before, (node->before_count + 1) * sizeof *grown);
  if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
  node->before = grown;
  node->before[node->before_count++] = before;
  return CUDA_SUCCESS;
}

static void remove_dependency(CUgraphNode node, CUgraphNode before) {
  for (size_t i = 0; i < node->before_count; i++)
    if (node->before[i] == before) node->before[i--] = node->before[--node->before_count];
}

static void delete_node(CUgraphNode node) {
  if (graph_node_is_memory(node->work)) graph_memory_drop(node->work->memory);
  if (node->work->type == CU_GRAPH_NODE_TYPE_GRAPH) graph_delete(node->work->child);
  if (node->work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) graph_condition_drop(node->work->condition);
  free(node->before);
  free(node->work);
  handle_delete(&nodes, node);
}

void graph_delete(CUgraph graph) {
  for (size_t i = 0; i < graph->count; i++) delete_node(graph->nodes[i]);
  free(graph->nodes);
  handle_delete(&graphs, graph);
}

static int may_be_in_body(const struct node_work *work) {
  switch ((int)work->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return !graph_has_memory(work->child);
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return 1;
    default:
      return 0;
  }
}

/* WORK's references become the node's. */
CUresult graph_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                   const struct node_work *work) {
  if (!out || (count && !before)) return CUDA_ERROR_INVALID_VALUE;
  if (!graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (graph->body && !may_be_in_body(work)) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < count; i++)
    if (!graph_node_valid(before[i]) || before[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
  if (graph->count == graph->capacity) {
    size_t larger = graph->capacity ? graph->capacity * 2 : 16;
    CUgraphNode *grown = realloc(graph->nodes, larger * sizeof *grown);
    if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
    graph->nodes = grown;
    graph->capacity = larger;
  }
  CUgraphNode node = handle_new(&nodes);
  struct node_work *copy = malloc(sizeof *copy);
  if (!node || !copy) {
    free(copy);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *copy = *work;
  node->graph = graph;
  node->work = copy;
  for (size_t i = 0; i < count; i++) add_dependency(node, before[i]);
  graph->nodes[graph->count++] = node;
  *out = node;
  return CUDA_SUCCESS;
}

static size_t position(const CUgraphNode *list, size_t count, CUgraphNode node) {
  size_t i = 0;
  while (i < count && list[i] != node) i++;
  return i;
}

CUresult graph_copy(CUgraph from, CUgraph *out) {
  CUgraph to;
  TRY(graph_make(&to));
  for (size_t i = 0; i < from->count; i++) {
    CUgraphNode node, old = from->nodes[i];
    struct node_work work = *old->work;
    if (graph_node_is_memory(&work)) graph_memory_retain(work.memory);
    if (work.type == CU_GRAPH_NODE_TYPE_GRAPH) TRY(graph_copy(work.child, &work.child));
    if (work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) TRY(graph_condition_copy(work.condition, &work.condition));
    TRY(graph_add(&node, to, NULL, 0, &work));
    node->original = old;
    for (size_t d = 0; d < old->before_count; d++) {
      size_t at = position(from->nodes, i, old->before[d]);
      if (at < i) TRY(add_dependency(node, to->nodes[at]));
    }
  }
  *out = to;
  return CUDA_SUCCESS;
}

int graph_has_memory(CUgraph graph) {
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = graph->nodes[i]->work;
    if (graph_node_is_memory(work)) return 1;
    if (work->type == CU_GRAPH_NODE_TYPE_GRAPH && graph_has_memory(work->child)) return 1;
  }
  return 0;
}

/* --- graphs ----------------------------------------------------------------------------------------------------- */

CUresult cuGraphCreate(CUgraph *out, unsigned flags) {
  ENTER(cuGraphCreate);
  return !out || flags ? CUDA_ERROR_INVALID_VALUE : graph_make(out);
}

CUresult cuGraphDestroy(CUgraph graph) {
  ENTER(cuGraphDestroy);
  if (!graph_valid(graph) || graph->owner) return CUDA_ERROR_INVALID_VALUE;
  graph_delete(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *out, CUgraph graph) {
  ENTER(cuGraphClone);
  if (!out || !graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  return graph_has_memory(graph) ? CUDA_ERROR_NOT_SUPPORTED : graph_copy(graph, out);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph clone) {
  ENTER(cuGraphNodeFindInClone);
  if (!out || !graph_valid(clone)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < clone->count; i++)
    if (clone->nodes[i]->original == original) {
      *out = clone->nodes[i];
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
  ENTER(cuGraphDestroyNode);
  if (!graph_node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
  CUgraph graph = node->graph;
  if (graph_has_memory(graph)) return CUDA_ERROR_NOT_SUPPORTED;
  size_t at = position(graph->nodes, graph->count, node);
  memmove(graph->nodes + at, graph->nodes + at + 1, (--graph->count - at) * sizeof *graph->nodes);
  for (size_t i = 0; i < graph->count; i++) remove_dependency(graph->nodes[i], node);
  delete_node(node);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  ENTER(cuGraphNodeGetType);
  if (!type || !graph_node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
  *type = node->work->type;
  return CUDA_SUCCESS;
}

/* Copies FOUND of *COUNT requested entries; a NULL list asks for the number. Entries beyond FOUND become NULL. */
static CUresult answer(CUgraphNode *list, size_t *count, const CUgraphNode *found, size_t number) {
  if (list)
    for (size_t i = 0; i < *count; i++) list[i] = i < number ? found[i] : NULL;
  if (!list || *count > number) *count = number;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *list, size_t *count) {
  ENTER(cuGraphGetNodes);
  if (!count || !graph_valid(graph)) return CUDA_ERROR_INVALID_VALUE;
  return answer(list, count, graph->nodes, graph->count);
}

static CUresult filtered(CUgraph graph, CUgraphNode before, CUgraphNode *list, size_t *count) {
  CUgraphNode *found = calloc(graph->count + 1, sizeof *found);
  size_t number = 0;
  if (!found) return CUDA_ERROR_OUT_OF_MEMORY;
  for (size_t i = 0; i < graph->count; i++)
    if (before ? depends(graph->nodes[i], before) : graph->nodes[i]->before_count == 0)
      found[number++] = graph->nodes[i];
  answer(list, count, found, number);
  free(found);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *list, size_t *count) {
  ENTER(cuGraphGetRootNodes);
  return !count || !graph_valid(graph) ? CUDA_ERROR_INVALID_VALUE : filtered(graph, NULL, list, count);
}

/* --- edges: the newer ABIs carry data for each, which is always that of a plain edge ------------------------------ */

static void plain(CUgraphEdgeData *data, size_t count) {
  if (data) memset(data, 0, count * sizeof *data);
}

static CUresult dependencies(CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data, size_t *count) {
  if (!count || !graph_node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
  answer(list, count, node->before, node->before_count);
  plain(data, list ? *count : 0);
  return CUDA_SUCCESS;
}
ENTRY(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *list, size_t *count), dependencies,
      (node, list, NULL, count))
ENTRY(cuGraphNodeGetDependencies_v2, (CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data, size_t *count),
      dependencies, (node, list, data, count))

static CUresult dependents(CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data, size_t *count) {
  if (!count || !graph_node_valid(node)) return CUDA_ERROR_INVALID_VALUE;
  TRY(filtered(node->graph, node, list, count));
  plain(data, list ? *count : 0);
  return CUDA_SUCCESS;
}
ENTRY(cuGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode *list, size_t *count), dependents,
      (node, list, NULL, count))
ENTRY(cuGraphNodeGetDependentNodes_v2, (CUgraphNode node, CUgraphNode *list, CUgraphEdgeData *data, size_t *count),
      dependents, (node, list, data, count))

static CUresult edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count) {
  if (!count || !graph_valid(graph) || !from != !to) return CUDA_ERROR_INVALID_VALUE;
  size_t number = 0;
  for (size_t i = 0; i < graph->count; i++)
    for (size_t d = 0; d < graph->nodes[i]->before_count; d++, number++) {
      if (!from || number >= *count) continue;
      from[number] = graph->nodes[i]->before[d];
      to[number] = graph->nodes[i];
    }
  if (!from || *count > number) *count = number;
  plain(data, from ? *count : 0);
  return CUDA_SUCCESS;
}
ENTRY(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count), edges,
      (graph, from, to, NULL, count))
ENTRY(cuGraphGetEdges_v2, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count),
      edges, (graph, from, to, data, count))

static CUresult change_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count, int add) {
  if (!graph_valid(graph) || (count && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    if (!graph_node_valid(from[i]) || !graph_node_valid(to[i])) return CUDA_ERROR_INVALID_VALUE;
    if (from[i]->graph != graph || to[i]->graph != graph || from[i] == to[i]) return CUDA_ERROR_INVALID_VALUE;
    if (add == depends(to[i], from[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; i++)
    if (add) TRY(add_dependency(to[i], from[i]));
    else remove_dependency(to[i], from[i]);
  return CUDA_SUCCESS;
}
#define OLD_EDGES (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
ENTRY(cuGraphAddDependencies, OLD_EDGES, change_edges, (graph, from, to, count, 1))
ENTRY(cuGraphRemoveDependencies, OLD_EDGES, change_edges, (graph, from, to, count, 0))

static CUresult change_edges_2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                               const CUgraphEdgeData *data, size_t count, int add) {
  for (size_t i = 0; data && i < count; i++)
    if (data[i].type || data[i].from_port || data[i].to_port) return CUDA_ERROR_NOT_SUPPORTED;
  return change_edges(graph, from, to, count, add);
}
#define NEW_EDGES \
  (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
ENTRY(cuGraphAddDependencies_v2, NEW_EDGES, change_edges_2, (graph, from, to, data, count, 1))
ENTRY(cuGraphRemoveDependencies_v2, NEW_EDGES, change_edges_2, (graph, from, to, data, count, 0))
