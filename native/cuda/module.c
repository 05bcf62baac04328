/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and libraries. What a load takes is not known before: it is found afterwards as the process's undeclared
 * bytes (hooks/undeclared.h), and a load that does not fit is undone. It stays part of the undeclared bytes, so there
 * is no entry for a module, and what the driver loads later (lazily, at the first use of a kernel) or keeps after an
 * unload is right as well.
 * Computes no sizes. Tests: tests/integration/test_native_module.py. */
#include "charge.h"
#include "context_table.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "shm.h"
#include "undeclared.h"

/* A library can be loaded without a context; what it takes appears when it is used in one. */
static CUresult settle(void) {
  struct place place;
  if (!undeclared_is_measurable() || context_place(&place) != CUDA_SUCCESS) return CUDA_SUCCESS;
  undeclared_prepare();
  return undeclared_take(place.column, charge_column);
}

/* How much it would have taken nobody knows. */
static CUresult failed(CUresult result) {
  struct place place;
  if (result == CUDA_ERROR_OUT_OF_MEMORY && context_place(&place) == CUDA_SUCCESS)
    charge_driver_refused(place.column, 0);
  return result;
}

static CUresult finish_module(CUresult result, CUmodule module, CUmodule *out) {
  if (result != CUDA_SUCCESS) return failed(result);
  result = settle();
  if (result == CUDA_SUCCESS)
    *out = module;
  else if (real_cuda.cuModuleUnload != NULL)
    real_cuda.cuModuleUnload(module);
  return result;
}

CUresult vc_cuModuleLoad(CUmodule *module, const char *path) {
  CUmodule loaded = NULL;
  if (module == NULL) return real_cuda.cuModuleLoad(module, path);
  CUresult result = real_cuda.cuModuleLoad(&loaded, path);
  return finish_module(result, loaded, module);
}

CUresult vc_cuModuleLoadData(CUmodule *module, const void *image) {
  CUmodule loaded = NULL;
  if (module == NULL) return real_cuda.cuModuleLoadData(module, image);
  CUresult result = real_cuda.cuModuleLoadData(&loaded, image);
  return finish_module(result, loaded, module);
}

CUresult vc_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                               void **values) {
  CUmodule loaded = NULL;
  if (module == NULL) return real_cuda.cuModuleLoadDataEx(module, image, count, options, values);
  CUresult result = real_cuda.cuModuleLoadDataEx(&loaded, image, count, options, values);
  return finish_module(result, loaded, module);
}

CUresult vc_cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  CUmodule loaded = NULL;
  if (module == NULL) return real_cuda.cuModuleLoadFatBinary(module, image);
  CUresult result = real_cuda.cuModuleLoadFatBinary(&loaded, image);
  return finish_module(result, loaded, module);
}

static CUresult finish_library(CUresult result, CUlibrary library, CUlibrary *out) {
  if (result != CUDA_SUCCESS) return failed(result);
  result = settle();
  if (result == CUDA_SUCCESS)
    *out = library;
  else if (real_cuda.cuLibraryUnload != NULL)
    real_cuda.cuLibraryUnload(library);
  return result;
}

CUresult vc_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                              unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
  CUlibrary loaded = NULL;
  if (library == NULL)
    return real_cuda.cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count);
  CUresult result = real_cuda.cuLibraryLoadData(&loaded, code, jit, jit_values, jit_count, options, values, count);
  return finish_library(result, loaded, library);
}

CUresult vc_cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                                  unsigned int jit_count, CUlibraryOption *options, void **values,
                                  unsigned int count) {
  CUlibrary loaded = NULL;
  if (library == NULL)
    return real_cuda.cuLibraryLoadFromFile(library, path, jit, jit_values, jit_count, options, values, count);
  CUresult result =
      real_cuda.cuLibraryLoadFromFile(&loaded, path, jit, jit_values, jit_count, options, values, count);
  return finish_library(result, loaded, library);
}

static CUresult finish_unload(CUresult result) {
  undeclared_prepare();
  if (result == CUDA_SUCCESS) undeclared_renew_all();
  return result;
}

CUresult vc_cuModuleUnload(CUmodule module) { return finish_unload(real_cuda.cuModuleUnload(module)); }

CUresult vc_cuLibraryUnload(CUlibrary library) { return finish_unload(real_cuda.cuLibraryUnload(library)); }
