/* Arrays and mipmapped arrays: device memory with a shape.
 * Must not know copies. Tests: tests/unit/fakedriver/test_arrays.py. */
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

static uint64_t at_least_one(uint64_t size) { return size ? size : 1; }

static CUresult make(const CUDA_ARRAY3D_DESCRIPTOR *d, CUarray *out) {
  CUcontext context;
  TRY(context_current(&context));
  unsigned element = d ? array_element_bytes(d->Format, d->NumChannels) : 0;
  if (!out || !element || !d->Width || (d->Depth && !d->Height && !(d->Flags & CUDA_ARRAY3D_LAYERED)))
    return CUDA_ERROR_INVALID_VALUE;
  if (d->Width > 1 << 28 || d->Height > 1 << 20 || d->Depth > 1 << 20) return CUDA_ERROR_INVALID_VALUE;
  CUarray array = handle_new(&arrays);
  if (!array) return CUDA_ERROR_OUT_OF_MEMORY;
  array->context = context;
  array->width = d->Width;
  array->height = d->Height;
  array->depth = d->Depth;
  array->format = d->Format;
  array->channels = d->NumChannels;
  array->flags = d->Flags;
  array->element = element;
  array->pitch = d->Width * element;
  array->bytes = array->pitch * at_least_one(d->Height) * at_least_one(d->Depth);
  /* Sparse and deferred arrays get their memory from cuMemMapArrayAsync. */
  int own = !(d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
  CUresult result = own ? memory_take(context, array->bytes, BLOCK_DEVICE, &array->base) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) {
    handle_delete(&arrays, array);
    return result;
  }
  *out = array;
  return CUDA_SUCCESS;
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
  if (array->base) memory_give(array->base);
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
  out->size = (array->bytes + 65535) & ~65535ull;
  return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device) {
  ENTER(cuArrayGetMemoryRequirements);
  return array_check(array) ? requirements(out, array, device) : CUDA_ERROR_INVALID_HANDLE;
}

/* --- mipmapped -------------------------------------------------------------------------------------------------- */

static void drop_mipmap(CUmipmappedArray mipmap) {
  for (uint32_t i = 0; i < mipmap->levels; i++)
    if (mipmap->level[i]) drop(mipmap->level[i]);
  handle_delete(&mipmaps, mipmap);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
  ENTER(cuMipmappedArrayCreate);
  CUcontext context;
  TRY(context_current(&context));
  if (!out || !descriptor || levels == 0 || levels > 29) return CUDA_ERROR_INVALID_VALUE;
  CUmipmappedArray mipmap = handle_new(&mipmaps);
  if (!mipmap) return CUDA_ERROR_OUT_OF_MEMORY;
  CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
  mipmap->context = context;
  for (mipmap->levels = 0; mipmap->levels < levels; mipmap->levels++) {
    CUresult result = make(&level, &mipmap->level[mipmap->levels]);
    if (result != CUDA_SUCCESS) {
      drop_mipmap(mipmap);
      return result;
    }
    mipmap->level[mipmap->levels]->parent = mipmap;
    level.Width = level.Width > 1 ? level.Width / 2 : 1;
    if (level.Height > 1) level.Height /= 2;
    if (level.Depth > 1 && !(level.Flags & CUDA_ARRAY3D_LAYERED)) level.Depth /= 2;
  }
  *out = mipmap;
  return CUDA_SUCCESS;
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
  for (uint32_t i = 0; i < mipmap->levels; i++) out->size += (mipmap->level[i]->bytes + 65535) & ~65535ull;
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
