/* Copies and fills: they touch pages, so they wait for their container's time slice like kernels, and go to the driver
 * unchanged otherwise. Many of them return when they are done, and so are busy meanwhile.
 * Tests: tests/integration/test_native_time_slices.py. */
#include <string.h>

#include "cuda_bodies.h"
#include "driver.h"
#include "time_slice.h"

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
