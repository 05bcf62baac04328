/* SPDX-License-Identifier: Apache-2.0 */
/* A file without a disk, under a path that any function can open. */
#ifndef TESTS_FUZZ_MEMORY_FILE_H
#define TESTS_FUZZ_MEMORY_FILE_H

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

struct memory_file {
  int fd;
  char path[32];
};

/* SIZE bytes of DATA, then zeros up to TOTAL. */
static inline void memory_file_make(struct memory_file *file, const void *data, size_t size, size_t total) {
  file->fd = memfd_create("fuzz", MFD_CLOEXEC);
  REQUIRE(file->fd >= 0);
  REQUIRE(write(file->fd, data, size) == (ssize_t)size);
  REQUIRE(ftruncate(file->fd, (off_t)total) == 0);
  snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

#endif
