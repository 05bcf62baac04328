/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what this process is made of, a line each: files mapped, descriptors, threads, signals. A program that never
 * uses CUDA, though it loads libraries, looks functions up, starts threads and forks. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *idle(void *data) { return data; }

static void live(void) {
  pthread_t thread;
  void *library = dlopen("libm.so.6", RTLD_NOW);
  if (library == NULL || dlsym(library, "cosf") == NULL || dlsym(RTLD_DEFAULT, "malloc") == NULL) exit(9);
  dlsym(RTLD_DEFAULT, "cuInit");
  dlsym(library, "cuMemAlloc_v2");
  dlsym(RTLD_NEXT, "nvmlInit_v2");
  dlerror();
  pthread_create(&thread, NULL, idle, NULL);
  pthread_join(thread, NULL);
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, NULL, 0);
}

static void print_directory(const char *path) {
  DIR *directory = opendir(path);
  struct dirent *entry;
  while (directory != NULL && (entry = readdir(directory)) != NULL)
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory) && strcmp(path, "/proc/self/task") != 0)
      printf("%s %s\n", path, entry->d_name);
    else if (entry->d_name[0] != '.' && !strcmp(path, "/proc/self/task"))
      printf("%s one\n", path);
  if (directory != NULL) closedir(directory);
}

static void print_lines(const char *path, const char *beginnings[]) {
  char line[4096];
  FILE *file = fopen(path, "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    for (int i = 0; beginnings[i] != NULL; i++)
      if (!strncmp(line, beginnings[i], strlen(beginnings[i]))) printf("%s", line);
  if (file != NULL) fclose(file);
}

static void print_mapped_files(void) {
  char line[4096];
  FILE *file = fopen("/proc/self/maps", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char *slash = strrchr(line, '/');
    if (slash != NULL) printf("mapped %s", slash + 1);
  }
  if (file != NULL) fclose(file);
}

int main(void) {
  static const char *status[] = {"Threads:", "SigBlk:", "SigIgn:", "SigCgt:", "SigPnd:", NULL};
  live();
  print_mapped_files();
  print_directory("/proc/self/fd");
  print_directory("/proc/self/task");
  print_lines("/proc/self/status", status);
  return 0;
}
