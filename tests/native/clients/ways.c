/* SPDX-License-Identifier: Apache-2.0 */
/* `ways WAY [FILE]`: finds the driver in one particular way, uses it, and prints what it met, one word a line:
 * "limited" (the GPU is 1 GiB large, 100 MiB are given and 2 GiB refused), "unlimited", or what went wrong.
 * The tests say what is right for each way: tests/integration/test_native_ways.py. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ways.h"

static void *handle;

static void *by_handle(const char *name) { return dlsym(handle, name); }

static void say(const char *word) {
  printf("%s\n", word);
  fflush(stdout);
}

static void open_driver(void) {
  handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror()), exit(9);
}

static void simple(const char *file) {
  (void)file;
  open_driver();
  say(use_driver(by_handle));
}

/* Under another name, and nothing else of the driver is opened. */
static void by_file(const char *file) {
  handle = dlopen(file, RTLD_NOW);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror()), exit(9);
  say(use_driver(by_handle));
}

/* A lookup that succeeds leaves no error, however it was answered; one that fails leaves its own. */
static void errors(const char *file) {
  (void)file;
  void *scopes[] = {RTLD_DEFAULT, dlopen(NULL, RTLD_NOW), dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)};
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < 3; i++) {
      void *hooked = dlsym(scopes[i], "cuMemAlloc_v2"), *error;
      dlsym(scopes[i], "cuNoSuchFunction");
      if (dlsym(scopes[i], "cuMemAlloc_v2") != hooked || hooked == NULL || dlerror() != NULL) say("an error is left");
      dlsym(scopes[i], "cuNoSuchFunction");
      if (dlsym(scopes[i], "cuDriverGetVersion") == NULL || dlerror() != NULL) say("an error is left");
      if (dlsym(scopes[i], "cuNoSuchFunction") != NULL || (error = dlerror()) == NULL) say("no error");
      else if (strstr(error, "cuNoSuchFunction") == NULL) say(error);
    }
  handle = RTLD_DEFAULT;
  say(use_driver(by_handle));
  say(use_driver(by_handle));
}

/* --- copies of the driver ---------------------------------------------------------------------------------------- */

/* The program makes a namespace for the driver and looks into it from outside. */
static void own_namespace(const char *file) {
  handle = dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror()), exit(9);
  say(use_driver(by_handle));
}

/* Two driver libraries, as with cuda-compat, asked alternately: all calls must reach one of them. */
static void *second;

static void *alternately(const char *name) {
  static int calls;
  return dlsym(calls++ % 2 ? second : handle, name);
}

static void two_drivers(const char *file) {
  open_driver();
  void *early = dlsym(handle, "cuDeviceGetCount");
  second = dlopen(file, RTLD_NOW);
  if (second == NULL) fprintf(stderr, "%s\n", dlerror()), exit(9);
  say(use_driver(alternately));
  say(dlsym(second, "cuDeviceGetCount") == early ? "one driver" : "two drivers");
  say(dlsym(second, "cuNoSuchFunction") == NULL && dlerror() != NULL ? "nothing more" : "something");
}

/* Closed and opened again with memory alive in between. */
static void reopen(const char *file) {
  CUdeviceptr block;
  size_t before, after, total;
  (void)file;
  for (int round = 0; round < 3; round++) {
    open_driver();
    say(use_driver(by_handle));
    CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))by_handle("cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))by_handle("cuMemFree_v2");
    CUresult (*info)(size_t *, size_t *) = (CUresult(*)(size_t *, size_t *))by_handle("cuMemGetInfo_v2");
    if (info(&before, &total) || alloc(&block, 1 << 20)) say("no memory");
    dlclose(handle);
    open_driver();
    info = (CUresult(*)(size_t *, size_t *))by_handle("cuMemGetInfo_v2");
    if (info(&after, &total) || before - after != 1 << 20) say("forgotten");
    if (release(block)) say("not freed");
    dlclose(handle);
  }
}

/* --- libraries --------------------------------------------------------------------------------------------------- */

typedef const char *plugin_use(void);

static void use_plugin(void *plugin) {
  if (plugin == NULL) fprintf(stderr, "%s\n", dlerror()), exit(9);
  plugin_use *use = (plugin_use *)dlsym(plugin, "plugin_use");
  say(use());
}

