/* See thread.h.
 * Uses no hook. Tests: tests/integration/test_native_share.py. */
#define _GNU_SOURCE
#include "thread.h"

#include <stddef.h>
#include <stdint.h>

#include "loader.h"
#include "os.h"

/* In every C library; atexit() itself is a static wrapper around it. */
int __cxa_atexit(void (*function)(void *), void *argument, void *dso);
extern void *__dso_handle;

/* As pthread.h has it; a pthread_t is a word. */
typedef int create_thread(unsigned long *thread, const void *attributes, void *(*body)(void *), void *argument);

int thread_start(void *(*body)(void *), const char *name, void (*at_exit)(void *)) {
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
