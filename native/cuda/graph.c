/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: at instantiation they are read for allocation nodes, at launch and upload those that have some are charged.
 * Everything else about graphs, capturing included, takes no memory and is not intercepted. cuGraphExecUpdate cannot
 * change what a graph needs: memory nodes must stay the same.
 * Charges nothing itself. Tests: tests/integration/test_native_graph.py. */
#include "capture.h"
#include "charge.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "graph_exec.h"
#include "graph_memory.h"
#include "graph_need.h"
#include "launch.h"

/* Of the columns that a launch takes memory in, the first: the driver does not say which it was. */
static __attribute__((noinline, cold)) void refused_by_driver(const struct graph_exec *exec) {
  uint32_t column = (uint32_t)__builtin_ctz(exec->columns);
  charge_driver_refused(column, exec->need[column].bytes);
}

static inline CUresult answered(const struct graph_exec *exec, CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY && exec->columns != 0) refused_by_driver(exec);
  return result;
}

typedef CUresult graph_call(CUgraphExec exec, CUstream stream);

static __attribute__((noinline)) CUresult run_with_memory(CUgraphExec handle, CUstream stream, graph_call *call,
                                                          int per_thread) {
  struct graph_exec *exec = graph_exec_find(handle);
  uint64_t key = graph_stream_key(stream, per_thread);
  int locked;
  if (exec == NULL || capture_is_on(stream, per_thread)) return call(handle, stream);
  if (graph_memory_pass(exec, key)) {
    CUresult result = answered(exec, call(handle, stream));
    graph_memory_passed(exec, result);
    return result;
  }
  CUresult result = graph_memory_begin(exec, key, &locked);
  if (result != CUDA_SUCCESS) return result;
  result = answered(exec, call(handle, stream));
  if (locked) graph_memory_end(exec, key, result);
  return result;
}

static CUresult run(CUgraphExec exec, CUstream stream, graph_call *call, int per_thread) {
  return graph_execs_exist() ? run_with_memory(exec, stream, call, per_thread) : call(exec, stream);
}

/* A whole graph is throttled like one kernel. */
static CUresult launch(CUgraphExec exec, CUstream stream, graph_call *call, int per_thread) {
  if (!runtime_may_be_held()) return run(exec, stream, call, per_thread);
  struct stream_state *state = launch_begin(stream, per_thread);
  return launch_end(state, run(exec, stream, call, per_thread));
}

CUresult vc_cuGraphLaunch(CUgraphExec exec, CUstream stream) { return launch(exec, stream, real_cuda.cuGraphLaunch, 0); }

CUresult vc_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(exec, stream, real_cuda.cuGraphLaunch_ptsz, 1);
}

CUresult vc_cuGraphUpload(CUgraphExec exec, CUstream stream) { return run(exec, stream, real_cuda.cuGraphUpload, 0); }

CUresult vc_cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return run(exec, stream, real_cuda.cuGraphUpload_ptsz, 1);
}

/* The driver made HANDLE. */
static CUresult remember(CUgraphExec handle, const struct graph_exec *need) {
  if (graph_exec_add(handle, need) == VC_OK) return CUDA_SUCCESS;
  if (real_cuda.cuGraphExecDestroy != NULL) real_cuda.cuGraphExecDestroy(handle);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A graph without memory may get the handle of one that went with its context. */
static CUresult made_without_memory(CUresult result, const CUgraphExec *exec) {
  if (result == CUDA_SUCCESS && graph_execs_exist()) graph_exec_forget(*exec);
  return result;
}

/* Sets RESULT. The graph is read first: the call may upload it. */
#define INSTANTIATE(result, symbol, ...)                                            \
  do {                                                                              \
    struct graph_exec need;                                                         \
    CUgraphExec made = NULL;                                                        \
    int has_memory = exec != NULL ? graph_need_read(graph, &need) : 0;              \
    if (has_memory < 0) {                                                           \
      (result) = CUDA_ERROR_OUT_OF_MEMORY;                                          \
    } else if (!has_memory) {                                                       \
      (result) = real_cuda.symbol(exec, graph, __VA_ARGS__);                        \
      made_without_memory((result), exec);                                          \
    } else {                                                                        \
      (result) = real_cuda.symbol(&made, graph, __VA_ARGS__);                       \
      if ((result) == CUDA_SUCCESS) (result) = remember(made, &need);               \
      if ((result) == CUDA_SUCCESS) *exec = made;                                   \
    }                                                                               \
  } while (0)

CUresult vc_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size) {
  CUresult result;
  INSTANTIATE(result, cuGraphInstantiate, node, log, size);
  return result;
}

CUresult vc_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size) {
  CUresult result;
  INSTANTIATE(result, cuGraphInstantiate_v2, node, log, size);
  return result;
}

CUresult vc_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  CUresult result;
  INSTANTIATE(result, cuGraphInstantiateWithFlags, flags);
  return result;
}

typedef CUresult params_call(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params);

/* Instantiates and uploads in one call. */
static CUresult upload(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                       struct graph_exec *need, params_call *call, int per_thread) {
  uint64_t key = graph_stream_key(params->hUploadStream, per_thread);
  int locked;
  CUresult result = graph_memory_begin(need, key, &locked);
  if (result != CUDA_SUCCESS) {
    params->hErrNode_out = NULL;
    params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
  }
  result = answered(need, call(made, graph, params));
  if (result == CUDA_SUCCESS) result = remember(*made, need);
  if (locked) graph_memory_end(result == CUDA_SUCCESS ? graph_exec_find(*made) : need, key, result);
  return result;
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                                 params_call *call, int per_thread) {
  struct graph_exec need;
  CUgraphExec made = NULL;
  int has_memory = exec != NULL && params != NULL ? graph_need_read(graph, &need) : 0;
  if (has_memory < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!has_memory) return made_without_memory(call(exec, graph, params), exec);
  CUresult result;
  if (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
    result = upload(&made, graph, params, &need, call, per_thread);
  } else {
    result = call(&made, graph, params);
    if (result == CUDA_SUCCESS) result = remember(made, &need);
  }
  if (result == CUDA_SUCCESS) *exec = made;
  return result;
}

CUresult vc_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return instantiate_with(exec, graph, params, real_cuda.cuGraphInstantiateWithParams, 0);
}

CUresult vc_cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return instantiate_with(exec, graph, params, real_cuda.cuGraphInstantiateWithParams_ptsz, 1);
}

/* Its pages stay with the driver until they are trimmed, and so does their charge. */
CUresult vc_cuGraphExecDestroy(CUgraphExec exec) {
  struct graph_exec *record = graph_execs_exist() ? graph_exec_take(exec) : NULL;
  CUresult result = real_cuda.cuGraphExecDestroy(exec);
  if (record == NULL) return result;
  if (result == CUDA_SUCCESS) {
    graph_memory_forget(record);
    graph_exec_drop(record);
  } else {
    graph_exec_put_back(exec, record);
  }
  return result;
}

CUresult vc_cuDeviceGraphMemTrim(CUdevice dev) { return graph_memory_trim(dev); }
