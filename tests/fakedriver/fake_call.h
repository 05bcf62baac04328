/* SPDX-License-Identifier: Apache-2.0 */
/* What every entry point does first: check whether something was ordered for this call (a failure, a latency,
 * counting). Costs two loads when nothing was. Uses no CUDA and no NVML beyond the names in the .def files.
 * Tests: tests/unit/fakedriver/test_control.py. */
#ifndef FAKE_CALL_H
#define FAKE_CALL_H

#include <stdint.h>

enum fake_call {
#define SYMBOL(symbol, name, version, stream, early) CALL_##symbol,
#include "cuda.def"
#undef SYMBOL
  CALLS_CUDA_END,
#define SYMBOL(symbol, early) CALL_##symbol,
#include "nvml.def"
#undef SYMBOL
  CALLS_END
};

/* Not 0: call_enter_slowly has something to do. Points to a constant 1 until the library is initialised. */
extern const volatile uint32_t *call_armed;

/* 0: go on; else the code to return at once. NOT_READY is returned when the library is not initialised and the call
 * needs that. */
int call_enter_slowly(unsigned call, int not_ready);

#define CALL_ENTER(symbol, not_ready) \
  do { \
    if (__builtin_expect(*call_armed != 0, 0)) { \
      int ordered_ = call_enter_slowly(CALL_##symbol, not_ready); \
      if (ordered_) return ordered_; \
    } \
  } while (0)

/* The state is attached: read the latencies, and let calls through. PREFIX: of the names this library knows. 0 or -1
 * with one line on stderr. */
int call_ready(const char *prefix);
void call_not_ready(void);

const char *call_name(unsigned call);
int call_find(const char *name); /* -1: no such entry point */

#endif
