/* SPDX-License-Identifier: Apache-2.0 */
/* Work that goes into streams. Kernel launches in every form: each finds the stream state of its stream, is throttled
 * where it has to be, and is noted when the driver took it. Copies and fills touch pages, so they wait for their
 * container's time slice like kernels, and go to the driver unchanged otherwise. What becomes a node of a graph costs
 * nothing until the graph is launched (graph.c).
 * Tests: tests/integration/test_native_share.py. */
#include "launch.h"

#include <string.h>

#include "cuda_bodies.h"
#include "driver.h"

#define LAUNCH(stream, per_thread, call)                 \
  struct stream_state *state = launch_begin(stream, per_thread);  \
  return launch_end(state, real_cuda.call)

CUresult vc_cuLaunch(CUfunction f) { LAUNCH(NULL, 0, cuLaunch(f)); }

CUresult vc_cuLaunchGrid(CUfunction f, int width, int height) { LAUNCH(NULL, 0, cuLaunchGrid(f, width, height)); }

CUresult vc_cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  LAUNCH(stream, 0, cuLaunchGridAsync(f, width, height, stream));
}

#define KERNEL(symbol, per_thread)                                                                              \
  CUresult vc_##symbol(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,        \
                       unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params,   \
                       void **extra) {                                                                          \
    LAUNCH(stream, per_thread, symbol(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));               \
  }
KERNEL(cuLaunchKernel, 0)
KERNEL(cuLaunchKernel_ptsz, 1)

#define EXTENDED(symbol, per_thread)                                                               \
  CUresult vc_##symbol(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {  \
    if (config == NULL) return real_cuda.symbol(config, f, params, extra);                         \
    LAUNCH(config->hStream, per_thread, symbol(config, f, params, extra));                         \
  }
EXTENDED(cuLaunchKernelEx, 0)
EXTENDED(cuLaunchKernelEx_ptsz, 1)

#define COOPERATIVE(symbol, per_thread)                                                                          \
  CUresult vc_##symbol(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,         \
                       unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params) {  \
    LAUNCH(stream, per_thread, symbol(f, gx, gy, gz, bx, by, bz, shared, stream, params));                       \
  }
COOPERATIVE(cuLaunchCooperativeKernel, 0)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, 1)

/* Streams of several devices, none of them a default stream. */
CUresult vc_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
  for (unsigned int i = 0; list != NULL && i < count; i++) launch_begin(list[i].hStream, 0);
  CUresult result = real_cuda.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
  for (unsigned int i = 0; list != NULL && i < count; i++) launch_end(stream_state_find(list[i].hStream, 0), result);
  return result;
}

/* --- calls that a poll must not meet -------------------------------------------------------------------------- */

#define UNSEEN(symbol, params, args)         \
  CUresult vc_##symbol params {              \
    stream_polls_block();                            \
    CUresult result = real_cuda.symbol args; \
    stream_polls_unblock();                        \
    return result;                           \
  }
UNSEEN(cuStreamBeginCapture, (CUstream stream), (stream))
UNSEEN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
UNSEEN(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
UNSEEN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
UNSEEN(cuStreamBeginCaptureToGraph,
       (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
        CUstreamCaptureMode mode),
       (stream, graph, after, edges, count, mode))
UNSEEN(cuStreamBeginCaptureToGraph_ptsz,
       (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
        CUstreamCaptureMode mode),
       (stream, graph, after, edges, count, mode))

UNSEEN(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *params), (stream, params))
UNSEEN(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, CUstreamCigCaptureParams *params), (stream, params))
UNSEEN(cuStreamBeginRecaptureToGraph,
       (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data),
       (stream, mode, graph, callback, data))
UNSEEN(cuStreamBeginRecaptureToGraph_ptsz,
       (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data),
       (stream, mode, graph, callback, data))

/* The work of a stream that is destroyed goes on, but the stream cannot be asked about it any more: its last fence
 * tells. */
static CUresult destroy(CUstream stream, CUresult (*call)(CUstream)) {
  stream_polls_block();
  struct stream_state *state = stream_state_before_end(stream);
  CUresult result = call(stream);
  stream_state_after_end(state, result == CUDA_SUCCESS);
  stream_polls_unblock();
  return result;
}

CUresult vc_cuStreamDestroy(CUstream stream) { return destroy(stream, real_cuda.cuStreamDestroy); }

CUresult vc_cuStreamDestroy_v2(CUstream stream) { return destroy(stream, real_cuda.cuStreamDestroy_v2); }

/* --- copies and fills: many of them return when they are done, and so are busy meanwhile -------------------------- */

/* A call without a stream of its own goes into the default one; a parameter of the same name takes its place. */
static CUstream const stream = NULL;

static inline int ends_with(const char *name, size_t length, const char *end) {
  return length > 5 && memcmp(name + length - 5, end, 5) == 0;
}

#define PER_THREAD(symbol) \
  (ends_with(#symbol, sizeof #symbol - 1, "_ptsz") || ends_with(#symbol, sizeof #symbol - 1, "_ptds"))

#define HOOK(body, symbol, params, args)      \
  CUresult vc_##symbol params {               \
    time_slice_enter(stream, PER_THREAD(symbol));    \
    time_slice_busy(1);                             \
    CUresult result = real_cuda.symbol args;  \
    time_slice_busy(0);                             \
    return result;                            \
  }
#include "cuda/copy.def"
#undef HOOK
