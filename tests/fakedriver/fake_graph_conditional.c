/* SPDX-License-Identifier: Apache-2.0 */
/* Conditional nodes: bodies that run or not. A kernel does nothing here, so no kernel changes a condition: it has the
 * handle's first value at each launch, and a loop that begins runs once.
 * Must not depend on how other nodes run. Tests: tests/unit/fakedriver/test_graphs.py. */
#include "fake_graph.h"

#include <stdlib.h>

struct condition_handle {
  struct handle handle;
  CUgraph graph;
  unsigned value, flags;
  uint64_t rest;
};
HANDLE_SIZE_CHECK(struct condition_handle);
static struct handles handles = HANDLES(struct condition_handle, 1 << 12);

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext context, unsigned value,
                                        unsigned flags) {
  ENTER(cuGraphConditionalHandleCreate);
  if (!out || !graph_valid(graph) || !context_valid(context) || flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT)
    return CUDA_ERROR_INVALID_VALUE;
  struct condition_handle *made = handle_new(&handles);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->graph = graph;
  made->value = flags ? value : 0;
  *out = (uintptr_t)made;
  return CUDA_SUCCESS;
}

static int size_is_right(const CUDA_CONDITIONAL_NODE_PARAMS *p) {
  if (p->type == CU_GRAPH_COND_TYPE_WHILE) return p->size == 1;
  if (p->type == CU_GRAPH_COND_TYPE_IF) return p->size == 1 || p->size == 2;
  return p->type == CU_GRAPH_COND_TYPE_SWITCH && p->size >= 1 && p->size <= 1 << 16;
}

static struct graph_condition *make(CUgraphConditionalNodeType type, unsigned size, unsigned value) {
  struct graph_condition *made = calloc(1, sizeof *made + size * sizeof *made->body);
  if (!made) return NULL;
  made->type = type;
  made->size = size;
  made->value = value;
  return made;
}

CUresult graph_condition_make(CUDA_CONDITIONAL_NODE_PARAMS *p, struct graph_condition **out) {
  struct condition_handle *handle = (struct condition_handle *)(uintptr_t)p->handle;
  if (!handle_valid(&handles, handle) || !size_is_right(p) || !context_valid(p->ctx)) return CUDA_ERROR_INVALID_VALUE;
  struct graph_condition *made = make(p->type, p->size, handle->value);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  for (unsigned i = 0; i < p->size; i++) {
    TRY(graph_make(&made->body[i]));
    made->body[i]->body = 1;
  }
  p->phGraph_out = made->body;
  *out = made;
  return CUDA_SUCCESS;
}

CUresult graph_condition_copy(const struct graph_condition *from, struct graph_condition **out) {
  struct graph_condition *made = make(from->type, from->size, from->value);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  for (unsigned i = 0; i < from->size; i++) TRY(graph_copy(from->body[i], &made->body[i]));
  *out = made;
  return CUDA_SUCCESS;
}

void graph_condition_drop(struct graph_condition *condition) {
  for (unsigned i = 0; i < condition->size; i++) graph_delete(condition->body[i]);
  free(condition);
}

CUgraph graph_condition_body(const struct graph_condition *condition) {
  unsigned index = condition->value;
  if (condition->type != CU_GRAPH_COND_TYPE_SWITCH) index = !condition->value;
  return index < condition->size ? condition->body[index] : NULL;
}
