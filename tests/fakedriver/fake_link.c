/* SPDX-License-Identifier: Apache-2.0 */
/* The linker that makes one image of several: its result is the text that went in.
 * Must not depend on modules. Tests: tests/unit/fakedriver/test_modules.py. */
#include "fake_cuda.h"
#include "fake_handle.h"

#include <stdio.h>
#include <stdlib.h>

struct CUlinkState_st {
  struct handle handle;
  char *image;
  size_t size;
  uint64_t rest;
};
HANDLE_SIZE_CHECK(struct CUlinkState_st);
static struct handles links = HANDLES(struct CUlinkState_st, 1 << 12);

static CUresult create(unsigned count, CUjit_option *options, void **values, CUlinkState *out) {
  CUcontext context;
  TRY(context_current(&context));
  if (!out || (count && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
  CUlinkState link = handle_new(&links);
  if (!link) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = link;
  return CUDA_SUCCESS;
}
#define CREATE (unsigned count, CUjit_option *options, void **values, CUlinkState *out)
ENTRY(cuLinkCreate, CREATE, create, (count, options, values, out))
ENTRY(cuLinkCreate_v2, CREATE, create, (count, options, values, out))

static CUresult add(CUlinkState link, const void *data, size_t size) {
  if (!handle_valid(&links, link)) return CUDA_ERROR_INVALID_HANDLE;
  if (!data || !size) return CUDA_ERROR_INVALID_IMAGE;
  char *grown = realloc(link->image, link->size + size + 1);
  if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(grown + link->size, data, size);
  link->image = grown;
  link->size += size;
  grown[link->size] = '\0';
  return CUDA_SUCCESS;
}

static CUresult add_data(CUlinkState link, void *data, size_t size, unsigned count, const void *options,
                         void **values) {
  return count && (!options || !values) ? CUDA_ERROR_INVALID_VALUE : add(link, data, size);
}
#define ADD_DATA \
  (CUlinkState link, CUjitInputType type, void *data, size_t size, const char *name, unsigned count, \
   CUjit_option *options, void **values)
#define LINK_DATA(symbol) \
  CUresult symbol ADD_DATA { \
    ENTER(symbol); \
    (void)type, (void)name; \
    return add_data(link, data, size, count, options, values); \
  }
LINK_DATA(cuLinkAddData)
LINK_DATA(cuLinkAddData_v2)

static CUresult add_file(CUlinkState link, const char *path) {
  NONNULL(path);
  FILE *file = fopen(path, "re");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  char *text = NULL;
  size_t room = 0;
  ssize_t length = getdelim(&text, &room, EOF, file);
  fclose(file);
  CUresult result = add(link, text, length > 0 ? (size_t)length : 0);
  free(text);
  return result;
}
#define LINK_FILE(symbol) \
  CUresult symbol(CUlinkState link, CUjitInputType type, const char *path, unsigned count, CUjit_option *options, \
                  void **values) { \
    ENTER(symbol); \
    (void)type; \
    return count && (!options || !values) ? CUDA_ERROR_INVALID_VALUE : add_file(link, path); \
  }
LINK_FILE(cuLinkAddFile)
LINK_FILE(cuLinkAddFile_v2)

CUresult cuLinkComplete(CUlinkState link, void **image, size_t *size) {
  ENTER(cuLinkComplete);
  if (!handle_valid(&links, link)) return CUDA_ERROR_INVALID_HANDLE;
  if (!image || !link->image) return CUDA_ERROR_INVALID_VALUE;
  *image = link->image;
  if (size) *size = link->size;
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState link) {
  ENTER(cuLinkDestroy);
  if (!handle_valid(&links, link)) return CUDA_ERROR_INVALID_HANDLE;
  free(link->image);
  handle_delete(&links, link);
  return CUDA_SUCCESS;
}
