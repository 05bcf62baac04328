/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: any image is accepted, and its functions and variables are found by name.
 * Must not depend on how kernels are launched. Tests: tests/unit/fakedriver/test_modules.py.
 *
 * If the image is PTX text with entries, only names that occur in it are found; otherwise every name is. A function
 * whose name ends in _<number>us or _<number>ms takes that time; a variable that ends in _<number> has that many
 * bytes. A module costs module_memory of its context's GPU. */
#include "fake_code.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct CUmod_st {
  struct handle handle;
  CUcontext context;
  char *text; /* PTX, or NULL */
  uint64_t charged;
  uint64_t level; /* of the limits that count it */
  uint64_t padding[3];
};
struct CUlib_st {
  struct handle handle;
  char *text;
  CUmodule module; /* in the context that asked first */
  uint64_t reserved;
};
HANDLE_SIZE_CHECK(struct CUmod_st);
HANDLE_SIZE_CHECK(struct CUlib_st);
HANDLE_SIZE_CHECK(struct CUfunc_st);
static struct handles modules = HANDLES(struct CUmod_st, 1 << 16);
static struct handles libraries = HANDLES(struct CUlib_st, 1 << 16);
struct handles functions = HANDLES(struct CUfunc_st, 1 << 20);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int is_ptx(const char *image) {
  while (isspace((unsigned char)*image)) image++;
  return !strncmp(image, "//", 2) || !strncmp(image, ".version", 8) || !strncmp(image, ".target", 7);
}

static char *keep_text(const void *image) { return is_ptx(image) && strstr(image, ".entry") ? strdup(image) : NULL; }

static int has_name(const char *text, const char *name) {
  size_t length = strlen(name);
  for (const char *at = text; at && (at = strstr(at, name)); at += length)
    if ((at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '_')) && !isalnum((unsigned char)at[length]) &&
        at[length] != '_')
      return 1;
  return text == NULL;
}

static CUresult load(CUmodule *out, const void *image, CUcontext context) {
  if (!context) TRY(context_current(&context));
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  uint64_t cost = memory_rounded(fake_state->machine.module_bytes);
  unsigned level = 0;
  if (cost) TRY(memory_charge(context->gpu, cost, &level));
  CUmodule module = handle_new(&modules);
  if (!module) return CUDA_ERROR_OUT_OF_MEMORY;
  module->context = context;
  module->text = keep_text(image);
  module->charged = cost;
  module->level = level;
  *out = module;
  return CUDA_SUCCESS;
}

static CUresult read_file(const char *path, char **out) {
  NONNULL(path);
  FILE *file = fopen(path, "re");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  size_t size = 0;
  ssize_t length = getdelim(out, &size, EOF, file);
  fclose(file);
  return length > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleLoad(CUmodule *out, const char *path) {
  ENTER(cuModuleLoad);
  char *image = NULL;
  CUresult result = read_file(path, &image);
  if (result == CUDA_SUCCESS) result = load(out, image, NULL);
  free(image);
  return result;
}
ENTRY(cuModuleLoadData, (CUmodule *out, const void *image), load, (out, image, NULL))
ENTRY(cuModuleLoadFatBinary, (CUmodule *out, const void *image), load, (out, image, NULL))

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, CUjit_option *options, void **values) {
  ENTER(cuModuleLoadDataEx);
  if (count && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
  return load(out, image, NULL);
}

static void drop_function(void *item, void *module) {
  CUfunction function = item;
  if (function->module != module) return;
  free((char *)function->name);
  handle_delete(&functions, function);
}

static void unload(CUmodule module) {
  handle_each(&functions, drop_function, module);
  if (module->charged) state_uncharge(module->context->gpu, module->charged, (unsigned)module->level);
  free(module->text);
  handle_delete(&modules, module);
}

CUresult cuModuleUnload(CUmodule module) {
  ENTER(cuModuleUnload);
  if (!handle_valid(&modules, module)) return CUDA_ERROR_INVALID_HANDLE;
  unload(module);
  return CUDA_SUCCESS;
}

static void drop_of_context(void *item, void *context) {
  if (((CUmodule)item)->context == context) unload(item);
}
void module_drop_context(CUcontext context) { handle_each(&modules, drop_of_context, context); }

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  ENTER(cuModuleGetLoadingMode);
  NONNULL(mode);
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

/* --- functions -------------------------------------------------------------------------------------------------- */

static uint64_t time_in_name(const char *name) {
  const char *last = strrchr(name, '_');
  uint64_t ns = 0;
  return last && isdigit((unsigned char)last[1]) && machine_parse_time(last + 1, &ns) == 0 ? ns : 0;
}

struct search {
  const void *owner;
  const char *name;
  CUfunction found;
};
static void match(void *item, void *arg) {
  CUfunction function = item;
  struct search *search = arg;
  const void *owner = function->library ? (const void *)function->library : (const void *)function->module;
  if (owner == search->owner && !strcmp(function->name, search->name)) search->found = function;
}

/* The same function each time it is asked for. */
static CUresult function_of(CUmodule module, CUlibrary library, const char *text, const char *name, CUfunction *out) {
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!*name || !has_name(text, name)) return CUDA_ERROR_NOT_FOUND;
  struct search search = {.owner = library ? (const void *)library : (const void *)module, .name = name};
  pthread_mutex_lock(&mutex);
  handle_each(&functions, match, &search);
  CUfunction function = search.found;
  char *copy = function ? NULL : strdup(name);
  if (!function && copy && (function = handle_new(&functions))) {
    function->module = module;
    function->library = library;
    function->name = copy;
    function->run_ns = time_in_name(name);
  }
  pthread_mutex_unlock(&mutex);
  *out = function;
  return function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  ENTER(cuModuleGetFunction);
  if (!handle_valid(&modules, module)) return CUDA_ERROR_INVALID_HANDLE;
  return function_of(module, NULL, module->text, name, out);
}

