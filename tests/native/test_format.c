/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of arrays. Subject: native/cuda/format.c. */
#include "format.h"

#include "check.h"

enum { INT8 = 0x01, INT16 = 0x02, FLOAT = 0x20, NV12 = 0xb0, P010 = 0x9f, YUY2 = 0xa5, BC1 = 0x91, BC7 = 0x9d,
       UNORM8X4 = 0xc2 };
enum { LAYERED = 0x01, CUBEMAP = 0x04, SPARSE = 0x40, DEFERRED = 0x80 };

#define KIB 1024ull
#define MIB (1024 * KIB)

static uint64_t bytes(uint64_t width, uint64_t height, uint64_t depth, unsigned format, unsigned channels,
                      unsigned flags) {
  const struct array_shape shape = {width, height, depth, format, channels, flags};
  return array_bytes(&shape);
}

static uint64_t chain(uint64_t width, uint64_t height, uint64_t depth, unsigned flags, unsigned levels) {
  const struct array_shape shape = {width, height, depth, FLOAT, 1, flags};
  return mipmap_bytes(&shape, levels);
}

TEST(format_classic_texels) {
  CHECK_EQ(bytes(1024, 1024, 0, INT8, 1, 0), MIB);
  CHECK_EQ(bytes(1024, 1024, 0, INT8, 4, 0), 4 * MIB);
  CHECK_EQ(bytes(1024, 1024, 0, INT16, 2, 0), 4 * MIB);
  CHECK_EQ(bytes(1024, 1024, 0, FLOAT, 4, 0), 16 * MIB);
  CHECK_EQ(bytes(64, 64, 64, FLOAT, 1, 0), MIB);
  CHECK_EQ(bytes(1 << 20, 0, 0, FLOAT, 1, 0), 4 * MIB);
  CHECK_EQ(bytes(1, 0, 0, INT8, 1, 0), 64 * KIB); /* the granule */
  CHECK_EQ(bytes(65537, 0, 0, INT8, 1, 0), 128 * KIB);
  CHECK_EQ(bytes(1, 65536, 0, INT8, 1, 0), 4 * MIB);  /* 64 bytes a row */
  CHECK_EQ(bytes(8192, 1025, 0, INT8, 1, 0), 8192 * 1032); /* rows in eights */
  CHECK_EQ(bytes(1024, 1024, 0, UNORM8X4, 4, 0), 4 * MIB); /* channels are part of the format */
}

TEST(format_blocks_and_planes) {
  CHECK_EQ(bytes(4096, 4096, 0, BC1, 4, 0), 8 * MIB);  /* half a byte a texel */
  CHECK_EQ(bytes(4096, 4096, 0, BC7, 4, 0), 16 * MIB); /* one */
  CHECK_EQ(bytes(4093, 4093, 0, BC7, 4, 0), 16 * MIB); /* blocks cut off at the edge are whole */
  CHECK_EQ(bytes(4096, 4096, 0, NV12, 3, 0), 24 * MIB);
  CHECK_EQ(bytes(4096, 4096, 0, P010, 3, 0), 48 * MIB);
  CHECK_EQ(bytes(4096, 4096, 0, YUY2, 2, 0), 32 * MIB);
  CHECK_EQ(bytes(1024, 1024, 0, 0x7e, 1, 0), 16 * MIB); /* unknown: the largest */
}

TEST(format_layers_and_cubes) {
  CHECK_EQ(bytes(1024, 0, 1024, FLOAT, 1, LAYERED), 4 * MIB);
  CHECK_EQ(bytes(1024, 1024, 3, FLOAT, 1, LAYERED), 12 * MIB);
  CHECK_EQ(bytes(1024, 1024, 6, FLOAT, 1, CUBEMAP), 24 * MIB);
  CHECK_EQ(bytes(1024, 1024, 12, FLOAT, 1, CUBEMAP | LAYERED), 48 * MIB);
}

TEST(format_mipmap_chains) {
  CHECK_EQ(chain(1024, 1024, 0, 0, 1), 4 * MIB);
  CHECK_EQ(chain(1024, 1024, 0, 0, 3), 4 * MIB + MIB + 256 * KIB);
  CHECK_EQ(chain(128, 128, 128, 0, 2), 8 * MIB + MIB);
  CHECK_EQ(chain(1024, 1024, 4, LAYERED, 2), 16 * MIB + 4 * MIB); /* layers do not shrink */
  CHECK_EQ(chain(1024, 1024, 6, CUBEMAP, 2), 24 * MIB + 6 * MIB);
  CHECK_EQ(chain(1024, 1024, 0, 0, 11), chain(1024, 1024, 0, 0, 4000000000u)); /* 1 + log2(1024) levels and no more */
  CHECK(chain(1024, 1024, 0, 0, 11) < 4 * MIB * 4 / 3 + 64 * KIB + 1);
  CHECK_EQ(chain(1, 1, 0, 0, 5), 64 * KIB);
  CHECK_EQ(chain(1024, 1024, 0, 0, 0), 4 * MIB); /* nor less than one */
}

TEST(format_without_own_memory) {
  CHECK_EQ(bytes(4096, 4096, 0, FLOAT, 4, SPARSE), 0);
  CHECK_EQ(bytes(4096, 4096, 0, FLOAT, 4, DEFERRED), 0);
  CHECK_EQ(bytes(4096, 4096, 4, FLOAT, 4, LAYERED | SPARSE), 0);
  CHECK_EQ(chain(4096, 4096, 0, SPARSE, 5), 0);
  CHECK_EQ(chain(4096, 4096, 0, DEFERRED, 5), 0);
  CHECK_EQ(bytes(0, 4096, 0, FLOAT, 4, 0), 0);
}

TEST(format_never_overflows) {
  const uint64_t sizes[] = {1ull << 31, 1ull << 32, 1ull << 48, 1ull << 62, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
  const unsigned formats[] = {INT8, FLOAT, NV12, BC1, BC7, 0x7e};
  for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      const struct array_shape cube = {sizes[i], sizes[i], sizes[i], formats[f], 4, 0};
      CHECK_EQ(array_bytes(&cube), UINT64_MAX);
      CHECK_EQ(mipmap_bytes(&cube, 64), UINT64_MAX);
      CHECK(bytes(sizes[i], 0, 0, formats[f], 4, 0) >= sizes[i] / 8);
      CHECK(bytes(1, sizes[i], 0, formats[f], 4, 0) >= sizes[i]);
      CHECK(bytes(1, 0, sizes[i], formats[f], 4, LAYERED) >= sizes[i]);
      CHECK(bytes(1, 0, 1, INT8, (unsigned)sizes[i], 0) != 0);
    }
}
