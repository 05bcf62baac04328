/* SPDX-License-Identifier: Apache-2.0 */
/* A disk quota that is used up while the file $QUOTA_GONE exists: nothing more can be written below $QUOTA_BELOW.
 * Preloaded into an agent; file systems with quotas cannot be made everywhere. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int refused(int fd) {
  char link[64], path[4096];
  const char *gone = getenv("QUOTA_GONE"), *below = getenv("QUOTA_BELOW");
  if (!gone || !below || access(gone, F_OK)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return !strncmp(path, below, strlen(below));
}

ssize_t write(int fd, const void *data, size_t size) {
  ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  if (size && refused(fd)) return errno = EDQUOT, -1;
  return real(fd, data, size);
}
