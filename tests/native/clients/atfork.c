/* SPDX-License-Identifier: Apache-2.0 */
/* Stands before the C library's registration of fork handlers, which every pthread_atfork() ends in: counts what the library
 * under test registers, and holds its first registration up. Preloaded before it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { NO_MEMORY = 12 };

typedef int registration(void (*)(void), void (*)(void), void (*)(void), void *);

static _Atomic int begun, done, held, failing;

int atfork_begun(void);
int atfork_done(void);
void atfork_hold(int on);
void atfork_fail(int on);
registration __register_atfork;

int atfork_begun(void) { return begun; }
int atfork_done(void) { return done; }
void atfork_hold(int on) { held = on; }
void atfork_fail(int on) { failing = on; }

static int is_from_library(const void *caller) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname != NULL && strstr(info.dli_fname, "libvcuda") != NULL;
}

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso) {
  registration *real = (registration *)dlsym(RTLD_NEXT, "__register_atfork");
  int counts = is_from_library(__builtin_return_address(0));
  if (counts && failing) return NO_MEMORY;
  if (counts && begun++ == 0)
    while (held) usleep(1000);
  int result = real(prepare, parent, child, dso);
  done += counts;
  return result;
}
