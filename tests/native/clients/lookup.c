/* SPDX-License-Identifier: Apache-2.0 */
/* Prints, one line each, what lookups find, so that a run with and one without the library can be compared. Addresses
 * are printed as the name of the file they lie in. No argument: libcuda is never loaded. "load": it is, privately. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void show(const char *what, void *found) {
  Dl_info info;
  const char *error = dlerror(), *file = "nothing";
  if (found != NULL) file = dladdr(found, &info) ? strrchr(info.dli_fname, '/') : "somewhere";
  if (found != NULL && file != NULL && file[0] == '/') file++;
  printf("%s: %s%s\n", what, file != NULL ? file : "program", found == NULL && error == NULL ? " and no error" : "");
}

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

static void show_all(const char *name, void *handle) {
  char what[96];
  snprintf(what, sizeof what, "%s in RTLD_DEFAULT", name);
  show(what, dlsym(RTLD_DEFAULT, name));
  snprintf(what, sizeof what, "%s in the program", name);
  show(what, dlsym(dlopen(NULL, RTLD_NOW), name));
  snprintf(what, sizeof what, "%s in libc", name);
  show(what, dlsym(dlopen("libc.so.6", RTLD_NOW), name));
  snprintf(what, sizeof what, "%s versioned in libc", name);
  show(what, dlvsym(dlopen("libc.so.6", RTLD_NOW), name, OLDEST));
  if (handle == NULL) return;
  snprintf(what, sizeof what, "%s in libcuda", name);
  show(what, dlsym(handle, name));
}

int main(int argc, char **argv) {
  void *handle = argc > 1 && !strcmp(argv[1], "load") ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
  static const char *const names[] = {"cuInit", "cuMemAlloc_v2", "cuDriverGetVersion", "cuGetProcAddress_v2",
                                      "nvmlDeviceGetMemoryInfo", "cu", "cuNoSuchFunction", "dlopen", "malloc", ""};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) show_all(names[i], handle);
  show("malloc behind the program", dlsym(RTLD_NEXT, "malloc"));
  show("cuInit behind the program", dlsym(RTLD_NEXT, "cuInit"));
  return 0;
}
