/* SPDX-License-Identifier: Apache-2.0 */
/* Reaches the driver as cuew and NVIDIA's samples do: through global variables that are named like its functions and are filled
 * by dlsym. A shared library, or with -DMAIN a program that exports them. -DBY_TABLE: filled through a table of their addresses. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Not from cuda.h, which declares them as functions. */
int (*cuDriverGetVersion)(int *);
int (*cuInit)(unsigned int);
int (*cuDevicePrimaryCtxRetain)(void **, int);
int (*cuCtxSetCurrent)(void *);
int (*cuMemAlloc_v2)(unsigned long long *, size_t);

int dynlink_load(const char *how);
int dynlink_use(size_t bytes);
int dynlink_finds_itself(void);

#ifdef BY_TABLE
static const struct {
  const char *name;
  void *variable;
} table[] = {{"cuDriverGetVersion", &cuDriverGetVersion},
             {"cuInit", &cuInit},
             {"cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain},
             {"cuCtxSetCurrent", &cuCtxSetCurrent},
             {"cuMemAlloc_v2", &cuMemAlloc_v2}};

static void fill(void *driver) {
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    void *found = dlsym(driver, table[i].name);
    memcpy(table[i].variable, &found, sizeof found);
  }
}
#else
#define FIND(name) *(void **)&name = dlsym(driver, #name)
static void fill(void *driver) {
  FIND(cuDriverGetVersion);
  FIND(cuInit);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxSetCurrent);
  FIND(cuMemAlloc_v2);
}
#endif

/* How many of the variables are filled. */
int dynlink_load(const char *how) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | (strcmp(how, "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL));
  if (driver == NULL) return -1;
  fill(driver);
  return (cuDriverGetVersion != NULL) + (cuInit != NULL) + (cuDevicePrimaryCtxRetain != NULL) +
         (cuCtxSetCurrent != NULL) + (cuMemAlloc_v2 != NULL);
}

int dynlink_use(size_t bytes) {
  void *context;
  unsigned long long block;
  if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0) return -1;
  return cuMemAlloc_v2(&block, bytes);
}

/* What RTLD_DEFAULT gives for a name: 1, the variable. */
int dynlink_finds_itself(void) { return dlsym(RTLD_DEFAULT, "cuInit") == (void *)&cuInit; }

#ifdef MAIN
int main(int argc, char **argv) {
  int filled = dynlink_load(argc > 1 ? argv[1] : "local");
  printf("%d %d %d %d\n", filled, dynlink_use((size_t)2 << 30), dynlink_use((size_t)1 << 20), dynlink_finds_itself());
  return 0;
}
#endif
