/* SPDX-License-Identifier: Apache-2.0 */
/* See tree.h.
 * Tests: tests/native/test_quota.c. */
#define _GNU_SOURCE
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"
#include "status.h"
#include "text.h"

/* Linux's record of a directory entry (getdents64(2)). */
struct entry {
  uint64_t inode;
  int64_t next;
  uint16_t length;
  uint8_t type;
  char name[];
};

static int status_of(int error) {
  if (error == ENOENT || error == ENOTDIR) return VC_ENOENT;
  return error == EACCES || error == EPERM ? VC_EACCES : VC_EIO;
}

static int open_folder(const char *path) {
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
  return fd < 0 ? status_of(errno) : fd;
}

static int is_entry(const char *name) { return strcmp(name, ".") != 0 && strcmp(name, "..") != 0; }

int tree_names(const char *path, tree_visit *visit, void *context) {
  _Alignas(struct entry) char buffer[4096];
  int fd = open_folder(path), result = 0;
  if (fd < 0) return fd;
  long got;
  while (result == 0 && (got = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
    for (long at = 0; result == 0 && at < got;) {
      const struct entry *entry = (const struct entry *)(const void *)(buffer + at);
      if (is_entry(entry->name)) result = visit(entry->name, context);
      at += entry->length;
    }
  os_close(fd);
  return result;
}

static long read_some(int fd, char *out, size_t size) {
  long got;
  do got = syscall(SYS_read, fd, out, size);
  while (got < 0 && errno == EINTR);
  return got;
}

int tree_texts(const char *path, char end, tree_visit *visit, void *context, size_t *bytes) {
  char buffer[4096], text[TREE_TEXT];
  struct os_file file;
  size_t length = 0;
  int result = os_open(path, 0, &file);
  *bytes = 0;
  if (result != VC_OK) return result;
  long got = 0;
  while (result == 0 && (got = read_some(file.fd, buffer, sizeof buffer)) > 0) {
    *bytes += (size_t)got;
    for (long at = 0; result == 0 && at < got; at++) {
      if (buffer[at] != end) {
        if (length < sizeof text - 1) text[length++] = buffer[at];
        continue;
      }
      text[length] = 0;
      length = 0;
      result = visit(text, context);
    }
  }
  text[length] = 0;
  if (result == 0 && length != 0) result = visit(text, context);
  if (result == 0 && got < 0) result = VC_EIO;
  os_close(file.fd);
  return result;
}

int tree_read(const char *path, int tail, char *out, size_t size) {
  struct os_file file;
  size_t length = 0;
  long got = 0;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  uint64_t from = tail && file.size > size - 1 ? file.size - (size - 1) : 0;
  while (length < size - 1 &&
         (got = syscall(SYS_pread64, file.fd, out + length, size - 1 - length, (off_t)(from + length))) > 0)
    length += (size_t)got;
  out[length] = 0;
  os_close(file.fd);
  return got < 0 ? VC_EIO : (int)length;
}

int tree_real_path(const char *path, char *out, size_t size) {
  char link[64], number[TEXT_NUMBER];
  int fd = open_folder(path);
  if (fd < 0) return fd;
  text_join(link, sizeof link, "/proc/self/fd/", text_number((uint32_t)fd, number), "");
  long length = syscall(SYS_readlinkat, AT_FDCWD, link, out, size - 1);
  os_close(fd);
  if (length <= 0 || (size_t)length >= size - 1) return VC_EIO;
  out[length] = 0;
  return VC_OK;
}

enum { DEEPEST = 8 };

struct removal {
  const char *path;
  int depth;
};

static void remove_at(const char *path, int depth);

static int remove_name(const char *name, void *context) {
  const struct removal *removal = context;
  char path[512];
  if (text_join(path, sizeof path, removal->path, "/", name) >= sizeof path) return 0;
  if (syscall(SYS_unlinkat, AT_FDCWD, path, 0) != 0 && errno == EISDIR) remove_at(path, removal->depth + 1);
  return 0;
}

static void remove_at(const char *path, int depth) {
  struct removal removal = {path, depth};
  if (depth < DEEPEST) tree_names(path, remove_name, &removal);
  syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

void tree_remove(const char *path) { remove_at(path, 0); }

enum { LOCK_POLL_US = 1000 };

int tree_lock(const char *path, uint32_t ms) {
  uint64_t end = os_now_ns() + (uint64_t)ms * 1000000;
  int fd = open_folder(path);
  if (fd < 0) return fd;
  while (syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK && os_now_ns() < end) {
      os_sleep_us(LOCK_POLL_US);
      continue;
    }
    int status = errno == EWOULDBLOCK ? VC_EBUSY : VC_ENOSYS;
    os_close(fd);
    return status;
  }
  return fd;
}

void tree_unlock(int fd) {
  if (fd < 0) return;
  syscall(SYS_flock, fd, LOCK_UN); /* a forked child may have the descriptor, too */
  os_close(fd);
}
