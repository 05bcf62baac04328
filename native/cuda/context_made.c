/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that make and release contexts, in all their versions and kinds. OpenGL's and VDPAU's are contexts
 * like any other. A green context is a part of the primary one's processors and holds a reference to it.
 * Charges nothing itself. Tests: tests/integration/test_native_context.py, test_native_context_kinds.py. */
#include "context_made.h"

#include "cuda_bodies.h"
#include "device.h"
#include "driver.h"
#include "place.h"
#include "table.h"
#include "undeclared.h"

static CUresult destroy_made(const struct creation *creation, CUcontext context) {
  (void)creation;
  if (real_cuda.cuCtxDestroy_v2 != NULL) return real_cuda.cuCtxDestroy_v2(context);
  return real_cuda.cuCtxDestroy != NULL ? real_cuda.cuCtxDestroy(context) : CUDA_ERROR_NOT_FOUND;
}

static CUresult make_v1(const struct creation *c, CUcontext *out) {
  return real_cuda.cuCtxCreate(out, c->flags, c->dev);
}

static CUresult make_v2(const struct creation *c, CUcontext *out) {
  return real_cuda.cuCtxCreate_v2(out, c->flags, c->dev);
}

static CUresult make_v3(const struct creation *c, CUcontext *out) {
  return real_cuda.cuCtxCreate_v3(out, (CUexecAffinityParam *)(uintptr_t)c->params, c->count, c->flags, c->dev);
}

static CUresult make_v4(const struct creation *c, CUcontext *out) {
  return real_cuda.cuCtxCreate_v4(out, (CUctxCreateParams *)(uintptr_t)c->params, c->flags, c->dev);
}

static CUresult make_gl(const struct creation *c, CUcontext *out) {
  return real_cuda.cuGLCtxCreate(out, c->flags, c->dev);
}

static CUresult make_gl_v2(const struct creation *c, CUcontext *out) {
  return real_cuda.cuGLCtxCreate_v2(out, c->flags, c->dev);
}

static CUresult make_vdpau(const struct creation *c, CUcontext *out) {
  return real_cuda.cuVDPAUCtxCreate(out, c->flags, c->dev, (unsigned int)c->count, c->more);
}

static CUresult make_vdpau_v2(const struct creation *c, CUcontext *out) {
  return real_cuda.cuVDPAUCtxCreate_v2(out, c->flags, c->dev, (unsigned int)c->count, c->more);
}

CUresult vc_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  const struct creation creation = {.dev = dev, .make = make_v1, .unmake = destroy_made, .flags = flags};
  return context_create(pctx, &creation);
}

CUresult vc_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  const struct creation creation = {.dev = dev, .make = make_v2, .unmake = destroy_made, .flags = flags};
  return context_create(pctx, &creation);
}

CUresult vc_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *affinity, int count, unsigned int flags,
                           CUdevice dev) {
  const struct creation creation = {
      .dev = dev, .make = make_v3, .unmake = destroy_made, .params = affinity, .count = count, .flags = flags};
  return context_create(pctx, &creation);
}

CUresult vc_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev) {
  const struct creation creation = {
      .dev = dev, .make = make_v4, .unmake = destroy_made, .params = params, .flags = flags};
  return context_create(pctx, &creation);
}

CUresult vc_cuGLCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  const struct creation creation = {.dev = dev, .make = make_gl, .unmake = destroy_made, .flags = flags};
  return context_create(pctx, &creation);
}

CUresult vc_cuGLCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  const struct creation creation = {.dev = dev, .make = make_gl_v2, .unmake = destroy_made, .flags = flags};
  return context_create(pctx, &creation);
}

CUresult vc_cuVDPAUCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int vdpau, void *lookup) {
  const struct creation creation = {
      .dev = dev, .make = make_vdpau, .unmake = destroy_made, .more = lookup, .count = (int)vdpau, .flags = flags};
  return context_create(pctx, &creation);
}

CUresult vc_cuVDPAUCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int vdpau, void *lookup) {
  const struct creation creation = {
      .dev = dev, .make = make_vdpau_v2, .unmake = destroy_made, .more = lookup, .count = (int)vdpau, .flags = flags};
  return context_create(pctx, &creation);
}

/* --- the primary context ---------------------------------------------------------------------------------------- */

