/* Queries whether work is done go to the driver; the answer "not yet" means that work is under way. A program that
 * polls so counts as busy like one that waits, so that it does not lose its time slice while its pages come.
 * Tests: tests/integration/test_native_time_slices.py, test_native_share.py. */
#include "cuda_bodies.h"
#include "driver.h"
#include "runtime_state.h"
#include "stream_state.h"
#include "time_slice.h"

static inline CUresult told(CUresult answer) {
  time_slice_queried(answer);
  return answer;
}

/* Of the calling thread's default stream, which only that thread may query. */
static inline CUresult told_thread(CUresult answer) {
  if (answer == CUDA_SUCCESS && runtime_may_have_shares()) stream_thread_is_done(NULL);
  return told(answer);
}

CUresult vc_cuEventQuery(CUevent event) { return told(real_cuda.cuEventQuery(event)); }

CUresult vc_cuStreamQuery(CUstream stream) {
  CUresult answer = real_cuda.cuStreamQuery(stream);
  return stream == CU_STREAM_PER_THREAD ? told_thread(answer) : told(answer);
}

CUresult vc_cuStreamQuery_ptsz(CUstream stream) {
  CUresult answer = real_cuda.cuStreamQuery_ptsz(stream);
  return stream == NULL || stream == CU_STREAM_PER_THREAD ? told_thread(answer) : told(answer);
}
