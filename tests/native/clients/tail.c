/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what RTLD_NEXT finds for functions that are not hooked, from a library that defines one of them itself: only a
 * lookup that the C library believes to come from here can answer right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int cu_private_function(void);
int cu_private_function(void) { return 1; }

char *strerror(int number) {
  char *(*next)(int) = (char *(*)(int))dlsym(RTLD_NEXT, "strerror");
  return next == NULL || next == &strerror ? (char *)"circle" : next(number);
}

__attribute__((constructor)) static void start(void) {
  printf("%s\n", dlsym(RTLD_NEXT, "cu_private_function") == NULL ? "no further one" : "its own again");
  printf("%s\n", !strcmp(strerror(2), "circle") ? "circle" : "libc");
}
