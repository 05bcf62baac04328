/* The C library's own dlsym, dlvsym, dlopen and the like, which this library shadows or must not import (their symbol
 * versions differ between glibc releases).
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

#endif
