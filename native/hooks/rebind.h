/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that have variables of their own under the names of driver functions (function pointers that they fill by
 * dlsym, as cuew and NVIDIA's samples do). A preloaded function of that name takes the variable's place in the
 * library's own references, and what it stores there would go into our code.
 * docs/adr/0043-a-librarys-own-variables-are-its-own.md.
 * Uses the list of hooks, no driver. Tests: tests/integration/test_native_variables.py. */
#ifndef VC_HOOKS_REBIND_H
#define VC_HOOKS_REBIND_H

#include <stdatomic.h>
#include <stdint.h>

#include "nvidia.h"

enum { REBIND_PAGES = 16, REBIND_PAGE_BITS = 12 };

/* Pages of code that have looked up a driver's function, by their last bits. */
extern _Atomic uintptr_t rebind_pages[REBIND_PAGES] __attribute__((visibility("hidden")));

/* Checks whether libraries have been loaded since the last time, and gives those of this kind their variables back. */
__attribute__((noinline, cold)) void rebind_slowly(const void *caller);

/* Before CALLER, a place in the program's code, is given a driver's function. */
static inline void rebind(const void *caller) {
  uintptr_t page = (uintptr_t)caller >> REBIND_PAGE_BITS;
  if (!VC_LIKELY(atomic_load_explicit(&rebind_pages[page % REBIND_PAGES], memory_order_relaxed) == page))
    rebind_slowly(caller);
}

#endif
