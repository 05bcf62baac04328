/* SPDX-License-Identifier: Apache-2.0 */
/* See stderr.h. System calls are raw: none may be a cancellation point. A file is known by its device and inode.
 * Depends on nothing. Tests: tests/integration/test_native_stderr.py. */
#define _GNU_SOURCE
#include "stderr.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "place.h"

enum { UNKNOWN, CLOSED, OPEN };

struct file {
  _Atomic uint64_t device, inode;
  _Atomic int state; /* UNKNOWN: no such file */
};

static VC_AT_LOAD struct file loaded;
static struct file redirected;
static _Atomic int used;

static int look(int fd, struct stat *out) { return syscall(SYS_newfstatat, fd, "", out, AT_EMPTY_PATH) == 0; }

static void remember(struct file *file, const struct stat *st) {
  atomic_store_explicit(&file->device, st->st_dev, memory_order_relaxed);
  atomic_store_explicit(&file->inode, st->st_ino, memory_order_relaxed);
  atomic_store_explicit(&file->state, OPEN, memory_order_release);
}

static int is_same(struct file *file, const struct stat *st) {
  return atomic_load_explicit(&file->state, memory_order_acquire) == OPEN &&
         st->st_ino == atomic_load_explicit(&file->inode, memory_order_relaxed) &&
         st->st_dev == atomic_load_explicit(&file->device, memory_order_relaxed);
}

static int is_stdout_too(const struct stat *st) {
  struct stat other;
  return look(STDOUT_FILENO, &other) && other.st_ino == st->st_ino && other.st_dev == st->st_dev;
}

/* A redirection is made with dup2() or freopen(), which leave it to children; what most languages open for themselves is
 * closed at exec. A log is appended to, or is standard output as well. A file that is written anywhere may be data, and so
 * may be a socket. */
static int is_redirection(const struct stat *st) {
  long flags = syscall(SYS_fcntl, STDERR_FILENO, F_GETFL), descriptor = syscall(SYS_fcntl, STDERR_FILENO, F_GETFD);
  if (flags < 0 || descriptor < 0 || (descriptor & FD_CLOEXEC) != 0) return 0;
  int only_written = (flags & O_ACCMODE) == O_WRONLY;
  if (S_ISFIFO(st->st_mode)) return only_written;
  if (!S_ISREG(st->st_mode)) return 0;
  return (flags & O_APPEND) != 0 || (only_written && is_stdout_too(st));
}

/* The controlling terminal of this process, and not a serial line. */
static int is_own_terminal(const struct stat *st) {
  int session;
  return S_ISCHR(st->st_mode) && syscall(SYS_ioctl, STDERR_FILENO, TIOCGSID, &session) == 0 &&
         session == syscall(SYS_getsid, 0);
}

void stderr_at_load(void) {
  struct stat st;
  int saved = errno;
  if (look(STDERR_FILENO, &st))
    remember(&loaded, &st);
  else
    atomic_store_explicit(&loaded.state, CLOSED, memory_order_release);
  errno = saved;
}

static int is_closed(void) { return atomic_load_explicit(&loaded.state, memory_order_acquire) == CLOSED; }

void stderr_at_first_use(void) {
  struct stat st;
  int saved = errno;
  if (atomic_exchange(&used, 1)) return;
  if (atomic_load_explicit(&loaded.state, memory_order_acquire) == UNKNOWN) stderr_at_load();
  if (!is_closed() && look(STDERR_FILENO, &st) && !is_same(&loaded, &st) && is_redirection(&st)) remember(&redirected, &st);
  errno = saved;
}

int stderr_is_for_people(struct stat *out) {
  int saved = errno;
  stderr_at_first_use();
  int is = !is_closed() && look(STDERR_FILENO, out) &&
           (is_same(&loaded, out) || is_same(&redirected, out) || is_own_terminal(out));
  errno = saved;
  return is;
}
