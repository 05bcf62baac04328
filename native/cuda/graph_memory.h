/* SPDX-License-Identifier: Apache-2.0 */
/* The device memory that the driver keeps for graphs, per process and GPU. Theory of operation in graph_memory.c.
 * Uses the driver's graph memory functions and the ledger. Tests: tests/integration/test_native_graph.py. */
#ifndef VC_CUDA_GRAPH_MEMORY_H
#define VC_CUDA_GRAPH_MEMORY_H

#include "graph_exec.h"

/* A number that two launches share only when they never run at once: of the stream, and of the thread for the stream
 * that each thread has. PER_THREAD: the call means that stream by 0. */
uint64_t graph_stream_key(CUstream stream, int per_thread);

/* 1: a launch into the stream finds all its pages mapped as its last one left them, and they stay mapped until
 * graph_memory_passed(), which must follow the launch. */
int graph_memory_pass(const struct graph_exec *exec, uint64_t stream);
void graph_memory_passed(struct graph_exec *exec, CUresult result);

/* Before a launch or upload: charges what the driver may take for it. *LOCKED: graph_memory_end() must follow.
 * CUDA_ERROR_OUT_OF_MEMORY: no room; nothing happened. */
CUresult graph_memory_begin(struct graph_exec *exec, uint64_t stream, int *locked);

/* After it: the charge becomes what the driver says that it has. */
void graph_memory_end(struct graph_exec *exec, uint64_t stream, CUresult result);

/* The graph has ended; what it left allocated stays. */
void graph_memory_forget(const struct graph_exec *exec);

/* Allocation nodes name the device; remembered for the calls that only know the column. */
void graph_memory_device(uint32_t column, CUdevice device);

/* The body of cuDeviceGraphMemTrim. */
CUresult graph_memory_trim(CUdevice device);

#endif
