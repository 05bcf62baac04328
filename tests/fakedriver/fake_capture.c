/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that record their work as a graph instead of doing it.
 * Must not depend on how graphs run. Tests: tests/unit/fakedriver/test_graphs.py.
 *
 * Each piece of work depends on the one before it on the same stream. Events do not carry a capture to other
 * streams. */
#include "fake_graph.h"

static _Atomic unsigned long long last_id;
static _Thread_local CUstreamCaptureMode thread_mode; /* its address also tells the threads apart */
static _Atomic unsigned captures;                    /* streams that capture */

static CUresult add(CUstream stream, const struct node_work *work, CUgraphNode *out) {
  if (stream->capture_broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  TRY(graph_add(out, stream->capture, &stream->last_captured, stream->last_captured != NULL, work));
  stream->last_captured = *out;
  return CUDA_SUCCESS;
}

CUresult graph_capture_launch(CUstream stream, CUfunction function) {
  CUgraphNode node;
  CUDA_KERNEL_NODE_PARAMS kernel = {
      .func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
  return add(stream, &(struct node_work){.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = kernel}, &node);
}

CUresult graph_capture_copy(CUstream stream, const CUDA_MEMCPY3D *box) {
  CUgraphNode node;
  return add(stream, &(struct node_work){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *box}, &node);
}

CUresult graph_capture_fill(CUstream stream, const struct fill *fill) {
  CUgraphNode node;
  return add(stream, &(struct node_work){.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = *fill}, &node);
}

CUresult graph_capture_host(CUstream stream, CUhostFn function, void *data) {
  CUgraphNode node;
  return add(stream, &(struct node_work){.type = CU_GRAPH_NODE_TYPE_HOST, .host = {function, data}}, &node);
}

CUresult graph_capture_graph(CUstream stream, CUgraph graph) {
  CUgraphNode node;
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
  if (graph_has_memory(graph)) return CUDA_ERROR_NOT_SUPPORTED; /* a child is a clone */
  TRY(graph_copy(graph, &work.child));
  TRY(add(stream, &work, &node));
  work.child->owner = node;
  return CUDA_SUCCESS;
}

CUresult graph_capture_alloc(CUstream stream, unsigned gpu, uint64_t bytes, CUdeviceptr *out) {
  CUgraphNode node;
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  TRY(graph_memory_make(gpu, bytes, &work.memory));
  work.memory->location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_of_gpu(gpu)};
  CUresult result = add(stream, &work, &node);
  if (result == CUDA_SUCCESS) *out = work.memory->address;
  else graph_memory_drop(work.memory);
  return result;
}

CUresult graph_capture_free(CUstream stream, CUdeviceptr address) {
  CUgraphNode node;
  TRY(graph_add_free(&node, stream->capture, &stream->last_captured, stream->last_captured != NULL, address));
  stream->last_captured = node;
  return CUDA_SUCCESS;
}

/* --- what a capture forbids ------------------------------------------------------------------------------------- */

struct offence {
  CUcontext legacy; /* whose default stream is used; NULL: a call that may synchronise */
  int found;
};

static int forbids(const struct CUstream_st *stream, const struct offence *offence) {
  if (!stream->capture) return 0;
  if (offence->legacy) return stream->context == offence->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
  if (stream->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return 0;
  return stream->capture_thread == &thread_mode || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                                    stream->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void find_legacy_offence(void *item, void *arg) {
  struct offence *offence = arg;
  offence->found |= forbids(item, offence);
}

static void break_capture(void *item, void *arg) {
  CUstream stream = item;
  struct offence *offence = arg;
  if (!forbids(stream, offence)) return;
  stream->capture_broken = 1;
  offence->found = 1;
}

CUresult capture_broken(CUstream stream, CUresult result) {
  stream->capture_broken = 1;
  return result;
}

CUresult capture_forbids_unsafe(void) {
  struct offence offence = {NULL, 0};
  if (__builtin_expect(atomic_load(&captures) == 0, 1)) return CUDA_SUCCESS;
  if (thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED) stream_each(break_capture, &offence);
  return offence.found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_forbids_legacy(CUstream stream, CUcontext context) {
  struct offence offence = {context, 0};
  if (__builtin_expect(atomic_load(&captures) == 0, 1)) return CUDA_SUCCESS;
  if (stream == NULL || stream == CU_STREAM_LEGACY) stream_each(break_capture, &offence);
  return offence.found ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

void capture_forget(CUstream stream) {
  if (stream->capture) atomic_fetch_sub(&captures, 1);
  stream->capture = NULL;
}

/* --- beginning and end ------------------------------------------------------------------------------------------ */

static CUresult begin_in(CUstream stream, CUgraph graph, CUgraphNode after, CUstreamCaptureMode mode) {
  stream->capture_mode = mode;
  stream->capture_thread = &thread_mode;
  stream->capture_broken = 0;
  atomic_fetch_add(&captures, 1);
  stream->capture_id = atomic_fetch_add(&last_id, 1) + 1;
  stream->last_captured = after;
  stream->capture = graph;
  return CUDA_SUCCESS;
}

static CUresult begin(CUstream stream, CUstreamCaptureMode mode) {
  CUstream own;
  CUgraph graph;
  TRY(stream_check(stream, &own));
  if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (!own && stream != CU_STREAM_PER_THREAD) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* not the legacy stream */
  if (!own) return CUDA_ERROR_NOT_SUPPORTED; /* the simulated per-thread stream has no state */
  if (own->capture) return CUDA_ERROR_ILLEGAL_STATE;
  TRY(graph_make(&graph));
  return begin_in(own, graph, NULL, mode);
}
ENTRY_PTSZ(cuStreamBeginCapture, (CUstream stream), begin, (stream, CU_STREAM_CAPTURE_MODE_GLOBAL))
ENTRY_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), begin, (stream, mode))

static CUresult begin_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *before, size_t count,
                               const CUgraphEdgeData *data, CUstreamCaptureMode mode) {
  CUstream own;
  if (data && count && (data->type || data->from_port || data->to_port)) return CUDA_ERROR_NOT_SUPPORTED;
  if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  TRY(stream_check(stream, &own));
  if (!graph_valid(graph) || !own || count > 1 || (count && !graph_node_valid(before[0])))
    return CUDA_ERROR_INVALID_VALUE;
  return own->capture ? CUDA_ERROR_ILLEGAL_STATE : begin_in(own, graph, count ? before[0] : NULL, mode);
}
#define TO_GRAPH \
  (CUstream stream, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data, size_t count, \
   CUstreamCaptureMode mode)
ENTRY_PTSZ(cuStreamBeginCaptureToGraph, TO_GRAPH, begin_to_graph, (stream, graph, before, count, data, mode))

static CUresult end(CUstream stream, CUgraph *out) {
  CUstream own;
  NONNULL(out);
  TRY(stream_check(stream, &own));
  if (!own || !own->capture) return CUDA_ERROR_ILLEGAL_STATE;
  *out = own->capture_broken ? NULL : own->capture;
  capture_forget(own);
  return own->capture_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph *out), end, (stream, out))

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
  CUstream own;
  NONNULL(status);
  TRY(stream_check(stream, &own));
  *status = !own || !own->capture  ? CU_STREAM_CAPTURE_STATUS_NONE
            : own->capture_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if ((stream && stream != CU_STREAM_LEGACY) || atomic_load(&captures) == 0) return CUDA_SUCCESS;
  struct offence offence = {NULL, 0};
  TRY(context_current(&offence.legacy));
  stream_each(find_legacy_offence, &offence);
  return offence.found ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}
