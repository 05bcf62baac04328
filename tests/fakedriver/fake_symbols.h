/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points that cuda.h does not declare: from cudaProfiler.h, which the header package does not contain, and from
 * cudaGL.h and cudaVDPAU.h, which need the headers of OpenGL and VDPAU.
 * Tests: tests/unit/fakedriver/test_proc_address.py. */
#ifndef FAKE_SYMBOLS_H
#define FAKE_SYMBOLS_H

#include <cuda.h>

#pragma GCC visibility push(default)
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
CUresult cuGLCtxCreate(CUcontext *out, unsigned flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext *out, unsigned flags, CUdevice device, unsigned vdpau, void *lookup);
CUresult cuVDPAUCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device, unsigned vdpau, void *lookup);
#pragma GCC visibility pop

#endif
