/* SPDX-License-Identifier: Apache-2.0 */
/* How contexts of every kind are made and ended: what context.c needs from the calls in context_made.c.
 * Uses the driver, and charges nothing. Tests: tests/integration/test_native_context.py. */
#ifndef VC_CUDA_CONTEXT_MADE_H
#define VC_CUDA_CONTEXT_MADE_H

#include "nvidia.h"

/* Creation: MAKE calls the driver, UNMAKE undoes it when the quota has no room for the result. */
struct creation {
  CUdevice dev;
  CUresult (*make)(const struct creation *creation, CUcontext *out);
  CUresult (*unmake)(const struct creation *creation, CUcontext context);
  const void *params; /* of the version or kind */
  void *more;
  int count;
  unsigned int flags;
  int makes_primary_handle; /* what MAKE returns is the primary context itself */
};

/* A context of its own. Refused with CUDA_ERROR_OUT_OF_MEMORY when it does not fit; *PCTX changes on success only. */
CUresult context_create(CUcontext *pctx, const struct creation *creation);

/* A reference to the device's primary context, charged when it is the first. */
CUresult context_retain(CUcontext *pctx, const struct creation *creation);

/* CALL gives up a reference to the primary context of DEV. ALWAYS: success means that it is gone, even if other
 * references existed. */
struct letting_go {
  CUdevice dev;
  CUresult (*call)(const struct letting_go *what);
  void *handle;
  int always;
  CUcontext part; /* of the primary context, which ends with the reference; NULL: none, or it could not be told */
};

CUresult context_let_go(const struct letting_go *what);

#endif
