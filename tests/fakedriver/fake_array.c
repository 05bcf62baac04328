/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and mipmapped arrays: device memory with a unit.
 * Must not depend on copies. Tests: tests/unit/fakedriver/test_copies.py. */
#include "fake_array.h"

struct CUmipmappedArray_st {
  struct handle handle;
  CUcontext context;
  uint32_t levels, padding;
  CUarray level[29];
};
HANDLE_SIZE_CHECK(struct CUarray_st);
HANDLE_SIZE_CHECK(struct CUmipmappedArray_st);
static struct handles arrays = HANDLES(struct CUarray_st, 1 << 18);
static struct handles mipmaps = HANDLES(struct CUmipmappedArray_st, 1 << 12);

struct CUarray_st *array_check(CUarray array) { return handle_valid(&arrays, array) ? array : NULL; }

static uint64_t at_least_one(uint64_t size) { return size ? size : 1; }

static uint64_t rounded(uint64_t bytes) { return (bytes + 65535) & ~65535ull; }

/* An array without memory yet. */
static CUresult describe(const CUDA_ARRAY3D_DESCRIPTOR *d, CUcontext context, struct CUarray_st *array) {
  NONNULL(d);
  unsigned element = array_element_bytes(d->Format, d->NumChannels);
  struct array_unit unit = element ? (struct array_unit){1, 1, element} : array_packed(d->Format);
  if (!unit.bytes || !d->Width || (d->Depth && !d->Height && !(d->Flags & CUDA_ARRAY3D_LAYERED)))
    return CUDA_ERROR_INVALID_VALUE;
  if (d->Width > 1 << 28 || d->Height > 1 << 20 || d->Depth > 1 << 20) return CUDA_ERROR_INVALID_VALUE;
  if (d->Flags & CUDA_ARRAY3D_CUBEMAP && (d->Width != d->Height || !d->Depth || d->Depth % 6))
    return CUDA_ERROR_INVALID_VALUE;
  array->context = context;
  array->width = d->Width;
  array->height = d->Height;
  array->depth = d->Depth;
  array->format = d->Format;
  array->channels = d->NumChannels;
  array->flags = d->Flags;
  array->element = element;
  array->pitch = (d->Width + unit.width - 1) / unit.width * unit.bytes;
  array->bytes = array->pitch * ((at_least_one(d->Height) + unit.height - 1) / unit.height) * at_least_one(d->Depth);
  return CUDA_SUCCESS;
}

/* Sparse and deferred arrays get their memory from cuMemMapArrayAsync. */
static int has_memory(unsigned flags) { return !(flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)); }

static CUresult new_array(const CUDA_ARRAY3D_DESCRIPTOR *d, CUcontext context, CUarray *out) {
  CUarray array = handle_new(&arrays);
  if (!array) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = describe(d, context, array);
  if (result == CUDA_SUCCESS) *out = array;
  else handle_delete(&arrays, array);
  return result;
}

static CUresult make(const CUDA_ARRAY3D_DESCRIPTOR *d, CUarray *out) {
  CUcontext context;
  CUarray array;
  TRY(context_current(&context));
  NONNULL(out);
  TRY(new_array(d, context, &array));
  CUresult result = CUDA_SUCCESS;
  if (has_memory(d->Flags)) result = memory_take(context, rounded(array->bytes), BLOCK_DEVICE, &array->base);
  if (result == CUDA_SUCCESS) *out = array;
  else handle_delete(&arrays, array);
  return result;
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  ENTER(cuArray3DCreate_v2);
  return make(descriptor, out);
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  ENTER(cuArrayCreate_v2);
  NONNULL(d);
  CUDA_ARRAY3D_DESCRIPTOR full = {
      .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
  return make(&full, out);
}

CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  ENTER(cuArrayCreate);
  NONNULL(d);
  CUDA_ARRAY3D_DESCRIPTOR full = {
      .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
  return make(&full, out);
}

CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
  ENTER(cuArray3DCreate);
  NONNULL(d);
  CUDA_ARRAY3D_DESCRIPTOR full = {.Width = d->Width,
                                  .Height = d->Height,
                                  .Depth = d->Depth,
                                  .Format = d->Format,
                                  .NumChannels = d->NumChannels,
                                  .Flags = d->Flags};
  return make(&full, out);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array) {
  ENTER(cuArray3DGetDescriptor_v2);
  NONNULL(d);
  if (!array_check(array)) return CUDA_ERROR_INVALID_HANDLE;
  *d = (CUDA_ARRAY3D_DESCRIPTOR){.Width = array->width,
                                 .Height = array->height,
                                 .Depth = array->depth,
                                 .Format = (CUarray_format)array->format,
                                 .NumChannels = array->channels,
                                 .Flags = array->flags};
  return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray array) {
  ENTER(cuArrayGetDescriptor_v2);
  NONNULL(d);
  if (!array_check(array)) return CUDA_ERROR_INVALID_HANDLE;
  *d = (CUDA_ARRAY_DESCRIPTOR){.Width = array->width,
                               .Height = array->height,
                               .Format = (CUarray_format)array->format,
                               .NumChannels = array->channels};
  return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *d, CUarray array) {
  ENTER(cuArrayGetDescriptor);
  NONNULL(d);
  if (!array_check(array)) return CUDA_ERROR_INVALID_HANDLE;
  *d = (CUDA_ARRAY_DESCRIPTOR_v1){.Width = (unsigned)array->width,
                                  .Height = (unsigned)array->height,
                                  .Format = (CUarray_format)array->format,
                                  .NumChannels = array->channels};
  return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *d, CUarray array) {
  ENTER(cuArray3DGetDescriptor);
  NONNULL(d);
  if (!array_check(array)) return CUDA_ERROR_INVALID_HANDLE;
  *d = (CUDA_ARRAY3D_DESCRIPTOR_v1){.Width = (unsigned)array->width,
                                    .Height = (unsigned)array->height,
                                    .Depth = (unsigned)array->depth,
                                    .Format = (CUarray_format)array->format,
                                    .NumChannels = array->channels,
                                    .Flags = array->flags};
  return CUDA_SUCCESS;
}

