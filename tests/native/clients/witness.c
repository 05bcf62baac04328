/* SPDX-License-Identifier: Apache-2.0 */
/* A tool in front of all libraries, with a dlsym of its own as sanitizers and tracers have: writes down what a program
 * gets from cuGetProcAddress in both ABIs, and from dlsym for names of the driver. One line each into $WITNESS_LOG:
 *   v2 "cuMemAlloc" 3020 flags 0 status NULL: 0 cuMemAlloc_v2 libcuda.so.1 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

static void *(*next_dlsym)(void *, const char *);
static __typeof__(&cuGetProcAddress) next_v1;
static __typeof__(&cuGetProcAddress_v2) next_v2;

static void tell(const char *query, int code, void *found) {
  Dl_info info;
  const char *path = getenv("WITNESS_LOG"), *symbol = "-", *file = "-";
  FILE *log = path != NULL ? fopen(path, "a") : NULL;
  if (log == NULL) return;
  if (found != NULL && dladdr(found, &info) && info.dli_sname != NULL && info.dli_saddr == found) symbol = info.dli_sname;
  if (found != NULL && dladdr(found, &info)) file = strrchr(info.dli_fname, '/') + 1;
  fprintf(log, "%s: %d %s %s\n", query, code, symbol, file);
  fclose(log);
}

static CUresult witness_v1(const char *name, void **out, int version, cuuint64_t flags);
static CUresult witness_v2(const char *name, void **out, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status);

/* Runtimes ask cuGetProcAddress for itself and go on with the answer: stay in between. */
static void *stay(void *found) {
  Dl_info info;
  if (found == NULL || !dladdr(found, &info) || info.dli_sname == NULL) return found;
  if (!strcmp(info.dli_sname, "cuGetProcAddress")) return next_v1 = (__typeof__(next_v1))found, (void *)witness_v1;
  if (!strcmp(info.dli_sname, "cuGetProcAddress_v2")) return next_v2 = (__typeof__(next_v2))found, (void *)witness_v2;
  return found;
}

static CUresult witness_v1(const char *name, void **out, int version, cuuint64_t flags) {
  char query[256];
  CUresult result = next_v1(name, out, version, flags);
  snprintf(query, sizeof query, "v1 \"%s\" %d flags %d status none", name, version, (int)flags);
  tell(query, (int)result, result == CUDA_SUCCESS ? *out : NULL);
  if (result == CUDA_SUCCESS) *out = stay(*out);
  return result;
}

static CUresult witness_v2(const char *name, void **out, int version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status) {
  char query[256];
  CUresult result = next_v2(name, out, version, flags, status);
  snprintf(query, sizeof query, "v2 \"%s\" %d flags %d status %s", name, version, (int)flags,
           status == NULL ? "NULL" : *status == 0 ? "found" : *status == 1 ? "not found" : "version");
  tell(query, (int)result, result == CUDA_SUCCESS ? *out : NULL);
  if (result == CUDA_SUCCESS) *out = stay(*out);
  return result;
}

void *dlsym(void *handle, const char *name) {
  char query[256];
  if (next_dlsym == NULL) next_dlsym = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OLDEST);
  void *found = next_dlsym(handle, name);
  if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z' || found == NULL) return found;
  snprintf(query, sizeof query, "dlsym \"%s\"", name);
  tell(query, 0, found);
  return stay(found);
}
