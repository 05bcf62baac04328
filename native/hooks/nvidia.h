/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's headers as the hooks need them: every ABI version under its exported name, none renamed by a macro.
 * Uses no policy. Tests: tests/integration/test_native_exports.py (each symbol of the lists is exported). */
#ifndef VC_HOOKS_NVIDIA_H
#define VC_HOOKS_NVIDIA_H

#define __CUDA_API_VERSION_INTERNAL 1     /* stops cuda.h from renaming cuMemAlloc to cuMemAlloc_v2 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1   /* likewise in nvml.h */
#include <cuda.h>
#include <nvml.h>

/* Exported by every driver and called by nvidia-smi, declared in no header. The table begins with its size in bytes. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);

/* Declared in cudaGL.h and cudaVDPAU.h, which need the headers of OpenGL and VDPAU. A VdpDevice is 32 bits; the pointer
 * is to VDPAU's own lookup function. */
CUresult CUDAAPI cuGLCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int vdpau, void *lookup);
CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int vdpau,
                                     void *lookup);

/* The twins whose stream 0 is the thread's own are declared only for programs that are compiled to use them. */
__typeof__(cuEventRecord) cuEventRecord_ptsz;
__typeof__(cuMemAllocAsync) cuMemAllocAsync_ptsz;
__typeof__(cuMemAllocFromPoolAsync) cuMemAllocFromPoolAsync_ptsz;
__typeof__(cuMemFreeAsync) cuMemFreeAsync_ptsz;
__typeof__(cuMemPrefetchAsync) cuMemPrefetchAsync_ptsz;
__typeof__(cuMemPrefetchAsync_v2) cuMemPrefetchAsync_v2_ptsz;
__typeof__(cuStreamAttachMemAsync) cuStreamAttachMemAsync_ptsz;
__typeof__(cuStreamIsCapturing) cuStreamIsCapturing_ptsz;
__typeof__(cuStreamSynchronize) cuStreamSynchronize_ptsz;

#define VC_EXPORT __attribute__((visibility("default")))
/* A body that programs call millions of times: everything it calls becomes part of it, except what is marked noinline.
 * Layers are for readers; instructions are what a call costs. */
#define VC_HOT __attribute__((flatten))
#define VC_LIKELY(x) __builtin_expect(!!(x), 1)

#endif
