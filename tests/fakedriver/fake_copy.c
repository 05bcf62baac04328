/* SPDX-License-Identifier: Apache-2.0 */
/* Copies: in their ABIs, all of them a box of bytes between two places.
 * Must not depend on how memory is found. Tests: tests/unit/fakedriver/test_copies.py. */
#include "fake_array.h"
#include "fake_copy.h"
#include "fake_work.h"

/* One end of a copy: where row Y of slice Z begins. */
struct end {
  char *base;
  size_t pitch, slice;
};

static CUresult resolve(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array, size_t x, size_t y,
                        size_t z, size_t pitch, size_t height, const CUDA_MEMCPY3D *box, struct end *out) {
  uint64_t rows = y + box->Height, slices = z + box->Depth;
  if (type == CU_MEMORYTYPE_ARRAY) {
    struct CUarray_st *a = array_check(array);
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t high = a->height ? a->height : 1, deep = a->depth ? a->depth : 1;
    if (!a->base || !a->element || x + box->WidthInBytes > a->pitch || rows > high || slices > deep) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct end){memory_reach(a->base, a->bytes), a->pitch, a->pitch * high};
  } else {
    if (pitch == 0) pitch = x + box->WidthInBytes;
    if (height == 0) height = box->Height;
    if (pitch < box->WidthInBytes + (box->Height > 1 ? x : 0)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t needed = ((slices - 1) * height + rows - 1) * pitch + x + box->WidthInBytes;
    void *base = (void *)host;
    if (type == CU_MEMORYTYPE_DEVICE) base = memory_reach(device, needed);
    /* A unified address is the host's unless the driver knows it. */
    if (type == CU_MEMORYTYPE_UNIFIED && !(base = memory_reach(device, needed)) && !arena_contains(device))
      base = (void *)(uintptr_t)device;
    if (!base) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct end){base, pitch, pitch * height};
  }
  out->base += z * out->slice + y * out->pitch + x;
  return CUDA_SUCCESS;
}

CUresult copy_box(const CUDA_MEMCPY3D *b) {
  struct end from, to;
  if (!b->WidthInBytes || !b->Height || !b->Depth) return CUDA_SUCCESS;
  TRY(resolve(b->srcMemoryType, b->srcHost, b->srcDevice, b->srcArray, b->srcXInBytes, b->srcY, b->srcZ, b->srcPitch,
              b->srcHeight, b, &from));
  TRY(resolve(b->dstMemoryType, b->dstHost, b->dstDevice, b->dstArray, b->dstXInBytes, b->dstY, b->dstZ, b->dstPitch,
              b->dstHeight, b, &to));
  for (size_t z = 0; z < b->Depth; z++)
    for (size_t y = 0; y < b->Height; y++)
      memmove(to.base + z * to.slice + y * to.pitch, from.base + z * from.slice + y * from.pitch, b->WidthInBytes);
  return CUDA_SUCCESS;
}

/* A call that returns when the copy is done waits for the work before it. */
static CUresult copy(const CUDA_MEMCPY3D *box) {
  CUcontext context;
  NONNULL(box);
  TRY(context_current(&context));
  work_wait(context);
  return copy_box(box);
}

CUresult copy_on(const CUDA_MEMCPY3D *box, CUstream stream) {
  CUcontext context;
  CUstream own;
  NONNULL(box);
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  return own && own->capture ? graph_capture_copy(own, box) : copy_box(box);
}

/* --- lines ------------------------------------------------------------------------------------------------------ */

#define HOST(type, at) .type##MemoryType = CU_MEMORYTYPE_HOST, .type##Host = (void *)(at)
#define DEVICE(type, at) .type##MemoryType = CU_MEMORYTYPE_DEVICE, .type##Device = (at)
#define ARRAY(type, at, offset) .type##MemoryType = CU_MEMORYTYPE_ARRAY, .type##Array = (at), .type##XInBytes = (offset)

ENTRY(cuMemcpyHtoD, (CUdeviceptr_v1 d, const void *s, unsigned n), copy, (LINE_OF(n, HOST(src, s), DEVICE(dst, d))))
ENTRY_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr d, const void *s, size_t n), copy, (LINE_OF(n, HOST(src, s), DEVICE(dst, d))))
ENTRY(cuMemcpyDtoH, (void *d, CUdeviceptr_v1 s, unsigned n), copy, (LINE_OF(n, DEVICE(src, s), HOST(dst, d))))
ENTRY_PTDS(cuMemcpyDtoH_v2, (void *d, CUdeviceptr s, size_t n), copy, (LINE_OF(n, DEVICE(src, s), HOST(dst, d))))
ENTRY(cuMemcpyDtoD, (CUdeviceptr_v1 d, CUdeviceptr_v1 s, unsigned n), copy,
      (LINE_OF(n, DEVICE(src, s), DEVICE(dst, d))))
