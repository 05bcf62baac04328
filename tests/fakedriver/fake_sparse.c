/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of sparse arrays, and whole deferred arrays, mapped to physical memory: references only, no bytes.
 * Must not depend on copies. Tests: tests/integration/test_native_sparse.py. */
#include "fake_array.h"
#include "fake_vmm.h"

#include <stdlib.h>

enum { TILE_BYTES = 65536, TAIL = 255, WHOLE = 254 };

struct tile {
  void *resource; /* CUarray or CUmipmappedArray */
  uint32_t level, layer, x, y, z; /* in tiles; level TAIL: x counts in the mip tail, WHOLE: a deferred array */
  struct memory *memory;
};
static struct tile *tiles;
static size_t count, capacity;

static struct tile extent_of(const struct CUarray_st *array) {
  if (array->depth && !(array->flags & CUDA_ARRAY3D_LAYERED))
    return (struct tile){.x = 32, .y = 32, .z = 64 / array->element};
  return (struct tile){.x = 512 / array->element, .y = 128, .z = 1};
}

static CUresult properties(CUDA_ARRAY_SPARSE_PROPERTIES *out, const struct CUarray_st *array, unsigned levels) {
  if (!array || !array->element || !(array->flags & CUDA_ARRAY3D_SPARSE)) return CUDA_ERROR_INVALID_VALUE;
  struct tile extent = extent_of(array);
  memset(out, 0, sizeof *out);
  out->tileExtent.width = extent.x;
  out->tileExtent.height = extent.y;
  out->tileExtent.depth = extent.z;
  out->miptailFirstLevel = levels;
  return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray array) {
  ENTER(cuArrayGetSparseProperties);
  NONNULL(out);
  return properties(out, array_check(array), 1);
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUmipmappedArray mipmap) {
  ENTER(cuMipmappedArrayGetSparseProperties);
  NONNULL(out);
  return properties(out, mipmap_level(mipmap, 0), 29);
}

/* --- one operation ------------------------------------------------------------------------------------------------ */

struct box {
  void *resource;
  struct memory *memory; /* NULL: unmap */
  struct tile from, to;
};

static uint32_t tiles_in(uint64_t texels, uint32_t extent) { return (uint32_t)((texels + extent - 1) / extent); }

static CUresult region(const CUarrayMapInfo *info, const struct CUarray_st *array, struct box *box) {
  struct tile extent = extent_of(array);
  if (array->flags & CUDA_ARRAY3D_DEFERRED_MAPPING) {
    box->from.level = WHOLE;
    box->to = (struct tile){.x = tiles_in(array->bytes, TILE_BYTES), .y = 1, .z = 1};
  } else if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    uint64_t offset = info->subresource.miptail.offset, size = info->subresource.miptail.size;
    if (offset % TILE_BYTES || size % TILE_BYTES || !size) return CUDA_ERROR_INVALID_VALUE;
    box->from = (struct tile){
        .level = TAIL, .layer = info->subresource.miptail.layer, .x = (uint32_t)(offset / TILE_BYTES)};
    box->to = (struct tile){.x = (uint32_t)((offset + size) / TILE_BYTES), .y = 1, .z = 1};
  } else {
    unsigned x = info->subresource.sparseLevel.offsetX, y = info->subresource.sparseLevel.offsetY,
             z = info->subresource.sparseLevel.offsetZ;
    unsigned w = info->subresource.sparseLevel.extentWidth, h = info->subresource.sparseLevel.extentHeight,
             d = info->subresource.sparseLevel.extentDepth;
    if (x % extent.x || y % extent.y || z % extent.z || !w || !h || !d) return CUDA_ERROR_INVALID_VALUE;
    if (x + w > array->width || y + h > array->height || z + d > (array->depth ? array->depth : 1))
      return CUDA_ERROR_INVALID_VALUE;
    box->from = (struct tile){.level = info->subresource.sparseLevel.level,
                              .layer = info->subresource.sparseLevel.layer,
                              .x = x / extent.x,
                              .y = y / extent.y,
                              .z = z / extent.z};
    box->to = (struct tile){
        .x = tiles_in(x + w, extent.x), .y = tiles_in(y + h, extent.y), .z = tiles_in(z + d, extent.z)};
  }
  return CUDA_SUCCESS;
}