static CUresult global_of(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes) {
  if (!handle_valid(&modules, module)) return CUDA_ERROR_INVALID_HANDLE;
  NONNULL(name);
  if (!*name || !has_name(module->text, name)) return CUDA_ERROR_NOT_FOUND;
  const char *last = strrchr(name, '_');
  uint64_t size = last && isdigit((unsigned char)last[1]) ? strtoull(last + 1, NULL, 10) : 8;
  CUdeviceptr place;
  TRY(memory_take(module->context, size ? size : 8, BLOCK_GLOBAL, &place));
  if (address) *address = place;
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
  ENTER(cuModuleGetGlobal_v2);
  return global_of(module, name, address, bytes);
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *address, unsigned *bytes, CUmodule module, const char *name) {
  ENTER(cuModuleGetGlobal);
  (void)address, (void)bytes, (void)module, (void)name;
  return CUDA_ERROR_NOT_SUPPORTED; /* variables lie above the addresses of this ABI */
}

CUresult cuFuncGetModule(CUmodule *out, CUfunction function) {
  ENTER(cuFuncGetModule);
  NONNULL(out);
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  *out = function->module;
  return CUDA_SUCCESS;
}

static CUresult name_of(const char **name, CUfunction function) {
  NONNULL(name);
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name;
  return CUDA_SUCCESS;
}
ENTRY(cuFuncGetName, (const char **name, CUfunction function), name_of, (name, function))
ENTRY(cuKernelGetName, (const char **name, CUkernel kernel), name_of, (name, (CUfunction)kernel))

