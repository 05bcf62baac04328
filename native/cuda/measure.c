/* Two looks at the GPU; growth.c tells what of the difference is ours. In a container NVML may name every process of the
 * host by its host PID, and our own is not known there.
 * Knows no quota. Tests: tests/integration/test_native_context.py. */
#include "measure.h"

#include "excess.h"
#include "gauge.h"
#include "os.h"
#include "view.h"

void measure_begin(struct measure *measure, uint32_t column) {
  measure->column = column;
  measure->running = gauge_look(column, &measure->before);
}

void measure_drop(struct measure *measure) {
  if (measure->running) gauge_drop(&measure->before);
  measure->running = 0;
}

int measure_end(struct measure *measure, uint64_t *cost) {
  struct growth_view after;
  *cost = 0;
  if (!measure->running) return 0;
  int seen = gauge_look(measure->column, &after);
  if (seen) {
    excess_learn(&measure->before, &after);
    *cost = growth_of((uint32_t)os_pid(), &measure->before, &after);
    gauge_drop(&after);
  }
  measure_drop(measure);
  if (!seen) return 0;
  if (*cost > MEASURE_MAX) *cost = MEASURE_MAX;
  *cost = (*cost + VIEW_GRAIN - 1) & ~(uint64_t)(VIEW_GRAIN - 1);
  return 1;
}
