/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and the time that work takes. Uses nothing of memory.
 * Tests: tests/unit/fakedriver/test_streams.py. */
#ifndef FAKE_WORK_H
#define FAKE_WORK_H

#include "fake_cuda.h"
#include "fake_handle.h"

struct CUstream_st {
  struct handle handle;
  CUcontext context;
  unsigned flags;
  int priority;
  unsigned long long id;
  _Atomic uint64_t busy_until; /* in the GPU's own time */
  CUgraph capture; /* graph that records the stream's work, NULL: none */
  unsigned long long capture_id;
  CUstreamCaptureMode capture_mode;
  uint32_t capture_broken; /* it was invalidated; only its end is left */
  const void *capture_thread;
  CUgraphNode last_captured;
  uint64_t padding[6];
};

/* The stream's own structure; the default streams have none and give NULL. CUDA_ERROR_INVALID_HANDLE: not a stream. */
CUresult stream_check(CUstream stream, CUstream *own);
/* Context of the stream's work: the stream's, or the current one for default streams. */
CUresult stream_context(CUstream stream, CUcontext *context);
CUresult event_record(CUevent event, CUstream stream);
CUresult event_wait(CUevent event, CUstream stream);
CUresult stream_synchronize(CUstream stream);
void stream_each(void (*visit)(void *stream, void *arg), void *arg);
void capture_forget(CUstream stream); /* the stream captures no longer */
CUresult capture_broken(CUstream stream, CUresult result); /* invalidates what the stream captures; RESULT */
/* Where the calling thread launched last (NULL: into a default stream), for the count of records elsewhere. */
struct stream_launched {
  CUstream into;
  int at_all;
};
extern _Thread_local struct stream_launched stream_launched __attribute__((visibility("hidden")));
void stream_drop_context(CUcontext context);
void work_reset_after_fork(void);

/* A GPU's own time (fake_time.c). 0 is an instant before all others. */
uint64_t time_now(unsigned gpu);
uint64_t time_reserve(unsigned gpu, uint64_t ns); /* NS of work behind all that this process has; when it is done */
int time_is_over(unsigned gpu, uint64_t until);
void time_wait(unsigned gpu, uint64_t until);  /* sleeps until then */
uint64_t time_real(unsigned gpu, uint64_t at); /* CLOCK_MONOTONIC of an instant that is over */

#endif
