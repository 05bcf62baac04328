/* SPDX-License-Identifier: Apache-2.0 */
/* A library that defines no CUDA function and asks for the next one all the same. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *next_user_lookup(const char *name);

void *next_user_lookup(const char *name) { return dlsym(RTLD_NEXT, name); }
