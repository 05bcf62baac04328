/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA functions that programs link with or are handed: each asks whether limits hold and goes to its body in this
 * directory or to the driver. No wrapper is written by hand.
 * Charges nothing itself. Tests: tests/integration/test_native_exports.py, test_native_config.py. */
#include <stdatomic.h>

#include "cuda_bodies.h"
#include "driver.h"
#include "refusal.h"
#include "runtime_state.h"

static runtime_passed passed;

enum passage { PASS_HOOK, PASS_FORWARD, PASS_REFUSE, PASS_NO_DRIVER };

static __attribute__((noinline, cold)) enum passage enter_slowly(void) {
  enum runtime_passage passage = runtime_enter();
  if (passage == RUNTIME_REFUSE) return PASS_REFUSE;
  if (!driver_cuda()) return PASS_NO_DRIVER;
  if (passage != RUNTIME_HOOK) return PASS_FORWARD;
  atomic_store_explicit(&passed, 1, memory_order_release);
  return PASS_HOOK;
}

static inline enum passage enter_limited(void) {
  return VC_LIKELY(atomic_load_explicit(&passed, memory_order_acquire)) ? PASS_HOOK : enter_slowly();
}

static inline enum passage enter_release(void) {
  enum passage passage = enter_limited();
  if (passage == PASS_REFUSE) return driver_cuda() ? PASS_FORWARD : PASS_NO_DRIVER;
  return passage;
}

static inline enum passage enter_resolve(void) {
  if (!driver_cuda()) return PASS_NO_DRIVER;
  return runtime_is_limited() ? PASS_HOOK : PASS_FORWARD;
}

/* 0: not known yet; else 1 + the passage. */
static _Atomic int shared_passage;

static __attribute__((noinline, cold)) enum passage enter_shared_slowly(void) {
  enum passage passage = enter_limited();
  if (passage == PASS_HOOK && !runtime_may_be_held()) passage = PASS_FORWARD;
  /* Forwarded although there may be shares: this thread is inside the attachment, and is answered anew next time. */
  int settled = passage == PASS_HOOK || (passage == PASS_FORWARD && !runtime_may_be_held());
  if (settled) atomic_store_explicit(&shared_passage, 1 + (int)passage, memory_order_release);
  return passage;
}

static inline enum passage enter_shared(void) {
  int known = atomic_load_explicit(&shared_passage, memory_order_acquire);
  return VC_LIKELY(known != 0) ? (enum passage)(known - 1) : enter_shared_slowly();
}

#define enter_SHARED enter_shared
#define enter_LIMITED enter_limited
#define enter_RELEASE enter_release
#define enter_RESOLVE enter_resolve

/* Whatever ends without memory is told why, once; the bodies have noted it. */
#define answer_LIMITED(result) VC_LIKELY((result) != CUDA_ERROR_OUT_OF_MEMORY) ? (result) : refusal_answer(result)
#define answer_SHARED(result) (result)
#define answer_RELEASE(result) (result)
#define answer_RESOLVE(result) (result)

#define NEED(symbol)
#define HOOK(body, symbol, params, args)                                    \
  VC_EXPORT CUresult CUDAAPI symbol params {                                \
    enum passage passage = enter_##body();                                  \
    if (passage == PASS_NO_DRIVER) return CUDA_ERROR_NO_DEVICE;             \
    if (passage == PASS_REFUSE) return CUDA_ERROR_SYSTEM_NOT_READY;         \
    if (real_cuda.symbol == NULL) return CUDA_ERROR_NOT_FOUND;              \
    if (passage != PASS_HOOK) return real_cuda.symbol args;                 \
    CUresult result = vc_##symbol args;                                     \
    return answer_##body(result);                                           \
  }
#include "cuda.def"
#undef HOOK
#undef NEED
