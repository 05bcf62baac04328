/* Reads NVML twice; growth.c tells what of the difference is this process's. In a container NVML may name every process
 * of the host by its host PID, and the own one is not known there.
 * Knows no quota. Tests: tests/integration/test_native_context.py. */
#include "context_cost.h"

#include "undeclared.h"
#include "nvml_probe.h"
#include "os.h"
#include "view.h"

void context_cost_begin(struct context_cost *cost_of, uint32_t column) {
  cost_of->column = column;
  cost_of->running = nvml_probe_read(column, &cost_of->before);
}

void context_cost_drop(struct context_cost *cost_of) {
  if (cost_of->running) nvml_probe_drop(&cost_of->before);
  cost_of->running = 0;
}

int context_cost_end(struct context_cost *cost_of, uint64_t *cost) {
  struct growth_view after;
  *cost = 0;
  if (!cost_of->running) return 0;
  int seen = nvml_probe_read(cost_of->column, &after);
  if (seen) {
    undeclared_learn(&cost_of->before, &after);
    *cost = growth_of((uint32_t)os_pid(), &cost_of->before, &after);
    nvml_probe_drop(&after);
  }
  context_cost_drop(cost_of);
  if (!seen) return 0;
  if (*cost > CONTEXT_COST_MAX) *cost = CONTEXT_COST_MAX;
  *cost = (*cost + VIEW_GRAIN - 1) & ~(uint64_t)(VIEW_GRAIN - 1);
  return 1;
}