static CUresult make_primary(const struct creation *c, CUcontext *out) {
  return real_cuda.cuDevicePrimaryCtxRetain(out, c->dev);
}

static CUresult unmake_primary(const struct creation *c, CUcontext context) {
  (void)context;
  if (real_cuda.cuDevicePrimaryCtxRelease_v2 != NULL) return real_cuda.cuDevicePrimaryCtxRelease_v2(c->dev);
  if (real_cuda.cuDevicePrimaryCtxRelease != NULL) return real_cuda.cuDevicePrimaryCtxRelease(c->dev);
  return CUDA_ERROR_NOT_FOUND;
}

CUresult vc_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
  const struct creation creation = {
      .dev = dev, .make = make_primary, .unmake = unmake_primary, .makes_primary_handle = 1};
  return context_retain(pctx, &creation);
}

static CUresult release_v1(const struct letting_go *w) { return real_cuda.cuDevicePrimaryCtxRelease(w->dev); }
static CUresult release_v2(const struct letting_go *w) { return real_cuda.cuDevicePrimaryCtxRelease_v2(w->dev); }
static CUresult reset_v1(const struct letting_go *w) { return real_cuda.cuDevicePrimaryCtxReset(w->dev); }
static CUresult reset_v2(const struct letting_go *w) { return real_cuda.cuDevicePrimaryCtxReset_v2(w->dev); }

CUresult vc_cuDevicePrimaryCtxRelease(CUdevice dev) {
  return context_let_go(&(struct letting_go){.dev = dev, .call = release_v1});
}

CUresult vc_cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return context_let_go(&(struct letting_go){.dev = dev, .call = release_v2});
}

CUresult vc_cuDevicePrimaryCtxReset(CUdevice dev) {
  return context_let_go(&(struct letting_go){.dev = dev, .call = reset_v1, .always = 1});
}

CUresult vc_cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return context_let_go(&(struct letting_go){.dev = dev, .call = reset_v2, .always = 1});
}

/* --- green contexts --------------------------------------------------------------------------------------------- */

static VC_LARGE struct table green; /* handle -> device, so that the end of one is known to be the end of a reference */

static CUresult make_green(const struct creation *c, CUcontext *out) {
  return real_cuda.cuGreenCtxCreate((CUgreenCtx *)(void *)out, (CUdevResourceDesc)(uintptr_t)c->params, c->dev,
                                    c->flags);
}

static CUresult unmake_green(const struct creation *c, CUcontext context) {
  (void)c;
  return real_cuda.cuGreenCtxDestroy != NULL ? real_cuda.cuGreenCtxDestroy((CUgreenCtx)(void *)context)
                                             : CUDA_ERROR_NOT_FOUND;
}

CUresult vc_cuGreenCtxCreate(CUgreenCtx *pctx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  const struct creation creation = {
      .dev = dev, .make = make_green, .unmake = unmake_green, .params = desc, .flags = flags};
  CUresult result = context_retain((CUcontext *)(void *)pctx, &creation);
  if (result == CUDA_SUCCESS && pctx != NULL) {
    struct table_entry entry = {.key = (uintptr_t)*pctx, .bytes = 0, .owner = (uint32_t)dev}, old;
    table_put_back(&green, &entry, &old);
    int column = device_column(dev);
    if (column >= 0) undeclared_glance((uint32_t)column);
  }
  return result;
}

static CUresult destroy_green(const struct letting_go *w) { return real_cuda.cuGreenCtxDestroy(w->handle); }

CUresult vc_cuGreenCtxDestroy(CUgreenCtx ctx) {
  struct table_entry entry, old;
  if (!table_take(&green, (uintptr_t)ctx, &entry)) return real_cuda.cuGreenCtxDestroy(ctx);
  struct letting_go what = {.dev = (CUdevice)entry.owner, .call = destroy_green, .handle = ctx};
  if (real_cuda.cuCtxFromGreenCtx == NULL || real_cuda.cuCtxFromGreenCtx(&what.part, ctx) != CUDA_SUCCESS)
    what.part = NULL; /* a reset has ended it */
  CUresult result = context_let_go(&what);
  if (result != CUDA_SUCCESS) table_put_back(&green, &entry, &old);
  return result;
}

void context_made_after_fork(void) { table_reset(&green); }
