/* SPDX-License-Identifier: Apache-2.0 */
/* Fills (cuMemset…) in their ABIs.
 * Must not depend on how memory is found. Tests: tests/unit/fakedriver/test_copies.py. */
#include "fake_copy.h"
#include "fake_work.h"

#include <sys/mman.h>

/* Zeros over a large block are what fresh pages hold: so they cost the host nothing. */
static void zero(CUdeviceptr address, size_t bytes) {
  CUdeviceptr base, first = (address + 4095) & ~4095ull, last = (address + bytes) & ~4095ull;
  struct block *block = arena_find(address, &base);
  if (!block || block->flags & BLOCK_SHARED || last <= first || bytes < 1 << 20) {
    memset((void *)address, 0, bytes);
    return;
  }
  memset((void *)address, 0, first - address);
  madvise((void *)first, last - first, MADV_DONTNEED);
  memset((void *)last, 0, address + bytes - last);
}

CUresult fill_now(const struct fill *f) {
  size_t row = f->width * f->element, pitch = f->pitch ? f->pitch : row;
  if (!f->width || !f->height) return CUDA_SUCCESS;
  if (f->width > SIZE_MAX / 8 || pitch < row || f->address % f->element || pitch % f->element)
    return CUDA_ERROR_INVALID_VALUE;
  if (!memory_reach(f->address, pitch * (f->height - 1) + row)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t y = 0; y < f->height; y++) {
    char *at = (char *)f->address + y * pitch;
    if (f->value == 0) zero((CUdeviceptr)(uintptr_t)at, row);
    else if (f->element == 1) memset(at, (int)f->value, row);
    else
      for (size_t x = 0; x < row; x += f->element) memcpy(at + x, &f->value, f->element); /* little-endian */
  }
  return CUDA_SUCCESS;
}

static CUresult fill(struct fill f) {
  CUcontext context;
  TRY(context_current(&context));
  return fill_now(&f);
}

static CUresult fill_on(struct fill f, CUstream stream) {
  CUcontext context;
  CUstream own;
  TRY(stream_context(stream, &context));
  TRY(stream_check(stream, &own));
  return own && own->capture ? graph_capture_fill(own, &f) : fill_now(&f);
}

#define LINE(d, v, n, size) ((struct fill){.address = (d), .value = (v), .element = (size), .width = (n), .height = 1})
#define BOX(d, p, v, w, h, size) \
  ((struct fill){.address = (d), .pitch = (p), .value = (v), .element = (size), .width = (w), .height = (h)})

#define FILLS(bits, type, size) \
  ENTRY(cuMemsetD##bits, (CUdeviceptr_v1 d, type v, unsigned n), fill, (LINE(d, v, n, size))) \
  ENTRY_PTDS(cuMemsetD##bits##_v2, (CUdeviceptr d, type v, size_t n), fill, (LINE(d, v, n, size))) \
  ENTRY_PTSZ(cuMemsetD##bits##Async, (CUdeviceptr d, type v, size_t n, CUstream s), fill_on, (LINE(d, v, n, size), s)) \
  ENTRY(cuMemsetD2D##bits, (CUdeviceptr_v1 d, unsigned p, type v, unsigned w, unsigned h), fill, \
        (BOX(d, p, v, w, h, size))) \
  ENTRY_PTDS(cuMemsetD2D##bits##_v2, (CUdeviceptr d, size_t p, type v, size_t w, size_t h), fill, \
             (BOX(d, p, v, w, h, size))) \
  ENTRY_PTSZ(cuMemsetD2D##bits##Async, (CUdeviceptr d, size_t p, type v, size_t w, size_t h, CUstream s), fill_on, \
             (BOX(d, p, v, w, h, size), s))

FILLS(8, unsigned char, 1)
FILLS(16, unsigned short, 2)
FILLS(32, unsigned, 4)
