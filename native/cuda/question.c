/* Questions whether work is done: the driver's, and who gets "not yet" has work under way. A program that polls says in this
 * way what others say by waiting, so that it does not lose its turn while its pages come.
 * Tests: tests/integration/test_native_turns.py, test_native_share.py. */
#include "cuda_bodies.h"
#include "driver.h"
#include "guest.h"
#include "lane.h"
#include "turn.h"

static inline CUresult told(CUresult answer) {
  turn_asked(answer);
  return answer;
}

/* Of the calling thread's default stream, of which nobody else may ask. */
static inline CUresult told_thread(CUresult answer) {
  if (answer == CUDA_SUCCESS && guest_may_have_shares()) lane_thread_is_done(NULL);
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
