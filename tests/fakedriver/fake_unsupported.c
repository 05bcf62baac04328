/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points that exist, so that programs which look them up find them, and say that this driver cannot do it.
 * Must not do anything. Tests: tests/unit/fakedriver/test_proc_address.py. */
#include "fake_cuda.h"

#define UNSUPPORTED(symbol, parameters) \
  CUresult symbol parameters { \
    ENTER(symbol); \
    return CUDA_ERROR_NOT_SUPPORTED; \
  }

UNSUPPORTED(cuExternalMemoryGetMappedMipmappedArray,
            (CUmipmappedArray *, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *))
UNSUPPORTED(cuImportExternalSemaphore, (CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *))
UNSUPPORTED(cuDestroyExternalSemaphore, (CUexternalSemaphore))
#define SEMAPHORES(kind) \
  (const CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_##kind##_PARAMS *, unsigned, CUstream)
UNSUPPORTED(cuSignalExternalSemaphoresAsync, SEMAPHORES(SIGNAL))
UNSUPPORTED(cuSignalExternalSemaphoresAsync_ptsz, SEMAPHORES(SIGNAL))
UNSUPPORTED(cuWaitExternalSemaphoresAsync, SEMAPHORES(WAIT))
UNSUPPORTED(cuWaitExternalSemaphoresAsync_ptsz, SEMAPHORES(WAIT))

UNSUPPORTED(cuMemGetHandleForAddressRange, (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))
UNSUPPORTED(cuIpcGetEventHandle, (CUipcEventHandle *, CUevent))
UNSUPPORTED(cuIpcOpenEventHandle, (CUevent *, CUipcEventHandle))

UNSUPPORTED(cuGraphicsMapResources, (unsigned, CUgraphicsResource *, CUstream))
UNSUPPORTED(cuGraphicsMapResources_ptsz, (unsigned, CUgraphicsResource *, CUstream))
UNSUPPORTED(cuGraphicsUnmapResources, (unsigned, CUgraphicsResource *, CUstream))
UNSUPPORTED(cuGraphicsUnmapResources_ptsz, (unsigned, CUgraphicsResource *, CUstream))
UNSUPPORTED(cuGraphicsUnregisterResource, (CUgraphicsResource))
UNSUPPORTED(cuGraphicsResourceGetMappedPointer_v2, (CUdeviceptr *, size_t *, CUgraphicsResource))

UNSUPPORTED(cuStreamBeginCaptureToCig, (CUstream, CUstreamCigCaptureParams *))
UNSUPPORTED(cuStreamBeginCaptureToCig_ptsz, (CUstream, CUstreamCigCaptureParams *))
#define RECAPTURE (CUstream, CUstreamCaptureMode, CUgraph, CUgraphRecaptureCallback, void *)
UNSUPPORTED(cuStreamBeginRecaptureToGraph, RECAPTURE)
UNSUPPORTED(cuStreamBeginRecaptureToGraph_ptsz, RECAPTURE)

UNSUPPORTED(cuDeviceGetNvSciSyncAttributes, (void *, CUdevice, int))
UNSUPPORTED(cuTensorMapEncodeTiled, (CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                     const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))
