/* SPDX-License-Identifier: Apache-2.0 */
/* Which form (ABI) of a driver function cuGetProcAddress means by a name, a version and the kind of default stream.
 * Asked only where the pointer that the driver gave is not known:
 * docs/adr/0042-a-pointer-that-is-not-known-is-judged-by-its-name.md.
 * Uses the list of hooks. Tests: tests/integration/test_native_lookup.py, test_native_proc_address.py. */
#ifndef VC_HOOKS_ABI_H
#define VC_HOOKS_ABI_H

#include "names.h"

/* The newest CUDA of which every form of every hooked function is known: that of the headers. */
enum { ABI_NEWEST = 13050 };

/* The hook of the form that a program made for VERSION (as in cuGetProcAddress, 12040 is 12.4) is to be given of NAME,
 * which names_find() knows. NULL: there was none yet. PER_THREAD: with the default stream of the thread, where there is
 * one. */
const struct hook *abi_pick(const char *name, int version, int per_thread);

#endif
