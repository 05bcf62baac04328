/* SPDX-License-Identifier: Apache-2.0 */
/* What is mapped into an array is a list of pieces: boxes of texels, stretches of the mip tail, or all of a deferred
 * array. A new piece takes the place of all that it covers, so the pieces of an array never overlap.
 * The driver maps in stream order, this file counts when the call is made.
 * Tests: tests/integration/test_native_sparse.py. */
#include "sparse.h"

#include "allocators.h"
#include "context_table.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "holding.h"
#include "place.h"
#include "store.h"

enum { AXES = 3, DEFERRED = 1 };
enum { PLANE_TAIL = INT32_MAX, PLANE_WHOLE = INT32_MAX - 1 }; /* else the level */

struct box {
  uint32_t plane, layer;
  uint64_t low[AXES], high[AXES];
};

struct piece {
  uint32_t next;
  uint32_t holding;
  struct box box;
};

static struct lock lock; /* of the pieces */
static struct store pieces = {.size = sizeof(struct piece)};
/* Array -> its first piece as the bytes, DEFERRED or 0 as the column, and the context it dies with. Under the lock. */
static VC_LARGE struct table arrays;

static struct piece *at(uint32_t number) { return store_at(&pieces, number); }

/* Under the lock. */
static void drop(uint32_t *link) {
  uint32_t number = *link, holding = at(number)->holding;
  *link = at(number)->next;
  store_delete(&pieces, number);
  holding_release(holding);
}

static void drop_all(uint32_t first) {
  lock_take(&lock);
  while (first != 0) drop(&first);
  lock_give(&lock);
}

