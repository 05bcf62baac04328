/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the nodes with the driver's own functions, child graphs included. The need is not the sum of the allocations:
 * the driver gives allocations of a graph that never live at once the same addresses, and maps pages to addresses, so
 * the pages under all addresses are counted once. The driver allows no memory nodes in the bodies of conditional nodes,
 * nor tells what these bodies are.
 * Tests: tests/integration/test_native_graph.py. */
#define _GNU_SOURCE
#include "graph_need.h"

#include <string.h>
#include <sys/mman.h>

#include "device.h"
#include "driver.h"
#include "graph_memory.h"
#include "ranges.h"
#include "status.h"

enum { FEW = 64 };

static int read_graph(CUgraph graph, struct ranges *ranges, struct graph_exec *out);

/* What cannot be read may be any number of bytes. */
static int deny(struct graph_exec *out) {
  out->denied |= GRAPH_UNREAD;
  return VC_OK;
}

static int read_allocation(CUgraphNode node, struct ranges *ranges, struct graph_exec *out) {
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof params);
  if (real_cuda.cuGraphMemAllocNodeGetParams == NULL) return deny(out);
  if (real_cuda.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS) return deny(out);
  CUdevice dev = device_of_location(&params.poolProps.location);
  if (dev == LOCATION_HOST) return VC_OK;
  int column = device_place_column(dev);
  if (column < 0) out->denied |= GRAPH_NO_SHARE;
  if (column < 0) return VC_OK;
  graph_memory_device((uint32_t)column, dev);
  out->columns |= UINT32_C(1) << column;
  return ranges_add(ranges, params.dptr, params.bytesize, (uint32_t)column);
}

static int read_free(CUgraphNode node, struct ranges *ranges) {
  CUdeviceptr address;
  if (real_cuda.cuGraphMemFreeNodeGetParams == NULL) return VC_OK;
  if (real_cuda.cuGraphMemFreeNodeGetParams(node, &address) != CUDA_SUCCESS) return VC_OK;
  return ranges_add_free(ranges, address);
}

static int read_child(CUgraphNode node, struct ranges *ranges, struct graph_exec *out) {
  CUgraph child;
  if (real_cuda.cuGraphChildGraphNodeGetGraph == NULL) return deny(out);
  if (real_cuda.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS) return deny(out);
  return read_graph(child, ranges, out);
}

static int read_node(CUgraphNode node, struct ranges *ranges, struct graph_exec *out) {
  CUgraphNodeType type;
  if (real_cuda.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return deny(out);
  switch ((int)type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return read_allocation(node, ranges, out);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return read_free(node, ranges);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return read_child(node, ranges, out);
    default:
      return VC_OK;
  }
}

static int read_nodes(CUgraph graph, CUgraphNode *nodes, size_t count, struct ranges *ranges, struct graph_exec *out) {
  if (real_cuda.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS) return deny(out);
  for (size_t i = 0; i < count; i++) {
    int status = read_node(nodes[i], ranges, out);
    if (status != VC_OK) return status;
  }
  return VC_OK;
}

static int read_graph(CUgraph graph, struct ranges *ranges, struct graph_exec *out) {
  CUgraphNode few[FEW];
  size_t count = 0;
  if (real_cuda.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS) return deny(out);
  if (count <= FEW) return read_nodes(graph, few, count, ranges, out);
  size_t bytes = count * sizeof *few;
  void *many = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (many == MAP_FAILED) return VC_EIO;
  int status = read_nodes(graph, many, count, ranges, out);
  munmap(many, bytes);
  return status;
}

static void sum_up(struct ranges *ranges, struct graph_exec *out) {
  ranges_sort(ranges);
  for (uint32_t column = 0; column < VC_MAX_GPUS; column++)
    if (out->columns >> column & 1)
      out->need[column] =
          (struct graph_need){ranges_cover(ranges, column, 0), ranges_cover(ranges, column, 1)};
}

int graph_need_read(CUgraph graph, struct graph_exec *out) {
  struct ranges ranges = {NULL, 0, 0};
  memset(out, 0, sizeof *out);
  int readable = real_cuda.cuGraphGetNodes != NULL && real_cuda.cuGraphNodeGetType != NULL;
  if (graph == NULL) return 0; /* the driver's own error */
  int status = readable ? read_graph(graph, &ranges, out) : deny(out);
  if (status == VC_OK && out->columns != 0) sum_up(&ranges, out);
  ranges_drop(&ranges);
  if (status != VC_OK) return status;
  return out->columns != 0 || out->denied;
}