static void drop(CUarray array) {
  sparse_forget(array);
  if (array->base && !array->parent) memory_give(array->base);
  handle_delete(&arrays, array);
}

CUresult cuArrayDestroy(CUarray array) {
  ENTER(cuArrayDestroy);
  if (!array_check(array)) return CUDA_ERROR_INVALID_HANDLE;
  if (array->parent) return CUDA_ERROR_ARRAY_IS_MAPPED; /* a level lives as long as its mipmapped array */
  drop(array);
  return CUDA_SUCCESS;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const struct CUarray_st *array, CUdevice device) {
  NONNULL(out);
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!(array->flags & CUDA_ARRAY3D_DEFERRED_MAPPING)) return CUDA_ERROR_INVALID_VALUE;
  memset(out, 0, sizeof *out);
  out->alignment = 65536;
  out->size = rounded(array->bytes);
  return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device) {
  ENTER(cuArrayGetMemoryRequirements);
  return array_check(array) ? requirements(out, array, device) : CUDA_ERROR_INVALID_HANDLE;
}

/* --- mipmapped -------------------------------------------------------------------------------------------------- */

struct CUarray_st *mipmap_level(CUmipmappedArray mipmap, unsigned level) {
  return handle_valid(&mipmaps, mipmap) && level < mipmap->levels ? mipmap->level[level] : NULL;
}

/* All levels lie in one piece, which is the first level's. */
static void drop_mipmap(CUmipmappedArray mipmap) {
  sparse_forget(mipmap);
  if (mipmap->levels && mipmap->level[0]->base) memory_give(mipmap->level[0]->base);
  for (uint32_t i = 0; i < mipmap->levels; i++) drop(mipmap->level[i]);
  handle_delete(&mipmaps, mipmap);
}

static uint64_t half(uint64_t size) { return size > 1 ? size / 2 : size; }

static CUresult make_levels(CUmipmappedArray mipmap, CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels, uint64_t *bytes) {
  int flat = (d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  for (*bytes = 0; mipmap->levels < levels; mipmap->levels++) {
    CUarray *level = &mipmap->level[mipmap->levels];
    TRY(new_array(&d, mipmap->context, level));
    (*level)->parent = mipmap;
    *bytes += (*level)->bytes;
    if (d.Width <= 1 && d.Height <= 1 && (flat || d.Depth <= 1)) levels = mipmap->levels + 1; /* as small as it gets */
    d.Width = half(d.Width);
    d.Height = half(d.Height);
    if (!flat) d.Depth = half(d.Depth);
  }
  return CUDA_SUCCESS;
}

static CUresult give_memory(CUmipmappedArray mipmap, uint64_t bytes) {
  CUdeviceptr base;
  TRY(memory_take(mipmap->context, rounded(bytes), BLOCK_DEVICE, &base));
  for (uint32_t i = 0; i < mipmap->levels; i++) {
    mipmap->level[i]->base = base;
    base += mipmap->level[i]->bytes;
  }
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
  ENTER(cuMipmappedArrayCreate);
  CUcontext context;
  uint64_t bytes;
  TRY(context_current(&context));
  if (!out || !descriptor) return CUDA_ERROR_INVALID_VALUE;
  CUmipmappedArray mipmap = handle_new(&mipmaps);
  if (!mipmap) return CUDA_ERROR_OUT_OF_MEMORY;
  mipmap->context = context;
  CUresult result = make_levels(mipmap, *descriptor, levels ? levels : 1, &bytes);
  if (result == CUDA_SUCCESS && has_memory((unsigned)descriptor->Flags)) result = give_memory(mipmap, bytes);
  if (result == CUDA_SUCCESS) *out = mipmap;
  else drop_mipmap(mipmap);
  return result;
}

CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray mipmap, unsigned level) {
  ENTER(cuMipmappedArrayGetLevel);
  NONNULL(out);
  if (!handle_valid(&mipmaps, mipmap)) return CUDA_ERROR_INVALID_HANDLE;
  if (level >= mipmap->levels) return CUDA_ERROR_INVALID_VALUE;
  *out = mipmap->level[level];
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
  ENTER(cuMipmappedArrayDestroy);
  if (!handle_valid(&mipmaps, mipmap)) return CUDA_ERROR_INVALID_HANDLE;
  drop_mipmap(mipmap);
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray mipmap,
                                               CUdevice device) {
  ENTER(cuMipmappedArrayGetMemoryRequirements);
  if (!handle_valid(&mipmaps, mipmap)) return CUDA_ERROR_INVALID_HANDLE;
  TRY(requirements(out, mipmap->level[0], device));
  out->size = 0;
  for (uint32_t i = 0; i < mipmap->levels; i++) out->size += mipmap->level[i]->bytes;
  out->size = rounded(out->size);
  return CUDA_SUCCESS;
}

static void drop_of_context(void *item, void *context) {
  CUarray array = item;
  if (array->context == context && !array->parent) drop(array);
}
static void drop_mipmap_of_context(void *item, void *context) {
  if (((CUmipmappedArray)item)->context == context) drop_mipmap(item);
}
void array_drop_context(CUcontext context) {
  handle_each(&mipmaps, drop_mipmap_of_context, context);
  handle_each(&arrays, drop_of_context, context);
}
