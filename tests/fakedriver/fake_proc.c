/* SPDX-License-Identifier: Apache-2.0 */
/* How programs find entry points: cuGetProcAddress in both ABIs, cuGetExportTable, error names.
 * Must not depend on what any entry point does. Tests: tests/unit/fakedriver/test_proc_address.py. */
#include "fake_cuda.h"
#include "fake_env.h"
#include "fake_symbols.h"

#include <stdlib.h>

/* A second address of each function, for drivers that do not hand out the exported one. */
#if defined(__x86_64__)
#define JUMP "jmp "
#else
#define JUMP "b "
#endif
#define SYMBOL(symbol, name, version, stream, early)                                                     \
  extern const char other_##symbol[] __attribute__((visibility("hidden")));                              \
  __asm__(".pushsection .text\n.globl other_" #symbol "\n.hidden other_" #symbol "\n.type other_" #symbol \
          ", %function\n.p2align 4\nother_" #symbol ": " JUMP #symbol "\n.popsection");
#include "cuda.def"
#undef SYMBOL

/* Sorted by name, as cuda.def is. */
static const struct symbol {
  const char *name;
  void *address;
  const void *other;
  int version; /* CUDA version that has it first */
  int per_thread;
} symbols[] = {
#define SYMBOL(symbol, name, version, stream, early) {#name, (void *)symbol, other_##symbol, version, stream},
#include "cuda.def"
#undef SYMBOL
};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };

static const struct symbol *first_named(const char *name) {
  size_t low = 0, high = SYMBOLS;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (strcmp(symbols[middle].name, name) < 0) low = middle + 1;
    else high = middle;
  }
  return low < SYMBOLS && !strcmp(symbols[low].name, name) ? &symbols[low] : NULL;
}

/* The newest ABI of NAME that a program made for VERSION may get, among those this driver's version has. */
static void *look_up(const char *name, int version, int per_thread, CUdriverProcAddressQueryResult *status) {
  const struct symbol *best = NULL;
  int driver = (int)fake_state->machine.cuda_version, known = 0;
  for (const struct symbol *at = first_named(name); at && at < symbols + SYMBOLS && !strcmp(at->name, name); at++) {
    if (at->version > driver || (at->per_thread && !per_thread)) continue;
    known = 1;
    if (at->version > version) continue;
    if (!best || at->per_thread > best->per_thread ||
        (at->per_thread == best->per_thread && at->version > best->version))
      best = at;
  }
  *status = best    ? CU_GET_PROC_ADDRESS_SUCCESS
            : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (!best) return NULL;
  return fake_env_proc_is_other(version) ? (void *)(uintptr_t)best->other : best->address;
}

#define KNOWN_FLAGS (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

static CUresult check(const char *name, void **out, cuuint64_t flags) {
  if (!name || !out || flags & ~(cuuint64_t)KNOWN_FLAGS) return CUDA_ERROR_INVALID_VALUE;
  return state_attach() ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
  ENTER(cuGetProcAddress);
  CUdriverProcAddressQueryResult status;
  TRY(check(name, out, flags));
  void *address = look_up(name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &status);
  if (!address) return CUDA_ERROR_NOT_FOUND; /* OUT keeps what it held */
  *out = address;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  ENTER(cuGetProcAddress_v2);
  CUdriverProcAddressQueryResult found;
  TRY(check(name, out, flags));
  *out = look_up(name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &found);
  if (status) *status = found;
  return CUDA_SUCCESS;
}

/* The private tables of the driver are not simulated; a caller learns that a table is not there. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  ENTER(cuGetExportTable);
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  *table = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

static const struct {
  CUresult code;
  const char *name, *text;
} errors[] = {
#define CUDA_ERROR_TEXT(code, text) {code, #code, text},
#include "cuda_errors.def"
#undef CUDA_ERROR_TEXT
};

static int error_index(CUresult code) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return (int)i;
  return -1;
}

CUresult cuGetErrorName(CUresult code, const char **out) {
  ENTER(cuGetErrorName);
  NONNULL(out);
  int index = error_index(code);
  *out = index < 0 ? NULL : errors[index].name;
  return index < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char **out) {
  ENTER(cuGetErrorString);
  NONNULL(out);
  int index = error_index(code);
  *out = index < 0 ? NULL : errors[index].text;
  return index < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuProfilerStart(void) {
  ENTER(cuProfilerStart);
  CUcontext context;
  return context_current(&context);
}

CUresult cuProfilerStop(void) {
  ENTER(cuProfilerStop);
  CUcontext context;
  return context_current(&context);
}
