/* What a context costs, from NVML's view of the GPU before and after its creation.
 * Knows NVML's real functions, no quota. Tests: tests/integration/test_native_context.py, tests/native/test_growth.c. */
#ifndef VC_CUDA_MEASURE_H
#define VC_CUDA_MEASURE_H

#include "growth.h"
#include "nvidia.h"

struct measure {
  int running; /* NVML is there and answered */
  nvmlDevice_t device;
  struct growth_view before;
};

/* Loads NVML when the machine has it. Without it nothing is measured. */
void measure_begin(struct measure *measure, uint32_t column);
void measure_cancel(struct measure *measure);
/* 1: *COST is the growth since measure_begin(), 0 to 2 GiB. 0: it could not be measured and *COST is 0. */
int measure_end(struct measure *measure, uint64_t *cost);

#endif