ENTRY_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr d, CUdeviceptr s, size_t n), copy,
           (LINE_OF(n, DEVICE(src, s), DEVICE(dst, d))))
ENTRY_PTDS(cuMemcpy, (CUdeviceptr d, CUdeviceptr s, size_t n), copy, (LINE_OF(n, UNIFIED(src, s), UNIFIED(dst, d))))

ENTRY(cuMemcpyHtoDAsync, (CUdeviceptr_v1 d, const void *s, unsigned n, CUstream stream), copy_on,
      (LINE_OF(n, HOST(src, s), DEVICE(dst, d)), stream))
ENTRY_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr d, const void *s, size_t n, CUstream stream), copy_on,
           (LINE_OF(n, HOST(src, s), DEVICE(dst, d)), stream))
ENTRY(cuMemcpyDtoHAsync, (void *d, CUdeviceptr_v1 s, unsigned n, CUstream stream), copy_on,
      (LINE_OF(n, DEVICE(src, s), HOST(dst, d)), stream))
ENTRY_PTSZ(cuMemcpyDtoHAsync_v2, (void *d, CUdeviceptr s, size_t n, CUstream stream), copy_on,
           (LINE_OF(n, DEVICE(src, s), HOST(dst, d)), stream))
ENTRY(cuMemcpyDtoDAsync, (CUdeviceptr_v1 d, CUdeviceptr_v1 s, unsigned n, CUstream stream), copy_on,
      (LINE_OF(n, DEVICE(src, s), DEVICE(dst, d)), stream))
ENTRY_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream), copy_on,
           (LINE_OF(n, DEVICE(src, s), DEVICE(dst, d)), stream))
ENTRY_PTSZ(cuMemcpyAsync, (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream stream), copy_on,
           (LINE_OF(n, UNIFIED(src, s), UNIFIED(dst, d)), stream))

static CUresult copy_peer(CUcontext to, CUcontext from, const CUDA_MEMCPY3D *line) {
  return context_valid(to) && context_valid(from) ? copy_box(line) : CUDA_ERROR_INVALID_CONTEXT;
}
ENTRY_PTDS(cuMemcpyPeer, (CUdeviceptr d, CUcontext to, CUdeviceptr s, CUcontext from, size_t n), copy_peer,
           (to, from, LINE_OF(n, DEVICE(src, s), DEVICE(dst, d))))

static CUresult copy_peer_on(CUcontext to, CUcontext from, const CUDA_MEMCPY3D *line, CUstream stream) {
  return context_valid(to) && context_valid(from) ? copy_on(line, stream) : CUDA_ERROR_INVALID_CONTEXT;
}
ENTRY_PTSZ(cuMemcpyPeerAsync, (CUdeviceptr d, CUcontext to, CUdeviceptr s, CUcontext from, size_t n, CUstream stream),
           copy_peer_on, (to, from, LINE_OF(n, DEVICE(src, s), DEVICE(dst, d)), stream))

/* --- lines of arrays -------------------------------------------------------------------------------------------- */

ENTRY(cuMemcpyDtoA, (CUarray a, unsigned at, CUdeviceptr_v1 s, unsigned n), copy,
      (LINE_OF(n, DEVICE(src, s), ARRAY(dst, a, at))))
ENTRY_PTDS(cuMemcpyDtoA_v2, (CUarray a, size_t at, CUdeviceptr s, size_t n), copy,
           (LINE_OF(n, DEVICE(src, s), ARRAY(dst, a, at))))
ENTRY(cuMemcpyAtoD, (CUdeviceptr_v1 d, CUarray a, unsigned at, unsigned n), copy,
      (LINE_OF(n, ARRAY(src, a, at), DEVICE(dst, d))))
ENTRY_PTDS(cuMemcpyAtoD_v2, (CUdeviceptr d, CUarray a, size_t at, size_t n), copy,
           (LINE_OF(n, ARRAY(src, a, at), DEVICE(dst, d))))
ENTRY(cuMemcpyHtoA, (CUarray a, unsigned at, const void *s, unsigned n), copy,
      (LINE_OF(n, HOST(src, s), ARRAY(dst, a, at))))
ENTRY_PTDS(cuMemcpyHtoA_v2, (CUarray a, size_t at, const void *s, size_t n), copy,
           (LINE_OF(n, HOST(src, s), ARRAY(dst, a, at))))
