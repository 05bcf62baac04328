/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from a graph, before it is instantiated, what memory it will need.
 * Uses the driver's graph functions, and charges nothing. Tests: tests/integration/test_native_graph.py. */
#ifndef VC_CUDA_GRAPH_NEED_H
#define VC_CUDA_GRAPH_NEED_H

#include "graph_exec.h"

/* Fills OUT, all other fields zero. 1: the graph has allocation nodes; 0: none, or the driver does not know the graph;
 * VC_EIO: no memory to read it. */
int graph_need_read(CUgraph graph, struct graph_exec *out);

#endif
