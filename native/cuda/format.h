/* SPDX-License-Identifier: Apache-2.0 */
/* What arrays take on the device, from their descriptors. Pure arithmetic: uses neither driver nor headers.
 *
 * The driver tells sizes only of arrays that have none yet (cuArrayGetMemoryRequirements wants DEFERRED_MAPPING), so
 * they are computed. What is known of the layout: texels stand in groups of 64 bytes by 8 rows ("GOB", NVIDIA's open
 * GPU documentation and Mesa's NVK), and the driver names 64 KiB as the alignment of arrays and as the sparse tile.
 * Larger blocks of groups depend on the GPU; what they waste beyond this is measured, not charged.
 * Tests: tests/native/test_format.c, tests/integration/test_native_array.py. */
#ifndef VC_CUDA_FORMAT_H
#define VC_CUDA_FORMAT_H

#include <stdint.h>

/* As in CUDA_ARRAY3D_DESCRIPTOR: extents in texels, 0 where the dimension is not there. */
struct array_shape {
  uint64_t width;
  uint64_t height;
  uint64_t depth; /* or layers, or faces, six of each cube */
  unsigned int format;
  unsigned int channels;
  unsigned int flags;
};

enum { ARRAY_GRANULE = 65536 };

/* Bytes of device memory. 0: an array that gets its memory elsewhere (sparse, deferred mapping). UINT64_MAX: more than
 * 64 bits can say. An unknown format counts as the largest texel of the known ones, 16 bytes. */
uint64_t array_bytes(const struct array_shape *shape);

/* The same for a chain of LEVELS, clamped as cuMipmappedArrayCreate does to 1 ... 1 + floor(log2(largest extent)). */
uint64_t mipmap_bytes(const struct array_shape *shape, unsigned int levels);

#endif