ENTRY(cuMemcpyAtoH, (void *d, CUarray a, unsigned at, unsigned n), copy, (LINE_OF(n, ARRAY(src, a, at), HOST(dst, d))))
ENTRY_PTDS(cuMemcpyAtoH_v2, (void *d, CUarray a, size_t at, size_t n), copy,
           (LINE_OF(n, ARRAY(src, a, at), HOST(dst, d))))
ENTRY(cuMemcpyAtoA, (CUarray a, unsigned to, CUarray b, unsigned from, unsigned n), copy,
      (LINE_OF(n, ARRAY(src, b, from), ARRAY(dst, a, to))))
ENTRY_PTDS(cuMemcpyAtoA_v2, (CUarray a, size_t to, CUarray b, size_t from, size_t n), copy,
           (LINE_OF(n, ARRAY(src, b, from), ARRAY(dst, a, to))))
ENTRY(cuMemcpyHtoAAsync, (CUarray a, unsigned at, const void *s, unsigned n, CUstream stream), copy_on,
      (LINE_OF(n, HOST(src, s), ARRAY(dst, a, at)), stream))
ENTRY_PTSZ(cuMemcpyHtoAAsync_v2, (CUarray a, size_t at, const void *s, size_t n, CUstream stream), copy_on,
           (LINE_OF(n, HOST(src, s), ARRAY(dst, a, at)), stream))
ENTRY(cuMemcpyAtoHAsync, (void *d, CUarray a, unsigned at, unsigned n, CUstream stream), copy_on,
      (LINE_OF(n, ARRAY(src, a, at), HOST(dst, d)), stream))
ENTRY_PTSZ(cuMemcpyAtoHAsync_v2, (void *d, CUarray a, size_t at, size_t n, CUstream stream), copy_on,
           (LINE_OF(n, ARRAY(src, a, at), HOST(dst, d)), stream))

/* --- boxes ------------------------------------------------------------------------------------------------------ */

/* The field names are the same in all structures; BOX_3D also takes what 2D does not have. */
#define BOX_2D(p) \
  .srcXInBytes = (p)->srcXInBytes, .srcY = (p)->srcY, .srcMemoryType = (p)->srcMemoryType, .srcHost = (p)->srcHost, \
  .srcDevice = (p)->srcDevice, .srcArray = (p)->srcArray, .srcPitch = (p)->srcPitch, .dstXInBytes = (p)->dstXInBytes, \
  .dstY = (p)->dstY, .dstMemoryType = (p)->dstMemoryType, .dstHost = (p)->dstHost, .dstDevice = (p)->dstDevice, \
  .dstArray = (p)->dstArray, .dstPitch = (p)->dstPitch, .WidthInBytes = (p)->WidthInBytes, .Height = (p)->Height
#define BOX_3D(p) \
  BOX_2D(p), .srcZ = (p)->srcZ, .srcHeight = (p)->srcHeight, .dstZ = (p)->dstZ, .dstHeight = (p)->dstHeight, \
      .Depth = (p)->Depth
#define FLAT(p) (p ? &(CUDA_MEMCPY3D){BOX_2D(p), .Depth = 1} : NULL)
#define SOLID(p) (p ? &(CUDA_MEMCPY3D){BOX_3D(p)} : NULL)

ENTRY(cuMemcpy2D, (const CUDA_MEMCPY2D_v1 *p), copy, (FLAT(p)))
ENTRY_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *p), copy, (FLAT(p)))
ENTRY(cuMemcpy2DUnaligned, (const CUDA_MEMCPY2D_v1 *p), copy, (FLAT(p)))
ENTRY_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *p), copy, (FLAT(p)))
ENTRY(cuMemcpy3D, (const CUDA_MEMCPY3D_v1 *p), copy, (SOLID(p)))
ENTRY_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *p), copy, (SOLID(p)))
ENTRY(cuMemcpy2DAsync, (const CUDA_MEMCPY2D_v1 *p, CUstream stream), copy_on, (FLAT(p), stream))
ENTRY_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *p, CUstream stream), copy_on, (FLAT(p), stream))
ENTRY(cuMemcpy3DAsync, (const CUDA_MEMCPY3D_v1 *p, CUstream stream), copy_on, (SOLID(p), stream))
ENTRY_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *p, CUstream stream), copy_on, (SOLID(p), stream))
ENTRY_PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *p), copy, (SOLID(p)))
ENTRY_PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *p, CUstream stream), copy_on, (SOLID(p), stream))
