/* SPDX-License-Identifier: Apache-2.0 */
/* Other people's processes on a GPU, without the library:
 *
 *   neighbours COUNT
 *
 * Starts COUNT processes that each have a context on GPU 0, says "ready" when all have, and ends them when its input ends.
 * They end with it however it ends. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void live(int say, int parent) {
  CUcontext context;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  __typeof__(&cuInit) init;
  __typeof__(&cuCtxCreate_v2) create;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (library == NULL || getppid() != parent) _exit(2);
  *(void **)&init = dlsym(library, "cuInit");
  *(void **)&create = dlsym(library, "cuCtxCreate_v2");
  if (init == NULL || create == NULL || init(0) != CUDA_SUCCESS || create(&context, 0, 0) != CUDA_SUCCESS) _exit(3);
  if (write(say, "x", 1) != 1) _exit(4);
  for (;;) pause();
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 0, ends[2], parent = (int)getpid();
  char word;
  if (count < 1 || pipe(ends) != 0) return 2;
  for (int i = 0; i < count; i++) {
    pid_t pid = fork();
    if (pid < 0) return 5;
    if (pid == 0) {
      close(ends[0]);
      live(ends[1], parent);
    }
  }
  close(ends[1]);
  for (int i = 0; i < count; i++)
    if (read(ends[0], &word, 1) != 1) return 3;
  printf("ready\n");
  fflush(stdout);
  while (getchar() != EOF) continue;
  return 0; /* and the kernel ends the others */
}
