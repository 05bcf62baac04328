/* SPDX-License-Identifier: Apache-2.0 */
/* The C library's own dlsym, dlvsym, dlopen and the like, and pthread_create, which this library shadows or must not
 * import (their symbol versions differ between glibc releases).
 * Uses no hook. Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_LOADER_H
#define VC_HOOKS_LOADER_H

#include <dlfcn.h>

struct loader {
  void *(*dlsym)(void *handle, const char *name);
  void *(*dlvsym)(void *handle, const char *name, const char *version);
  void *(*dlopen)(const char *path, int mode);
  int (*dlclose)(void *handle);
  char *(*dlerror)(void);
  int (*dladdr1)(const void *address, Dl_info *info, void **extra, int flags);
};

/* Fills loader_real once; 0: this process has no dynamic loading functions (an old glibc without libdl). */
int loader_ready(void);

/* Read by the lookup stubs in assembly; the first member is the fast path of dlsym. */
extern struct loader loader_real __attribute__((visibility("hidden")));

/* Runs BODY in a thread of the library's own, named NAME, that receives no signals, and calls AT_EXIT when the program
 * ends by exit(), before what was registered earlier. 0: there is no thread. The C library's pthread_create is found at
 * run time: before glibc 2.34 it lies in a library that a program need not have, but every CUDA driver brings. */
int loader_start_thread(void *(*body)(void *), const char *name, void (*at_exit)(void *));

#endif