void sparse_begin(uint64_t array, unsigned int flags) {
  struct place place = {0, OWNER_PROCESS};
  struct table_entry old;
  if ((flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0) return;
  context_place(&place);
  const struct table_entry entry = {array, 0, flags & CUDA_ARRAY3D_DEFERRED_MAPPING ? DEFERRED : 0, place.owner};
  if (table_put_back(&arrays, &entry, &old) == 1) /* it was destroyed by a call that is not hooked */
    drop_all((uint32_t)old.bytes);
}

/* Out of the table first: the driver may give the handle to another thread's new array at once. */
CUresult sparse_destroy(uint64_t array, CUresult (*call)(CUdeviceptr key)) {
  struct table_entry entry, old;
  int known = array != 0 && table_take(&arrays, array, &entry);
  CUresult result = call(array);
  if (known && result == CUDA_SUCCESS) drop_all((uint32_t)entry.bytes);
  if (known && result != CUDA_SUCCESS) table_put_back(&arrays, &entry, &old);
  return result;
}

static void forget(const struct table_entry *entry, void *data) {
  (void)data;
  drop_all((uint32_t)entry->bytes);
}

static void forget_owner(uint32_t owner) { table_take_owner(&arrays, owner, forget, NULL); }

void sparse_after_fork(void) {
  lock_give(&lock);
  store_reset(&pieces);
  table_reset(&arrays);
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

static int overlap(const struct box *a, const struct box *b) {
  if (a->plane != b->plane || a->layer != b->layer) return 0;
  for (int axis = 0; axis < AXES; axis++)
    if (a->low[axis] >= b->high[axis] || b->low[axis] >= a->high[axis]) return 0;
  return 1;
}

/* Puts the part of NUMBER that lies in LOW ... HIGH of the axis into a piece of its own, which takes the same hold.
 * 0: no memory. */
static int split(uint32_t *link, uint32_t number, int axis, uint64_t low, uint64_t high) {
  uint32_t part = store_new(&pieces);
  if (part == 0) return 0;
  *at(part) = *at(number);
  at(part)->box.low[axis] = low;
  at(part)->box.high[axis] = high;
  at(part)->next = *link;
  *link = part;
  holding_retain(at(part)->holding);
  return 1;
}

/* Cuts everything off a piece that lies beyond the box; the cuttings go to *LIST. 0: no memory, some is still on. */
static int cut(uint32_t *list, uint32_t number, const struct box *box) {
  for (int axis = 0; axis < AXES; axis++) {
    uint64_t low = at(number)->box.low[axis], high = at(number)->box.high[axis];
    if (low < box->low[axis]) {
      if (!split(list, number, axis, low, box->low[axis])) return 0;
      at(number)->box.low[axis] = box->low[axis];
    }
    if (high > box->high[axis]) {
      if (!split(list, number, axis, box->high[axis], high)) return 0;
      at(number)->box.high[axis] = box->high[axis];
    }
  }
  return 1;
}

/* Takes the box out of a list. A piece that cannot be cut for want of memory stays: too much stays charged then, not
 * too little. */
static void clear(uint32_t *list, const struct box *box) {
  uint32_t cuttings = 0, previous = 0;
  for (uint32_t number = *list; number != 0;) {
    uint32_t next = at(number)->next;
    if (overlap(&at(number)->box, box) && cut(&cuttings, number, box))
      drop(previous != 0 ? &at(previous)->next : list);
    else
      previous = number;
    number = next;
  }
  while (cuttings != 0) {
    uint32_t next = at(cuttings)->next;
    at(cuttings)->next = *list;
    *list = cuttings;
    cuttings = next;
  }
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static struct box box_of(const CUarrayMapInfo *info, int deferred) {
  struct box box = {.high = {1, 1, 1}};
  if (deferred) {
    box.plane = PLANE_WHOLE;
  } else if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    box.plane = PLANE_TAIL;
    box.layer = info->subresource.miptail.layer;
    box.low[0] = info->subresource.miptail.offset;
    box.high[0] = box.low[0] + info->subresource.miptail.size;
  } else {
    box.plane = info->subresource.sparseLevel.level;
    box.layer = info->subresource.sparseLevel.layer;
    box.low[0] = info->subresource.sparseLevel.offsetX;
    box.low[1] = info->subresource.sparseLevel.offsetY;
    box.low[2] = info->subresource.sparseLevel.offsetZ;
    box.high[0] = box.low[0] + info->subresource.sparseLevel.extentWidth;
    box.high[1] = box.low[1] + info->subresource.sparseLevel.extentHeight;
    box.high[2] = box.low[2] + info->subresource.sparseLevel.extentDepth;
  }
  return box;
}

static uint64_t array_of(const CUarrayMapInfo *info) {
  return info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY ? (uintptr_t)info->resource.mipmap
                                                                : (uintptr_t)info->resource.array;
}

/* A piece for each entry that maps, in their order; it holds the memory from now on. 0: no memory. */
static int prepare(const CUarrayMapInfo *list, unsigned int count, uint32_t *first) {
  uint32_t last = 0;
  int ready = 1;
  lock_take(&lock);
  for (unsigned int i = 0; i < count && ready; i++) {
    if (list[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
    uint32_t number = store_new(&pieces);
    ready = number != 0;
    if (!ready) continue;
    at(number)->next = 0;
    at(number)->holding = holding_take(list[i].memHandle.memHandle);
    *(last != 0 ? &at(last)->next : first) = number;
    last = number;
  }
  lock_give(&lock);
  return ready;
}

static void apply(const CUarrayMapInfo *info, uint32_t *prepared) {
  struct table_entry entry, old;
  uint64_t array = array_of(info);
  int known = array != 0 && table_take(&arrays, array, &entry);
  int maps = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
  uint32_t number = maps ? *prepared : 0, list = known ? (uint32_t)entry.bytes : 0;
  struct box box = box_of(info, known && entry.column == DEFERRED);
  clear(&list, &box);
  if (maps && !known) {
    drop(prepared); /* made by a call that is not hooked: its end would not be seen either */
  } else if (maps) {
    *prepared = at(number)->next;
    at(number)->box = box;
    at(number)->next = list;
    list = number;
  }
  entry.bytes = list;
  if (known) table_put_back(&arrays, &entry, &old);
}

static CUresult map_array(CUarrayMapInfo *list, unsigned int count, CUstream stream,
                          CUresult (*call)(CUarrayMapInfo *, unsigned int, CUstream)) {
  uint32_t prepared = 0;
  if (list == NULL) return call(list, count, stream);
  int ready = prepare(list, count, &prepared);
  CUresult result = ready ? call(list, count, stream) : CUDA_ERROR_OUT_OF_MEMORY;
  lock_take(&lock);
  for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) apply(&list[i], &prepared);
  while (prepared != 0) drop(&prepared);
  lock_give(&lock);
  return result;
}

CUresult vc_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
  return map_array(list, count, stream, real_cuda.cuMemMapArrayAsync);
}

CUresult vc_cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
  return map_array(list, count, stream, real_cuda.cuMemMapArrayAsync_ptsz);
}

ALLOCATOR(sparse) = {.forget_owner = forget_owner};