static void local_plugin(const char *file) { use_plugin(dlopen(file, RTLD_NOW | RTLD_LOCAL)); }
static void deep_plugin(const char *file) { use_plugin(dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)); }
static void far_plugin(const char *file) { use_plugin(dlmopen(LM_ID_NEWLM, file, RTLD_NOW)); }

/* The constructor of FILE uses the driver and waits for other threads that do, while dlopen holds the loader's lock. */
static void *first_hook(void *data) {
  *(const char **)data = use_driver(by_handle);
  return NULL;
}

static void constructor(const char *file) {
  enum { THREADS = 4 };
  pthread_t thread[THREADS];
  const char *word[THREADS];
  open_driver();
  for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, first_hook, &word[i]);
  use_plugin(dlopen(file, RTLD_NOW));
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL), say(word[i]);
}

static pthread_barrier_t barrier;

static void *together(void *data) {
  pthread_barrier_wait(&barrier);
  return first_hook(data);
}

static void threads(const char *file) {
  enum { THREADS = 8 };
  pthread_t thread[THREADS];
  const char *word[THREADS];
  (void)file;
  open_driver();
  pthread_barrier_init(&barrier, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, together, &word[i]);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL), say(word[i]);
}

/* --- processes --------------------------------------------------------------------------------------------------- */

static char *self[] = {"/proc/self/exe", "simple", NULL};

static void wait_for(pid_t pid) {
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) say("lost");
  else if (WEXITSTATUS(status)) say("failed");
}

/* The real driver does not work in a child whose parent has initialised it: 3. */
static void forks(const char *file) {
  open_driver();
  pid_t pid = fork();
  if (pid == 0) say(use_driver(by_handle)), _exit(0);
  wait_for(pid);
  say(use_driver(by_handle));
  CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))by_handle("cuMemAlloc_v2");
  CUdeviceptr block;
  pid = fork();
  if (pid == 0) say(alloc(&block, 1 << 20) == CUDA_ERROR_NOT_INITIALIZED ? "not initialised" : "other"), _exit(0);
  wait_for(pid);
  pid = fork();
  if (pid == 0) execv(self[0], self), _exit(1);
  wait_for(pid);
  pid = vfork();
  if (pid == 0) execv(self[0], self), _exit(1);
  wait_for(pid);
  if (posix_spawn(&pid, self[0], NULL, NULL, self, environ)) pid = -1;
  wait_for(pid);
  say(use_driver(by_handle));
  (void)file;
}

static int start_again(void *data) {
  (void)data;
  execv(self[0], self);
  return 1;
}

/* A child in the same memory, as some runtimes make before exec. */
static void clones(const char *file) {
  static char stack[65536] __attribute__((aligned(16)));
  (void)file;
  simple(NULL);
  wait_for(clone(start_again, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
  say(use_driver(by_handle));
}

static void clean(const char *file) {
  static char *nothing[] = {NULL};
  (void)file;
  execve(self[0], self, nothing);
  say("failed");
}

static void drop_preload(const char *file) {
  (void)file;
  unsetenv("LD_PRELOAD");
  execv(self[0], self);
  say("failed");
}

/* Everything above the standard streams is closed while memory is held. */
static void close_from(const char *file) {
  (void)file;
  open_driver();
  say(use_driver(by_handle));
  for (int fd = 3; fd < 1024; fd++) close(fd);
  say(use_driver(by_handle));
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*go)(const char *file);
  } ways[] = {{"simple", simple},           {"by_file", by_file},           {"errors", errors},
              {"own_namespace", own_namespace}, {"two_drivers", two_drivers}, {"reopen", reopen},
              {"local_plugin", local_plugin}, {"deep_plugin", deep_plugin},   {"far_plugin", far_plugin},
              {"constructor", constructor},   {"threads", threads},           {"forks", forks},
              {"clones", clones},             {"clean", clean},               {"drop_preload", drop_preload},
              {"close_from", close_from}};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
    if (argc > 1 && !strcmp(argv[1], ways[i].name)) return ways[i].go(argc > 2 ? argv[2] : NULL), 0;
  fprintf(stderr, "usage: %s WAY [FILE]\n", argv[0]);
  return 2;
}
