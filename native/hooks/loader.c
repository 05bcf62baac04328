/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the real loader functions in libc.so.6 (glibc 2.34 and later) or libdl.so.2 (before).
 * Uses no hook. Tests: tests/integration/test_native_lookup.py, test_native_share.py (the thread). */
#define _GNU_SOURCE
#include "loader.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "objects.h"
#include "os.h"

struct loader loader_real;

static _Atomic int found;

typedef int find_object(const char *soname, struct object *out);

static int find_in(find_object *find, const char *soname, struct loader *out) {
  struct object object;
  if (!find(soname, &object)) return 0;
  *(void **)&out->dlsym = objects_function(&object, "dlsym");
  *(void **)&out->dlvsym = objects_function(&object, "dlvsym");
  *(void **)&out->dlopen = objects_function(&object, "dlopen");
  *(void **)&out->dlclose = objects_function(&object, "dlclose");
  *(void **)&out->dlerror = objects_function(&object, "dlerror");
  *(void **)&out->dladdr1 = objects_function(&object, "dladdr1");
  return out->dlsym != NULL && out->dlvsym != NULL && out->dlopen != NULL && out->dlclose != NULL &&
         out->dlerror != NULL;
}

/* Threads that come here together find the same addresses and store the same words. */
static void publish(const struct loader *loader) {
  __atomic_store_n(&loader_real.dlvsym, loader->dlvsym, __ATOMIC_RELAXED);
  __atomic_store_n(&loader_real.dlopen, loader->dlopen, __ATOMIC_RELAXED);
  __atomic_store_n(&loader_real.dlclose, loader->dlclose, __ATOMIC_RELAXED);
  __atomic_store_n(&loader_real.dlerror, loader->dlerror, __ATOMIC_RELAXED);
  __atomic_store_n(&loader_real.dladdr1, loader->dladdr1, __ATOMIC_RELAXED);
  __atomic_store_n(&loader_real.dlsym, loader->dlsym, __ATOMIC_RELEASE);
}

int loader_ready(void) {
  struct loader loader;
  if (atomic_load_explicit(&found, memory_order_acquire)) return 1;
  if (!find_in(objects_find_initial, "libc.so.6", &loader) && !find_in(objects_find_soname, "libdl.so.2", &loader))
    return 0;
  publish(&loader);
  atomic_store_explicit(&found, 1, memory_order_release);
  return 1;
}

/* In every C library; atexit() itself is a static wrapper around it. */
int __cxa_atexit(void (*function)(void *), void *argument, void *dso);
extern void *__dso_handle;

/* As pthread.h has it; a pthread_t is a word. */
typedef int create_thread(unsigned long *thread, const void *attributes, void *(*body)(void *), void *argument);

int loader_start_thread(void *(*body)(void *), const char *name, void (*at_exit)(void *)) {
  unsigned long thread;
  uint64_t mask;
  create_thread *create = NULL;
  if (!loader_ready()) return 0;
  *(void **)&create = loader_real.dlsym(RTLD_DEFAULT, "pthread_create");
  if (create == NULL) {
    loader_real.dlerror(); /* the failure is ours, not the program's */
    return 0;
  }
  os_signals_block(&mask);
  int result = create(&thread, NULL, body, (void *)(uintptr_t)name);
  os_signals_restore(&mask);
  if (result != 0) return 0;
  __cxa_atexit(at_exit, NULL, &__dso_handle);
  return 1;
}
