/* SPDX-License-Identifier: Apache-2.0 */
/* Element formats of arrays. Must not depend on arrays. Tests: tests/unit/fakedriver/test_copies.py. */
#include "fake_array.h"

unsigned array_element_bytes(CUarray_format format, unsigned channels) {
  if (channels != 1 && channels != 2 && channels != 4) return 0;
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4 * channels;
    default:
      return 0;
  }
}

struct array_unit array_packed(CUarray_format format) {
  switch ((int)format) {
    case CU_AD_FORMAT_UNORM_INT8X1: case CU_AD_FORMAT_SNORM_INT8X1:
      return (struct array_unit){1, 1, 1};
    case CU_AD_FORMAT_UNORM_INT8X2: case CU_AD_FORMAT_SNORM_INT8X2: case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1: case CU_AD_FORMAT_YUY2: case CU_AD_FORMAT_NV16: case CU_AD_FORMAT_UINT8_PACKED_422:
    case CU_AD_FORMAT_UINT8_SEMIPLANAR_422: case CU_AD_FORMAT_UINT8_PLANAR_422:
      return (struct array_unit){1, 1, 2};
    case CU_AD_FORMAT_Y444_PLANAR8: case CU_AD_FORMAT_YUV444_8bit_SemiPlanar: case CU_AD_FORMAT_UINT8_SEMIPLANAR_444:
    case CU_AD_FORMAT_UINT8_PLANAR_444:
      return (struct array_unit){1, 1, 3};
    case CU_AD_FORMAT_UNORM_INT8X4: case CU_AD_FORMAT_SNORM_INT8X4: case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2: case CU_AD_FORMAT_AYUV: case CU_AD_FORMAT_Y410: case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216: case CU_AD_FORMAT_P210: case CU_AD_FORMAT_P216: case CU_AD_FORMAT_UNORM_INT_101010_2:
    case CU_AD_FORMAT_UINT8_PACKED_444: case CU_AD_FORMAT_UINT16_SEMIPLANAR_422: case CU_AD_FORMAT_UINT16_PLANAR_422:
      return (struct array_unit){1, 1, 4};
    case CU_AD_FORMAT_Y444_PLANAR10: case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
    case CU_AD_FORMAT_UINT16_SEMIPLANAR_444: case CU_AD_FORMAT_UINT16_PLANAR_444:
      return (struct array_unit){1, 1, 6};
    case CU_AD_FORMAT_UNORM_INT16X4: case CU_AD_FORMAT_SNORM_INT16X4: case CU_AD_FORMAT_Y416:
      return (struct array_unit){1, 1, 8};
    case CU_AD_FORMAT_NV12: case CU_AD_FORMAT_UINT8_SEMIPLANAR_420: case CU_AD_FORMAT_UINT8_PLANAR_420:
      return (struct array_unit){2, 2, 6};
    case CU_AD_FORMAT_P010: case CU_AD_FORMAT_P016: case CU_AD_FORMAT_UINT16_SEMIPLANAR_420:
    case CU_AD_FORMAT_UINT16_PLANAR_420:
      return (struct array_unit){2, 2, 12};
    case CU_AD_FORMAT_BC1_UNORM: case CU_AD_FORMAT_BC1_UNORM_SRGB: case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return (struct array_unit){4, 4, 8};
    default:
      return format > CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB ? (struct array_unit){4, 4, 16}
                                                                                      : (struct array_unit){0, 0, 0};
  }
}
