/* SPDX-License-Identifier: Apache-2.0 */
/* See notice.h. A pipe that is full, a terminal that is stopped and a reader that is gone must not show in the program:
 * so a pipe is opened once more, non-blocking, a socket is told not to wait, and all else is asked whether it has room.
 * No signal that the write raises reaches the program. System calls are raw: none may be a cancellation point.
 * Depends on nothing. Tests: tests/integration/test_native_refusals.py. */
#define _GNU_SOURCE
#include "notice.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "os.h"
#include "stderr.h"

static int look(int fd, struct stat *out) { return syscall(SYS_newfstatat, fd, "", out, AT_EMPTY_PATH) == 0; }

static int has_room(void) {
  struct pollfd descriptor = {.fd = STDERR_FILENO, .events = POLLOUT};
  const struct timespec none = {0, 0};
  return syscall(SYS_ppoll, &descriptor, 1, &none, NULL, 0) == 1 && (descriptor.revents & (POLLOUT | POLLERR)) == POLLOUT;
}

static int write_there(int fd, const char *line, size_t length) {
  return syscall(SYS_write, fd, line, length) == (long)length;
}

/* Where it cannot be opened, as without /proc or after a change of user, having room must do. ENXIO: nobody reads. */
static int write_to_pipe(const struct stat *pipe, const char *line, size_t length) {
  struct stat opened;
  int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return errno != ENXIO && has_room() && write_there(STDERR_FILENO, line, length);
  int same = look(fd, &opened) && opened.st_ino == pipe->st_ino && opened.st_dev == pipe->st_dev;
  int written = same && write_there(fd, line, length);
  syscall(SYS_close, fd);
  return written;
}

static int write_quietly(const struct stat *st, const char *line, size_t length) {
  if (S_ISFIFO(st->st_mode)) return write_to_pipe(st, line, length);
  if (S_ISSOCK(st->st_mode))
    return syscall(SYS_sendto, STDERR_FILENO, line, length, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) == (long)length;
  return has_room() && write_there(STDERR_FILENO, line, length);
}

static uint64_t pipe_signal(void) { return UINT64_C(1) << (SIGPIPE - 1); }

static int pipe_signal_waits(void) {
  uint64_t waiting = 0;
  syscall(SYS_rt_sigpending, &waiting, sizeof waiting);
  return (waiting & pipe_signal()) != 0;
}

int notice_write(const char *line, size_t length) {
  struct stat st;
  uint64_t signals;
  int saved = errno, written = 0;
  if (stderr_is_for_people(&st)) {
    os_signals_block(&signals);
    int waited = pipe_signal_waits();
    written = write_quietly(&st, line, length);
    const struct timespec none = {0, 0};
    uint64_t only = pipe_signal();
    if (!written && !waited && pipe_signal_waits()) syscall(SYS_rt_sigtimedwait, &only, NULL, &none, sizeof only);
    os_signals_restore(&signals);
  }
  errno = saved;
  return written;
}
