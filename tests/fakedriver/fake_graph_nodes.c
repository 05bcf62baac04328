/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of nodes: adding them and reading and changing their parameters.
 * Must not depend on how they run. Tests: tests/unit/fakedriver/test_graphs.py. */
#include "fake_code.h"
#include "fake_graph.h"

#define PLACE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count
#define AT out, graph, before, count

/* --- kernels ---------------------------------------------------------------------------------------------------- */

static CUresult check_kernel(CUDA_KERNEL_NODE_PARAMS *p) {
  if (!p->func && p->kern) p->func = (CUfunction)p->kern;
  if (!handle_valid(&functions, p->func)) return CUDA_ERROR_INVALID_VALUE;
  if (!p->gridDimX || !p->gridDimY || !p->gridDimZ || !p->blockDimX || !p->blockDimY || !p->blockDimZ ||
      (uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  p->kernelParams = p->extra = NULL; /* arguments are the caller's to keep, and are not read here */
  return CUDA_SUCCESS;
}

CUresult graph_kernel_work(const void *params, size_t size, struct node_work *work) {
  NONNULL(params);
  *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_KERNEL};
  memcpy(&work->kernel, params, size); /* the first ABI's structure is the beginning of the second's */
  return check_kernel(&work->kernel);
}

static CUresult add_kernel(PLACE, const void *params, size_t size) {
  struct node_work work;
  TRY(graph_kernel_work(params, size, &work));
  return graph_add(AT, &work);
}
ENTRY(cuGraphAddKernelNode, (PLACE, const CUDA_KERNEL_NODE_PARAMS_v1 *p), add_kernel, (AT, p, sizeof *p))
ENTRY(cuGraphAddKernelNode_v2, (PLACE, const CUDA_KERNEL_NODE_PARAMS *p), add_kernel, (AT, p, sizeof *p))

static CUresult node_of(CUgraphNode node, CUgraphNodeType type, const void *params) {
  return params && graph_node_valid(node) && node->work->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_kernel(CUgraphNode node, void *params, size_t size) {
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_KERNEL, params));
  memcpy(params, &node->work->kernel, size);
  return CUDA_SUCCESS;
}
ENTRY(cuGraphKernelNodeGetParams, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *p), get_kernel, (node, p, sizeof *p))
ENTRY(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *p), get_kernel, (node, p, sizeof *p))

static CUresult set_kernel(CUgraphNode node, const void *params, size_t size) {
  struct node_work work;
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_KERNEL, params));
  TRY(graph_kernel_work(params, size, &work));
  *node->work = work;
  return CUDA_SUCCESS;
}
ENTRY(cuGraphKernelNodeSetParams, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p), set_kernel,
      (node, p, sizeof *p))
ENTRY(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p), set_kernel,
      (node, p, sizeof *p))

/* --- copies, fills, host functions ------------------------------------------------------------------------------ */

static CUresult add_copy(PLACE, const CUDA_MEMCPY3D *box) {
  NONNULL(box);
  return graph_add(AT, &(struct node_work){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *box});
}
ENTRY(cuGraphAddMemcpyNode, (PLACE, const CUDA_MEMCPY3D *box, CUcontext context), add_copy,
      (AT, context_valid(context) ? box : NULL))

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *box) {
  ENTER(cuGraphMemcpyNodeGetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEMCPY, box));
  *box = node->work->copy;
  return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *box) {
  ENTER(cuGraphMemcpyNodeSetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEMCPY, box));
  node->work->copy = *box;
  return CUDA_SUCCESS;
}

static struct fill fill_of(const CUDA_MEMSET_NODE_PARAMS *p) {
  return (struct fill){.address = p->dst,
                       .pitch = p->height > 1 ? p->pitch : 0,
                       .value = p->value,
                       .element = p->elementSize,
                       .width = p->width,
                       .height = p->height};
}

static CUresult add_fill(PLACE, const CUDA_MEMSET_NODE_PARAMS *p) {
  if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4)) return CUDA_ERROR_INVALID_VALUE;
  return graph_add(AT, &(struct node_work){.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = fill_of(p)});
}
ENTRY(cuGraphAddMemsetNode, (PLACE, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context), add_fill,
      (AT, context_valid(context) ? p : NULL))

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *p) {
  ENTER(cuGraphMemsetNodeGetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEMSET, p));
  const struct fill *f = &node->work->fill;
  *p = (CUDA_MEMSET_NODE_PARAMS){.dst = f->address,
                                 .pitch = f->pitch,
                                 .value = f->value,
                                 .elementSize = f->element,
                                 .width = f->width,
                                 .height = f->height};
  return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p) {
  ENTER(cuGraphMemsetNodeSetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEMSET, p));
  node->work->fill = fill_of(p);
  return CUDA_SUCCESS;
}

static CUresult add_host(PLACE, CUhostFn function, void *data) {
  NONNULL(function);
  return graph_add(AT,
                   &(struct node_work){.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.fn = function, .userData = data}});
}
ENTRY(cuGraphAddHostNode, (PLACE, const CUDA_HOST_NODE_PARAMS *p), add_host,
      (AT, p ? p->fn : NULL, p ? p->userData : NULL))

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *p) {
  ENTER(cuGraphHostNodeGetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_HOST, p));
  *p = node->work->host;
  return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
  ENTER(cuGraphHostNodeSetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_HOST, p));
  node->work->host = *p;
  return CUDA_SUCCESS;
}

