/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays as copies see them. Uses nothing of streams. Tests: tests/integration/test_native_array.py. */
#ifndef FAKE_ARRAY_H
#define FAKE_ARRAY_H

#include "fake_cuda.h"
#include "fake_handle.h"

struct CUarray_st {
  struct handle handle;
  CUcontext context;
  CUmipmappedArray parent; /* a level of it, or NULL */
  CUdeviceptr base;
  uint64_t bytes;
  uint64_t width, height, depth; /* as given: 0 where the dimension is not there */
  uint32_t format, channels, flags, element; /* element: bytes of a texel; 0: not copied (blocks, planes) */
  uint64_t pitch; /* bytes from row to row; of rows from slice to slice: max(height, 1) */
  uint64_t rest[5];
};

/* NULL: not an array. */
struct CUarray_st *array_check(CUarray array);
/* Bytes of one element; 0: unknown format or number of channels. */
unsigned array_element_bytes(CUarray_format format, unsigned channels);
/* Formats whose texels are not NumChannels numbers: blocks, and pictures in planes. Copies do not know them. */
struct array_unit {
  unsigned width, height, bytes; /* so many texels take so many bytes; 0 bytes: unknown */
};
struct array_unit array_packed(CUarray_format format);
/* NULL: not a mipmapped array, or it has no such level. */
struct CUarray_st *mipmap_level(CUmipmappedArray mipmap, unsigned level);
void sparse_forget(void *resource); /* the array, and all memory mapped into it, is gone */
void array_drop_context(CUcontext context);

#endif
