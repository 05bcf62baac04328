/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, libraries and the functions in them. Uses nothing of streams.
 * Tests: tests/unit/fakedriver/test_modules.py. */
#ifndef FAKE_CODE_H
#define FAKE_CODE_H

#include "fake_cuda.h"
#include "fake_handle.h"

/* A function of a module, and also the kernel of a library: the driver takes either at a launch. */
struct CUfunc_st {
  struct handle handle;
  CUmodule module;   /* NULL for a kernel whose library is in no context yet */
  CUlibrary library; /* NULL for a plain module's function */
  const char *name;
  uint64_t run_ns; /* time one launch takes */
  int shared_bytes, cache_config;
  unsigned block[3];
  int padding;
};
extern struct handles functions;

void module_drop_context(CUcontext context);

#endif