/* --- nothing, graphs, events ------------------------------------------------------------------------------------ */

static CUresult add_empty(PLACE) { return graph_add(AT, &(struct node_work){.type = CU_GRAPH_NODE_TYPE_EMPTY}); }
ENTRY(cuGraphAddEmptyNode, (PLACE), add_empty, (AT))

/* Memory nodes come into a child only when the whole graph moves there. */
static CUresult add_child(PLACE, CUgraph child, int move) {
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = child};
  if (!graph_valid(child) || child->owner || child == graph) return CUDA_ERROR_INVALID_VALUE;
  if (graph_has_memory(child) && (!move || child->instantiated)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!move) TRY(graph_copy(child, &work.child));
  TRY(graph_add(AT, &work));
  work.child->owner = *out;
  return CUDA_SUCCESS;
}
ENTRY(cuGraphAddChildGraphNode, (PLACE, CUgraph child), add_child, (AT, child, 0))

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
  ENTER(cuGraphChildGraphNodeGetGraph);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_GRAPH, graph));
  *graph = node->work->child;
  return CUDA_SUCCESS;
}

static CUresult add_event(PLACE, CUevent event, CUgraphNodeType type) {
  NONNULL(event);
  return graph_add(AT, &(struct node_work){.type = type, .event = event});
}
ENTRY(cuGraphAddEventRecordNode, (PLACE, CUevent event), add_event, (AT, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD))
ENTRY(cuGraphAddEventWaitNode, (PLACE, CUevent event), add_event, (AT, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT))

/* --- memory ----------------------------------------------------------------------------------------------------- */

/* A device, or a locality domain of one; -1: neither. */
static CUdevice device_of(const CUmemLocation *location) {
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return location->id;
  return location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN ? location->localized.deviceId : -1;
}

static CUresult add_alloc(PLACE, const CUmemPoolProps *props, size_t bytes, CUdeviceptr *address) {
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  if (!bytes || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || props->handleTypes)
    return CUDA_ERROR_INVALID_VALUE;
  CUdevice device = device_of(&props->location);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_VALUE;
  unsigned gpu = device_gpu[device];
  work.memory = graph_memory_reusable(graph, before, count, gpu, bytes);
  if (work.memory) graph_memory_retain(work.memory);
  else TRY(graph_memory_make(gpu, bytes, &work.memory));
  work.memory->location = props->location;
  CUresult result = graph_add(AT, &work);
  if (result == CUDA_SUCCESS) *address = work.memory->address;
  else graph_memory_drop(work.memory);
  return result;
}

CUresult cuGraphAddMemAllocNode(PLACE, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
  ENTER(cuGraphAddMemAllocNode);
  NONNULL(p);
  return add_alloc(AT, &p->poolProps, p->bytesize, &p->dptr);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
  ENTER(cuGraphMemAllocNodeGetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, p));
  memset(p, 0, sizeof *p);
  p->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p->poolProps.location = node->work->memory->location;
  p->bytesize = node->work->memory->bytes;
  p->dptr = node->work->memory->address;
  return CUDA_SUCCESS;
}

CUresult graph_add_free(PLACE, CUdeviceptr address) {
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = graph_memory_at(address)};
  if (!work.memory) return CUDA_ERROR_INVALID_VALUE;
  graph_memory_retain(work.memory);
  CUresult result = graph_add(AT, &work);
  if (result != CUDA_SUCCESS) graph_memory_drop(work.memory);
  return result;
}
ENTRY(cuGraphAddMemFreeNode, (PLACE, CUdeviceptr address), graph_add_free, (AT, address))

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address) {
  ENTER(cuGraphMemFreeNodeGetParams);
  TRY(node_of(node, CU_GRAPH_NODE_TYPE_MEM_FREE, address));
  *address = node->work->memory->address;
  return CUDA_SUCCESS;
}

static CUresult add_condition(PLACE, CUDA_CONDITIONAL_NODE_PARAMS *p) {
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  TRY(graph_condition_make(p, &work.condition));
  return graph_add(AT, &work);
}

/* --- any kind --------------------------------------------------------------------------------------------------- */

static CUresult add_any(PLACE, CUgraphNodeParams *p) {
  NONNULL(p);
  switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return add_kernel(AT, &p->kernel, sizeof(CUDA_KERNEL_NODE_PARAMS));
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return add_copy(AT, &p->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return add_fill(AT, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset);
    case CU_GRAPH_NODE_TYPE_HOST:
      return add_host(AT, p->host.fn, p->host.userData);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return add_child(AT, p->graph.graph, p->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return add_empty(AT);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return add_event(AT, p->eventRecord.event, p->type);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return add_event(AT, p->eventWait.event, p->type);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return add_alloc(AT, &p->alloc.poolProps, p->alloc.bytesize, &p->alloc.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return graph_add_free(AT, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return add_condition(AT, &p->conditional);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
ENTRY(cuGraphAddNode, (PLACE, CUgraphNodeParams *p), add_any, (AT, p))

CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data,
                           size_t count, CUgraphNodeParams *p) {
  ENTER(cuGraphAddNode_v2);
  for (size_t i = 0; data && i < count; i++)
    if (data[i].type || data[i].from_port || data[i].to_port) return CUDA_ERROR_NOT_SUPPORTED;
  return add_any(AT, p);
}