static CUresult attribute_of(int *value, CUfunction_attribute attribute, CUfunction function) {
  NONNULL(value);
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 80;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function->shared_bytes ? function->shared_bytes : 49152;
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return (int)attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
}
ENTRY(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function), attribute_of,
      (value, attribute, function))

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  ENTER(cuKernelGetAttribute);
  return device_valid(device) ? attribute_of(value, attribute, (CUfunction)kernel) : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || value > 232448) return CUDA_ERROR_INVALID_VALUE;
    function->shared_bytes = value;
  }
  return CUDA_SUCCESS;
}
ENTRY(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value), set_attribute,
      (function, attribute, value))

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  ENTER(cuKernelSetAttribute);
  return device_valid(device) ? set_attribute((CUfunction)kernel, attribute, value) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  ENTER(cuFuncSetCacheConfig);
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  function->cache_config = (int)config;
  return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
  ENTER(cuFuncIsLoaded);
  NONNULL(state);
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
  ENTER(cuFuncLoad);
  return handle_valid(&functions, function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- libraries -------------------------------------------------------------------------------------------------- */

static CUresult load_library(CUlibrary *out, const void *image) {
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  CUlibrary library = handle_new(&libraries);
  if (!library) return CUDA_ERROR_OUT_OF_MEMORY;
  library->text = keep_text(image);
  *out = library;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *jit, void **jit_values, unsigned jit_count,
                           CUlibraryOption *options, void **values, unsigned count) {
  ENTER(cuLibraryLoadData);
  if ((jit_count && (!jit || !jit_values)) || (count && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
  return load_library(out, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jit, void **jit_values,
                               unsigned jit_count, CUlibraryOption *options, void **values, unsigned count) {
  ENTER(cuLibraryLoadFromFile);
  if ((jit_count && (!jit || !jit_values)) || (count && (!options || !values))) return CUDA_ERROR_INVALID_VALUE;
  char *image = NULL;
  CUresult result = read_file(path, &image);
  if (result == CUDA_SUCCESS) result = load_library(out, image);
  free(image);
  return result;
}

static CUresult module_of(CUlibrary library, CUmodule *out) {
  if (!handle_valid(&libraries, library)) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = CUDA_SUCCESS;
  if (!handle_valid(&modules, library->module)) {
    CUmodule module = NULL;
    result = load(&module, library->text ? library->text : "", NULL);
    if (result == CUDA_SUCCESS) library->module = module;
  }
  if (result == CUDA_SUCCESS) *out = library->module;
  return result;
}

static void drop_kernel(void *item, void *library) {
  CUfunction function = item;
  if (function->library != library) return;
  free((char *)function->name);
  handle_delete(&functions, function);
}

CUresult cuLibraryUnload(CUlibrary library) {
  ENTER(cuLibraryUnload);
  if (!handle_valid(&libraries, library)) return CUDA_ERROR_INVALID_HANDLE;
  handle_each(&functions, drop_kernel, library);
  if (handle_valid(&modules, library->module)) unload(library->module);
  free(library->text);
  handle_delete(&libraries, library);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library) {
  ENTER(cuLibraryGetModule);
  NONNULL(out);
  return module_of(library, out);
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  ENTER(cuLibraryGetKernel);
  if (!handle_valid(&libraries, library)) return CUDA_ERROR_INVALID_HANDLE;
  return function_of(NULL, library, library->text, name, (CUfunction *)out);
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
  ENTER(cuKernelGetFunction);
  CUfunction function = (CUfunction)kernel;
  CUmodule module;
  NONNULL(out);
  if (!handle_valid(&functions, function) || !function->library) return CUDA_ERROR_INVALID_HANDLE;
  TRY(module_of(function->library, &module)); /* the library's code is in the context from now on */
  *out = function;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel kernel) {
  ENTER(cuKernelGetLibrary);
  NONNULL(out);
  if (!handle_valid(&functions, kernel)) return CUDA_ERROR_INVALID_HANDLE;
  *out = ((CUfunction)kernel)->library;
  return CUDA_SUCCESS;
}

struct listing {
  const void *owner;
  CUfunction *list;
  unsigned room, count;
};
static void list_function(void *item, void *arg) {
  CUfunction function = item;
  struct listing *listing = arg;
  const void *owner = function->library ? (const void *)function->library : (const void *)function->module;
  if (owner != listing->owner) return;
  if (listing->list && listing->count < listing->room) listing->list[listing->count] = function;
  listing->count++;
}

/* The simulated driver does not read images: it knows the functions that were asked for. */
static CUresult list_functions(const void *owner, int valid, CUfunction *list, unsigned room, unsigned *count) {
  struct listing listing = {.owner = owner, .list = list, .room = room};
  if (!valid) return CUDA_ERROR_INVALID_HANDLE;
  if (!list && !count) return CUDA_ERROR_INVALID_VALUE;
  handle_each(&functions, list_function, &listing);
  if (count) *count = listing.count;
  return CUDA_SUCCESS;
}
ENTRY(cuModuleGetFunctionCount, (unsigned *count, CUmodule module), list_functions,
      (module, handle_valid(&modules, module), NULL, 0, count))
ENTRY(cuModuleEnumerateFunctions, (CUfunction *list, unsigned room, CUmodule module), list_functions,
      (module, handle_valid(&modules, module), list, room, NULL))
ENTRY(cuLibraryGetKernelCount, (unsigned *count, CUlibrary library), list_functions,
      (library, handle_valid(&libraries, library), NULL, 0, count))
ENTRY(cuLibraryEnumerateKernels, (CUkernel *list, unsigned room, CUlibrary library), list_functions,
      (library, handle_valid(&libraries, library), (CUfunction *)list, room, NULL))

static CUresult library_global(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
  CUmodule module;
  TRY(module_of(library, &module));
  return global_of(module, name, address, bytes);
}
ENTRY(cuLibraryGetGlobal, (CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name), library_global,
      (address, bytes, library, name))
ENTRY(cuLibraryGetManaged, (CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name), library_global,
      (address, bytes, library, name))

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  ENTER(cuKernelSetCacheConfig);
  if (!handle_valid(&functions, kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  ((CUfunction)kernel)->cache_config = (int)config;
  return CUDA_SUCCESS;
}
