/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that a graph uses more than once.
 * Must not depend on how nodes run. Tests: tests/integration/test_native_graph.py. */
#include "fake_graph.h"

static int comes_after(CUgraphNode node, CUgraphNode before) {
  for (size_t i = 0; i < node->before_count; i++)
    if (node->before[i] == before || comes_after(node->before[i], before)) return 1;
  return 0;
}

/* The node will depend on LIST: is NODE done by then? */
static int done_before(CUgraphNode node, const CUgraphNode *list, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (list[i] == node || comes_after(list[i], node)) return 1;
  return 0;
}

/* Every use of the memory in the graph is over before the new node: allocations and frees pair up, all done. */
static int is_free_again(CUgraph graph, const struct graph_memory *memory, const CUgraphNode *list, size_t count) {
  int allocations = 0, frees = 0;
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = graph->nodes[i]->work;
    if (!graph_node_is_memory(work) || work->memory != memory) continue;
    if (!done_before(graph->nodes[i], list, count)) return 0;
    if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) allocations++;
    else frees++;
  }
  return allocations && allocations == frees;
}

/* An address of the same graph that is free again when the node runs, as the driver reuses them. NULL: none. */
struct graph_memory *graph_memory_reusable(CUgraph graph, const CUgraphNode *before, size_t count, unsigned gpu,
                                           uint64_t bytes) {
  if (!graph_valid(graph)) return NULL;
  for (size_t i = 0; i < count; i++)
    if (!before || !graph_node_valid(before[i])) return NULL;
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = graph->nodes[i]->work;
    if (work->type != CU_GRAPH_NODE_TYPE_MEM_FREE || work->memory->gpu != gpu || work->memory->bytes != bytes) continue;
    if (is_free_again(graph, work->memory, before, count)) return work->memory;
  }
  return NULL;
}
