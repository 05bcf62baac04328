/* SPDX-License-Identifier: Apache-2.0 */
/* The NVML functions that programs link with or are handed (see native/cuda/exports.c), and the bodies of those that
 * start and end NVML.
 * Decides no numbers. Tests: tests/integration/test_native_exports.py, test_native_config.py, test_native_starts.py. */
#include <stdatomic.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "nvml_probe.h"
#include "runtime_state.h"
#include "starts.h"

/* The program's starts and ends of NVML. Its last end is the library's too: handles that it kept mean nothing then, as
 * without the library. The next reading starts NVML again. */
nvmlReturn_t vc_nvmlInit(void) { return starts_begin(real_nvml.nvmlInit); }

nvmlReturn_t vc_nvmlInit_v2(void) { return starts_begin(real_nvml.nvmlInit_v2); }

nvmlReturn_t vc_nvmlInitWithFlags(unsigned int flags) { return starts_begin_with(flags); }

nvmlReturn_t vc_nvmlShutdown(void) {
  int last;
  nvmlReturn_t result = starts_end(&last);
  if (last) nvml_probe_stop();
  return result;
}

static runtime_passed passed;

enum passage { PASS_HOOK, PASS_FORWARD, PASS_REFUSE, PASS_NO_DRIVER };

static __attribute__((noinline, cold)) enum passage enter_slowly(void) {
  enum runtime_passage passage = runtime_enter();
  if (passage == RUNTIME_REFUSE) return PASS_REFUSE;
  if (!driver_nvml()) return PASS_NO_DRIVER;
  if (passage != RUNTIME_HOOK) return PASS_FORWARD;
  atomic_store_explicit(&passed, 1, memory_order_release);
  return PASS_HOOK;
}

static inline enum passage enter_LIMITED(void) {
  return VC_LIKELY(atomic_load_explicit(&passed, memory_order_acquire)) ? PASS_HOOK : enter_slowly();
}

static inline enum passage enter_ANYTIME(void) { return enter_LIMITED(); }

/* No limit matters to these, and a process that only reads NVML's version is not attached for it. */
static inline enum passage enter_START(void) { return driver_nvml() ? PASS_HOOK : PASS_NO_DRIVER; }
static inline enum passage enter_STARTED(void) { return enter_START(); }

#define WHEN_STARTED(call) (starts_may_pass() ? (call) : NVML_ERROR_UNINITIALIZED)
#define BODY_LIMITED(symbol, args) WHEN_STARTED(vc_##symbol args)
#define BODY_ANYTIME(symbol, args) vc_##symbol args
#define BODY_START(symbol, args) vc_##symbol args
#define BODY_STARTED(symbol, args) WHEN_STARTED(real_nvml.symbol args)

#define NEED(symbol)
#define HOOK(body, symbol, params, args)                                    \
  VC_EXPORT nvmlReturn_t DECLDIR symbol params {                            \
    enum passage passage = enter_##body();                                  \
    if (passage == PASS_NO_DRIVER) return NVML_ERROR_LIBRARY_NOT_FOUND;     \
    if (passage == PASS_REFUSE) return NVML_ERROR_NOT_READY;                \
    if (real_nvml.symbol == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;     \
    return passage == PASS_HOOK ? BODY_##body(symbol, args) : real_nvml.symbol args; \
  }
#include "nvml.def"
#undef HOOK
#undef NEED
