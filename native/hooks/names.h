/* SPDX-License-Identifier: Apache-2.0 */
/* From a function name to the hook that takes its place.
 * Uses no policy. Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_NAMES_H
#define VC_HOOKS_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "symbols.h"

enum hook_kind { HOOK_CUDA, HOOK_NVML, HOOK_LOADER };

/* No address in it: see symbols.h. */
struct hook {
  struct symbol name;
  uint16_t word;  /* of the table of real functions */
  uint8_t kind;   /* an enum hook_kind */
  uint8_t shared; /* of kind SHARED: takes nothing's place in a process without a compute share */
};

const char *names_text(const struct hook *hook);

/* The exported function of this library. */
void *names_wrapper(const struct hook *hook);

/* The driver's (or the C library's) function; NULL: not known yet, or it has none. */
void *names_real(const struct hook *hook);

/* RTLD_DEFAULT finds our wrapper, and the driver behind it; written by resolve.c. */
_Atomic char *names_first(const struct hook *hook);

/* NULL: not ours. Costs a few nanoseconds for names that begin like ours, less for all others. */
const struct hook *names_find(const char *name);

/* The library that a name belongs to by its form, an enum hook_kind; -1: none. The CUDA driver's names have a capital
 * after "cu", those of the runtime and of libraries (cudaMalloc, cudnnCreate, cublasCreate) do not. */
int names_owner(const char *name);

/* What a program that asks for the hook's function is given: the wrapper, or the driver's own. */
void *names_place(const struct hook *hook);

/* The real functions of KIND are known: from now on pointers.h finds their hooks. One caller at a time. */
void names_adopted(enum hook_kind kind);

#endif
