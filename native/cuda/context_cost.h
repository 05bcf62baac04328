/* What a context costs, from NVML's view of the GPU before and after its creation.
 * Knows NVML's real functions, no quota. Tests: tests/integration/test_native_context.py, tests/native/test_growth.c. */
#ifndef VC_CUDA_CONTEXT_COST_H
#define VC_CUDA_CONTEXT_COST_H

#include <stdint.h>

#include "growth.h"

/* No context takes more. */
#define CONTEXT_COST_MAX (UINT64_C(2) << 30)

struct context_cost {
  int running; /* NVML is there and answered */
  uint32_t column;
  struct growth_view before;
};

/* After nvml_probe_prepare(). Without NVML nothing is measured. */
void context_cost_begin(struct context_cost *cost_of, uint32_t column);
/* Instead of context_cost_end(). */
void context_cost_drop(struct context_cost *cost_of);
/* 1: *COST is the growth since context_cost_begin(), 0 to 2 GiB. 0: it could not be measured and *COST is 0. */
int context_cost_end(struct context_cost *cost_of, uint64_t *cost);

#endif
