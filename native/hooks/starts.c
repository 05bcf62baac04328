/* SPDX-License-Identifier: Apache-2.0 */
/* See starts.h. A count goes up before the library starts NVML and down after it has ended it, so that there is no
 * moment in which NVML runs for the library and the program sees it; the program's own goes up after the driver has
 * agreed. A forked child inherits NVML's count, and these with it.
 * Tests: tests/integration/test_native_starts.py. */
#include "starts.h"

#include <stddef.h>

#include "driver.h"

_Atomic int32_t starts_ours, starts_programs;
_Thread_local int starts_inside;

int starts_take(void) {
  if (real_nvml.nvmlInit_v2 == NULL || real_nvml.nvmlShutdown == NULL) return 0;
  atomic_fetch_add(&starts_ours, 1);
  starts_inside++;
  int started = real_nvml.nvmlInit_v2() == NVML_SUCCESS;
  starts_inside--;
  if (!started) atomic_fetch_sub(&starts_ours, 1);
  return started;
}

void starts_drop(int32_t count) {
  starts_inside++;
  for (int32_t i = 0; i < count; i++) real_nvml.nvmlShutdown();
  starts_inside--;
  atomic_fetch_sub(&starts_ours, count);
}

void starts_lost(int32_t count) { atomic_fetch_sub(&starts_ours, count); }

/* NVML's versions call one another, perhaps by names that lead here. */
static nvmlReturn_t note(nvmlReturn_t result) {
  if (result == NVML_SUCCESS && starts_inside == 0) atomic_fetch_add(&starts_programs, 1);
  return result;
}

nvmlReturn_t starts_begin(nvmlReturn_t (*call)(void)) {
  starts_inside++;
  nvmlReturn_t result = call();
  starts_inside--;
  return note(result);
}

nvmlReturn_t starts_begin_with(unsigned int flags) {
  starts_inside++;
  nvmlReturn_t result = real_nvml.nvmlInitWithFlags(flags);
  starts_inside--;
  return note(result);
}

static int take_one(int32_t *left) {
  int32_t count = atomic_load(&starts_programs);
  while (count > 0)
    if (atomic_compare_exchange_weak(&starts_programs, &count, count - 1)) {
      *left = count - 1;
      return 1;
    }
  return 0;
}

nvmlReturn_t starts_end(int *last) {
  int32_t left = 0;
  *last = 0;
  if (starts_inside != 0) return real_nvml.nvmlShutdown();
  int taken = take_one(&left);
  if (!taken && atomic_load(&starts_ours) != 0) return NVML_ERROR_UNINITIALIZED;
  starts_inside++;
  nvmlReturn_t result = real_nvml.nvmlShutdown();
  starts_inside--;
  if (taken && result != NVML_SUCCESS && result != NVML_ERROR_UNINITIALIZED) atomic_fetch_add(&starts_programs, 1);
  *last = taken && result == NVML_SUCCESS && left == 0;
  return result;
}
