/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the dmem controller: lines "<region> <number>|max", one for each GPU.
 * Must not depend on who is in which group. Tests: tests/unit/fakedriver/test_limits_dmem.py. */
#include "fake_limits.h"
#include "fake_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { FILE_TEXT = 4096, LINE = 128 };

void limits_region_name(unsigned gpu, char *text, unsigned long size) {
  const struct fake_gpu *at = &fake_state->machine.gpu[gpu];
  snprintf(text, size, "nvidia/%04x:%02x:%02x.0/vidmem", at->pci_domain, at->pci_bus, at->pci_device);
}

static int open_file(const char *directory, const char *name, int flags) {
  char path[FAKE_GROUP_PATH + 32];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return open(path, flags | O_CLOEXEC);
}

int limits_file_is_there(const char *directory, const char *name) {
  char path[FAKE_GROUP_PATH + 32];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return access(path, F_OK) == 0;
}

static void read_text(int fd, char text[FILE_TEXT]) {
  ssize_t length = pread(fd, text, FILE_TEXT - 1, 0);
  text[length > 0 ? length : 0] = '\0';
}

/* The number behind a region's name at the beginning of LINE, or NULL. */
static const char *number_of(const char *line, const char *region) {
  size_t length = strlen(region);
  return !strncmp(line, region, length) && line[length] == ' ' ? line + length + 1 : NULL;
}

int limits_file_read(const char *directory, const char *name, unsigned gpu, uint64_t *value) {
  char text[FILE_TEXT], region[LINE], *rest = NULL;
  int fd = open_file(directory, name, O_RDONLY);
  if (fd < 0) return -1;
  flock(fd, LOCK_SH); /* writers do not replace the file */
  read_text(fd, text);
  close(fd);
  limits_region_name(gpu, region, sizeof region);
  *value = FAKE_NO_LIMIT;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    const char *number = number_of(line, region);
    if (number && strncmp(number, "max", 3) != 0) *value = strtoull(number, NULL, 10);
  }
  return 0;
}

int limits_file_write(const char *directory, const char *name, unsigned gpu, uint64_t value) {
  char text[FILE_TEXT], region[LINE], out[FILE_TEXT + LINE], *rest = NULL;
  int fd = open_file(directory, name, O_RDWR);
  if (fd < 0) return -1;
  flock(fd, LOCK_EX);
  read_text(fd, text);
  limits_region_name(gpu, region, sizeof region);
  size_t length = 0;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    if (!number_of(line, region)) length += (size_t)snprintf(out + length, sizeof out - length, "%s\n", line);
  length += (size_t)snprintf(out + length, sizeof out - length, value == FAKE_NO_LIMIT ? "%s max\n" : "%s %" PRIu64 "\n",
                             region, value);
  int failed = pwrite(fd, out, length, 0) != (ssize_t)length || ftruncate(fd, (off_t)length);
  int cause = errno;
  close(fd);
  errno = cause;
  return failed ? -1 : 0;
}
