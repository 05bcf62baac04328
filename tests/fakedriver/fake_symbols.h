/* Entry points that cuda.h does not declare: from cudaProfiler.h, which the header package does not contain.
 * Tests: tests/unit/fakedriver/test_proc_address.py. */
#ifndef FAKE_SYMBOLS_H
#define FAKE_SYMBOLS_H

#include <cuda.h>

#pragma GCC visibility push(default)
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

#endif
