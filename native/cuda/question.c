/* Questions whether work is done: the driver's, and who gets "not yet" has work under way. A program that polls says in this
 * way what others say by waiting, so that it does not lose its turn while its pages come.
 * Tests: tests/integration/test_native_turns.py. */
#include "cuda_bodies.h"
#include "driver.h"
#include "turn.h"

static inline CUresult told(CUresult answer) {
  turn_asked(answer);
  return answer;
}

CUresult vc_cuEventQuery(CUevent event) { return told(real_cuda.cuEventQuery(event)); }

CUresult vc_cuStreamQuery(CUstream stream) { return told(real_cuda.cuStreamQuery(stream)); }

CUresult vc_cuStreamQuery_ptsz(CUstream stream) { return told(real_cuda.cuStreamQuery_ptsz(stream)); }