static CUresult check(const CUarrayMapInfo *info, struct box *box) {
  int mipmapped = info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  if (!mipmapped && info->resourceType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  struct CUarray_st *array = mipmapped ? mipmap_level(info->resource.mipmap, info->subresource.sparseLevel.level)
                                       : array_check(info->resource.array);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if ((!mipmapped && array->parent) || !array->element ||
      !(array->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
    return CUDA_ERROR_INVALID_VALUE;
  if (__builtin_popcount(info->deviceBitMask) != 1 || info->flags) return CUDA_ERROR_INVALID_VALUE;
  *box = (struct box){.resource = mipmapped ? (void *)info->resource.mipmap : (void *)info->resource.array};
  TRY(region(info, array, box));
  if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
    return info->memHandle.memHandle ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  struct memory *memory = box->memory = memory_check(info->memHandle.memHandle);
  if (!memory || memory->gpu != array->context->gpu || !(memory->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t count_x = box->to.x - box->from.x, count_y = box->to.y - box->from.y, count_z = box->to.z - box->from.z;
  uint64_t bytes = count_x * count_y * count_z * TILE_BYTES;
  return info->offset > memory->size || bytes > memory->size - info->offset ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void drop(size_t index) {
  struct memory *memory = tiles[index].memory;
  tiles[index] = tiles[--count];
  memory->mappings--;
  memory_settle(memory);
}

static int inside(const struct tile *tile, const struct box *box) {
  return tile->resource == box->resource && tile->level == box->from.level && tile->layer == box->from.layer &&
         tile->x >= box->from.x && tile->x < box->to.x && tile->y >= box->from.y && tile->y < box->to.y &&
         tile->z >= box->from.z && tile->z < box->to.z;
}

static void add(struct tile tile) {
  if (count == capacity) {
    capacity = capacity ? capacity * 2 : 64;
    tiles = realloc(tiles, capacity * sizeof *tiles);
    if (!tiles) abort();
  }
  tiles[count++] = tile;
  tile.memory->mappings++;
}

static void apply(const struct box *box) {
  if (box->memory) box->memory->mappings++; /* it may be what is replaced */
  for (size_t i = count; i-- > 0;)
    if (inside(&tiles[i], box)) drop(i);
  if (!box->memory) return;
  struct tile tile = box->from;
  tile.resource = box->resource;
  tile.memory = box->memory;
  for (tile.z = box->from.z; tile.z < box->to.z; tile.z++)
    for (tile.y = box->from.y; tile.y < box->to.y; tile.y++)
      for (tile.x = box->from.x; tile.x < box->to.x; tile.x++) add(tile);
  box->memory->mappings--;
}

static CUresult map_list(CUarrayMapInfo *list, unsigned length, CUstream stream) {
  struct box box;
  CUresult result = CUDA_SUCCESS;
  (void)stream;
  if (!list || !length) return CUDA_ERROR_INVALID_VALUE;
  vmm_lock();
  for (unsigned i = 0; i < length && result == CUDA_SUCCESS; i++) result = check(&list[i], &box);
  for (unsigned i = 0; i < length && result == CUDA_SUCCESS; i++)
    if (check(&list[i], &box) == CUDA_SUCCESS) apply(&box);
  vmm_unlock();
  return result;
}
ENTRY_PTSZ(cuMemMapArrayAsync, (CUarrayMapInfo *list, unsigned length, CUstream stream), map_list,
           (list, length, stream))

void sparse_forget(void *resource) {
  vmm_lock();
  for (size_t i = count; i-- > 0;)
    if (i < count && tiles[i].resource == resource) drop(i);
  vmm_unlock();
}
