/* SPDX-License-Identifier: Apache-2.0 */
/* Starts of NVML, the library's and the program's apart. NVML counts its users in the process, and this library is one
 * of them while it measures. The program sees its own starts alone: without one NVML is not initialised for it, its
 * last nvmlShutdown() ends NVML, and one more than that ends nothing. Uses no function but nvmlInit and nvmlShutdown.
 * Tests: tests/integration/test_native_starts.py. */
#ifndef VC_HOOKS_STARTS_H
#define VC_HOOKS_STARTS_H

#include <stdatomic.h>
#include <stdint.h>

#include "nvidia.h"

/* Starts that stand: of the library and of the program. */
extern _Atomic int32_t starts_ours __attribute__((visibility("hidden")));
extern _Atomic int32_t starts_programs __attribute__((visibility("hidden")));
/* This thread is inside NVML, or calls it for the library: what comes by here is not the program's call. */
extern _Thread_local int starts_inside __attribute__((visibility("hidden")));

/* Whether a call of the program may go on to the driver, which decides while the library has not started it. */
static inline int starts_may_pass(void) {
  return atomic_load_explicit(&starts_ours, memory_order_relaxed) == 0 || starts_inside != 0 ||
         atomic_load_explicit(&starts_programs, memory_order_relaxed) > 0;
}

/* Starts NVML for the library. 1: until starts_drop(1). After driver_nvml(). */
int starts_take(void);
void starts_drop(int32_t count);
/* So many of them are gone, as a call of the driver has shown. */
void starts_lost(int32_t count);

/* For the program. */
nvmlReturn_t starts_begin(nvmlReturn_t (*call)(void));
nvmlReturn_t starts_begin_with(unsigned int flags);
/* *LAST: it was the program's last. */
nvmlReturn_t starts_end(int *last);

#endif
