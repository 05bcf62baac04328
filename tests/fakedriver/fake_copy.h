/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, as streams and graphs do them. Uses nothing of streams itself.
 * Tests: tests/unit/fakedriver/test_copies.py. */
#ifndef FAKE_COPY_H
#define FAKE_COPY_H

#include "fake_cuda.h"

/* What one copy is: bytes from place to place, or a box. */
CUresult copy_box(const CUDA_MEMCPY3D *box);
CUresult copy_on(const CUDA_MEMCPY3D *box, CUstream stream);
#define UNIFIED(type, at) .type##MemoryType = CU_MEMORYTYPE_UNIFIED, .type##Device = (at)
#define LINE_OF(n, ...) (&(CUDA_MEMCPY3D){__VA_ARGS__, .WidthInBytes = (n), .Height = 1, .Depth = 1})
struct fill {
  CUdeviceptr address;
  size_t pitch; /* 0: one row */
  unsigned value, element;
  size_t width, height; /* elements, rows */
};
CUresult fill_now(const struct fill *fill);

/* On a stream that is being captured: as a node of its graph. */
CUresult graph_capture_copy(CUstream stream, const CUDA_MEMCPY3D *box);
CUresult graph_capture_fill(CUstream stream, const struct fill *fill);

#endif
