/* What a context costs, from NVML's view of the GPU before and after its creation.
 * Knows NVML's real functions, no quota. Tests: tests/integration/test_native_context.py, tests/native/test_growth.c. */
#ifndef VC_CUDA_MEASURE_H
#define VC_CUDA_MEASURE_H

#include <stdint.h>

#include "growth.h"

/* No context takes more. */
#define MEASURE_MAX (UINT64_C(2) << 30)

struct measure {
  int running; /* NVML is there and answered */
  uint32_t column;
  struct growth_view before;
};

/* After gauge_prepare(). Without NVML nothing is measured. */
void measure_begin(struct measure *measure, uint32_t column);
/* Instead of measure_end(). */
void measure_drop(struct measure *measure);
/* 1: *COST is the growth since measure_begin(), 0 to 2 GiB. 0: it could not be measured and *COST is 0. */
int measure_end(struct measure *measure, uint64_t *cost);

#endif