#define STATUS (CUstream stream, CUstreamCaptureStatus *status)
ENTRY(cuStreamIsCapturing, STATUS, is_capturing, (stream, status))
ENTRY(cuStreamIsCapturing_ptsz, STATUS, is_capturing, (OWN_DEFAULT(stream), status))

static CUresult info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **before, const CUgraphEdgeData **data, size_t *count) {
  CUstream own;
  TRY(is_capturing(stream, status));
  stream_check(stream, &own);
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = own->capture_id;
  if (graph) *graph = own->capture;
  if (before) *before = &own->last_captured;
  if (data) *data = NULL;
  if (count) *count = own->last_captured != NULL;
  return CUDA_SUCCESS;
}
#define INFO_1 (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
#define INFO_2 \
  (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **before, \
   size_t *count)
#define INFO_3 \
  (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **before, \
   const CUgraphEdgeData **data, size_t *count)
ENTRY_PTSZ(cuStreamGetCaptureInfo, INFO_1, info, (stream, status, id, NULL, NULL, NULL, NULL))
ENTRY_PTSZ(cuStreamGetCaptureInfo_v2, INFO_2, info, (stream, status, id, graph, before, NULL, count))
ENTRY_PTSZ(cuStreamGetCaptureInfo_v3, INFO_3, info, (stream, status, id, graph, before, data, count))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  CUstreamCaptureMode old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return CUDA_SUCCESS;
}
