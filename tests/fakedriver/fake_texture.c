/* SPDX-License-Identifier: Apache-2.0 */
/* Texture and surface objects: handles that remember what they were made of.
 * Must not depend on copies. Tests: tests/integration/test_native_array.py. */
#include "fake_array.h"

struct object {
  struct handle handle;
  CUDA_RESOURCE_DESC resource;
};
struct slot {
  union {
    struct object object;
    char room[256];
  };
};
_Static_assert(sizeof(struct object) <= 256, "the table has room for it");
static struct handles textures = HANDLES(struct slot, 1 << 16);
static struct handles surfaces = HANDLES(struct slot, 1 << 16);

static CUresult create(struct handles *table, unsigned long long *out, const CUDA_RESOURCE_DESC *resource,
                       int surface) {
  CUcontext context;
  TRY(context_current(&context));
  if (!out || !resource || (surface && resource->resType != CU_RESOURCE_TYPE_ARRAY)) return CUDA_ERROR_INVALID_VALUE;
  if (resource->resType == CU_RESOURCE_TYPE_ARRAY && !array_check(resource->res.array.hArray))
    return CUDA_ERROR_INVALID_VALUE;
  struct object *object = handle_new(table);
  if (!object) return CUDA_ERROR_OUT_OF_MEMORY;
  object->resource = *resource;
  *out = (uintptr_t)object;
  return CUDA_SUCCESS;
}

static struct object *check(const struct handles *table, unsigned long long handle) {
  struct object *object = (struct object *)(uintptr_t)handle;
  return handle_valid(table, object) ? object : NULL;
}

static CUresult destroy(struct handles *table, unsigned long long handle) {
  struct object *object = check(table, handle);
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  handle_delete(table, object);
  return CUDA_SUCCESS;
}

static CUresult describe(const struct handles *table, CUDA_RESOURCE_DESC *out, unsigned long long handle) {
  struct object *object = check(table, handle);
  if (!out || !object) return CUDA_ERROR_INVALID_VALUE;
  *out = object->resource;
  return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
                           const CUDA_RESOURCE_VIEW_DESC *view) {
  ENTER(cuTexObjectCreate);
  (void)view;
  NONNULL(texture);
  return create(&textures, out, resource, 0);
}
ENTRY(cuTexObjectDestroy, (CUtexObject object), destroy, (&textures, object))
ENTRY(cuTexObjectGetResourceDesc, (CUDA_RESOURCE_DESC *out, CUtexObject object), describe, (&textures, out, object))
ENTRY(cuSurfObjectCreate, (CUsurfObject *out, const CUDA_RESOURCE_DESC *resource), create,
      (&surfaces, out, resource, 1))
ENTRY(cuSurfObjectDestroy, (CUsurfObject object), destroy, (&surfaces, object))
ENTRY(cuSurfObjectGetResourceDesc, (CUDA_RESOURCE_DESC *out, CUsurfObject object), describe, (&surfaces, out, object))
