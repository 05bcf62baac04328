/* SPDX-License-Identifier: Apache-2.0 */
/* os.h on Linux. The kernel is called through syscall(): fstat as a function would need GLIBC_2.33; open, read, close
 * and nanosleep would be points where a program's thread can be cancelled, with our locks in its hands; and each
 * function of the C library that a process has not called yet is looked up by the loader, which takes as long as the
 * call.
 * Depends on nothing. Tests: tests/native/test_base.c. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "status.h"
#include "text.h"

enum { HIGH_FD = 700 }; /* above what daemons close one by one and select() can hold, below the usual limit of 1024 */

static int status_of_errno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return VC_ENOENT;
    case EACCES:
    case EPERM:
    case EROFS:
      return VC_EACCES;
    case EEXIST:
      return VC_EEXIST;
    case ENOSYS:
      return VC_ENOSYS;
    case ENOSPC:
    case EDQUOT:
      return VC_ENOSPC;
    case EAGAIN:
    case ETXTBSY:
      return VC_EBUSY;
    default:
      return VC_EIO;
  }
}

static int file_open(const char *path, int flags, unsigned int mode) {
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}

static int file_close(int fd) { return (int)syscall(SYS_close, fd); }

static ssize_t file_read(int fd, void *buffer, size_t size) { return syscall(SYS_read, fd, buffer, size); }

static int file_stat(int fd, struct stat *out) { return (int)syscall(SYS_fstat, fd, out); }

int os_open(const char *path, int writable, struct os_file *out) {
  struct stat st;
  /* O_NONBLOCK: opening a FIFO planted under this name must not hang, nor wait for the end of another process's
   * lease. */
  int fd = file_open(path, (writable ? O_RDWR : O_RDONLY) | O_NOCTTY | O_NONBLOCK, 0);
  if (fd < 0) return errno == EISDIR || errno == ENXIO ? VC_ECORRUPT : status_of_errno(errno);
  if (file_stat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    file_close(fd);
    return VC_ECORRUPT;
  }
  out->fd = fd;
  out->now = 0;
  out->size = (uint64_t)st.st_size;
  out->device = (uint64_t)st.st_dev;
  out->inode = (uint64_t)st.st_ino;
  return VC_OK;
}

int os_stored(int fd, uint64_t *size, uint64_t *stored) {
  struct stat st;
  if (file_stat(fd, &st) != 0) return VC_EIO;
  *size = (uint64_t)st.st_size;
  *stored = (uint64_t)st.st_blocks * 512;
  return VC_OK;
}

int os_exists(const char *path) { return syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0; }

void os_close(int fd) { file_close(fd); }

int os_move_high(int fd) {
  int moved = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH_FD);
  if (moved < 0) return fd;
  file_close(fd);
  return moved;
}

int os_is_file(int fd, uint64_t device, uint64_t inode) {
  struct stat st;
  return file_stat(fd, &st) == 0 && (uint64_t)st.st_dev == device && (uint64_t)st.st_ino == inode;
}

int os_map(int fd, size_t size, int writable, void **out) {
  long address = syscall(SYS_mmap, NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (address == -1) return status_of_errno(errno);
  *out = (void *)address;
  return VC_OK;
}

void os_unmap(void *address, size_t size) { munmap(address, size); }

int os_read_all(int fd, void *buffer, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    ssize_t n = syscall(SYS_pread64, fd, (char *)buffer + done, size - done, (off_t)(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return status_of_errno(errno);
    if (n == 0) return VC_ECORRUPT;
    done += (size_t)n;
  }
  return VC_OK;
}

/* Old kernels lack a call, sandboxes forbid what their authors had not heard of: there is always an older way. */
static int is_unavailable(int error) { return error == ENOSYS || error == EPERM; }

/* Of old headers: preadv2 and its flag, Linux 4.6 and 4.14. */
#if defined(__x86_64__)
enum { READ_VECTOR = 327 };
#else
enum { READ_VECTOR = 286 };
#endif
enum { READ_NOWAIT = 8, READ_TRIES = 3 }; /* the first has the kernel fetch what is not in memory; holes are there at once */

int os_read_now(int fd, void *buffer, size_t size, uint64_t offset) {
  size_t done = 0;
  int tries = READ_TRIES;
  while (done < size) {
    struct iovec part = {.iov_base = (char *)buffer + done, .iov_len = size - done};
    ssize_t n = syscall(READ_VECTOR, fd, &part, 1L, (long)(offset + done), 0L, (long)READ_NOWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EOPNOTSUPP || errno == EINVAL || is_unavailable(errno)))
      return os_read_all(fd, buffer, size, offset);
    if (n < 0 && errno == EAGAIN && --tries > 0) continue;
    if (n < 0) return status_of_errno(errno);
    if (n == 0) return VC_ECORRUPT;
    done += (size_t)n;
  }
  return VC_OK;
}

int os_read_from(const struct os_file *file, void *buffer, size_t size, uint64_t offset) {
  return file->now ? os_read_now(file->fd, buffer, size, offset) : os_read_all(file->fd, buffer, size, offset);
}

static int write_all(int fd, const void *buffer, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t n = write(fd, (const char *)buffer + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? status_of_errno(errno) : VC_EIO;
    done += (size_t)n;
  }
  return VC_OK;
}

/* Zeroes up to TOTAL: without writing them where the file system can (a tenth of the time), else by writing. */
static int fill(int fd, size_t size, size_t total) {
  static const char zeros[4096];
  if (total == size || fallocate(fd, 0, 0, (off_t)total) == 0) return VC_OK;
  if (errno != EOPNOTSUPP && !is_unavailable(errno)) return status_of_errno(errno);
  for (int status = VC_OK; size < total; size += sizeof zeros)
    if ((status = write_all(fd, zeros, total - size < sizeof zeros ? total - size : sizeof zeros)) != VC_OK)
      return status;
  return VC_OK;
}

/* Gives a file its final name unless something has that name already: an existing file must win. */
static int move_new(const char *temporary, const char *path) {
  enum { NO_REPLACE = 1 }; /* RENAME_NOREPLACE, Linux 3.15 */
  if (syscall(SYS_renameat2, AT_FDCWD, temporary, AT_FDCWD, path, NO_REPLACE) == 0) return VC_OK;
  if (errno != EINVAL && !is_unavailable(errno)) return status_of_errno(errno);
  if (link(temporary, path) != 0) return status_of_errno(errno);
  unlink(temporary);
  return VC_OK;
}

int os_publish(const char *path, const void *buffer, size_t size, size_t total, uint32_t mode) {
  char temporary[4096];
  static uint32_t counter; /* several threads of one process may publish at once */
  int length = snprintf(temporary, sizeof temporary, "%s.%d.%u.new", path, (int)os_pid(),
                        __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED));
  if (length < 0 || (size_t)length >= sizeof temporary) return VC_EINVAL;
  int fd = file_open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (fd < 0 && errno == EEXIST) { /* left by a process of the same PID that was killed here */
    unlink(temporary);
    fd = file_open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
  }
  if (fd < 0) return status_of_errno(errno);
  int status = write_all(fd, buffer, size);
  if (status == VC_OK) status = fill(fd, size, total);
  if (status == VC_OK && fchmod(fd, mode) != 0) status = status_of_errno(errno);
  if (file_close(fd) != 0 && status == VC_OK) status = VC_EIO;
  if (status == VC_OK) status = move_new(temporary, path);
  if (status != VC_OK) unlink(temporary);
  return status;
}

int os_reserve(const char *path, size_t total, uint32_t mode) { return os_publish(path, "", 0, total, mode); }

int os_fill(const char *path, const void *buffer, size_t size, size_t total) {
  struct os_file file;
  int status = os_open(path, 1, &file);
  if (status != VC_OK) return status;
  status = write_all(file.fd, buffer, size);
  if (status == VC_OK && file.size > total) status = os_truncate(file.fd, total);
  if (status == VC_OK && file.size < total) status = fill(file.fd, size, total);
  if (close(file.fd) != 0 && status == VC_OK) status = VC_EIO;
  return status;
}

int os_truncate(int fd, uint64_t size) { return ftruncate(fd, (off_t)size) == 0 ? VC_OK : status_of_errno(errno); }

static int lock_call(int fd, int command, short type, uint64_t offset, uint64_t length, struct flock *lock) {
  int result;
  memset(lock, 0, sizeof *lock);
  lock->l_type = type;
  lock->l_whence = SEEK_SET;
  lock->l_start = (off_t)offset;
  lock->l_len = (off_t)length;
  do {
    result = (int)syscall(SYS_fcntl, fd, command, lock);
  } while (result < 0 && errno == EINTR);
  return result;
}

int os_lock_try(int fd, uint64_t offset) {
  struct flock lock;
  if (lock_call(fd, F_SETLK, F_WRLCK, offset, 1, &lock) == 0) return 1;
  return errno == EACCES || errno == EAGAIN ? 0 : VC_EIO;
}

void os_lock_release(int fd, uint64_t offset) {
  struct flock lock;
  lock_call(fd, F_SETLK, F_UNLCK, offset, 1, &lock);
}

int os_lock_owner(int fd, uint64_t offset, int32_t *pid) {
  struct flock lock;
  if (lock_call(fd, F_GETLK, F_WRLCK, offset, 1, &lock) != 0) return VC_EIO;
  if (lock.l_type == F_UNLCK) return 0;
  *pid = lock.l_pid > 0 ? (int32_t)lock.l_pid : 0;
  return 1;
}

int os_lock_any(int fd, uint64_t offset, uint64_t length) {
  struct flock lock;
  return lock_call(fd, F_GETLK, F_WRLCK, offset, length, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Of old headers: F_OFD_SETLK, Linux 3.15. */
enum { HOLD_SET = 37 };

static int hold_call(int fd, short type, uint64_t offset) {
  struct flock lock;
  if (lock_call(fd, HOLD_SET, type, offset, 1, &lock) == 0) return 1;
  if (errno == EACCES || errno == EAGAIN) return 0;
  return errno == EINVAL ? VC_ENOSYS : VC_EIO;
}

int os_hold_try(int fd, uint64_t offset) { return hold_call(fd, F_WRLCK, offset); }

void os_hold_release(int fd, uint64_t offset) { hold_call(fd, F_UNLCK, offset); }

int os_map_hold(int fd, void **page) {
  long address = syscall(SYS_mmap, NULL, OS_HOLD_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
  if (address == -1) return status_of_errno(errno);
  if (madvise((void *)address, OS_HOLD_BYTES, MADV_DONTFORK) != 0) {
    munmap((void *)address, OS_HOLD_BYTES);
    return VC_EIO;
  }
  *page = (void *)address;
  return VC_OK;
}

int os_mapping_keeps(int fd) {
  static const unsigned long known[] = {0xef53, 0x58465342, 0x9123683e, 0x01021994}; /* ext4, xfs, btrfs, tmpfs: magic.h */
  struct statfs system;
  if (syscall(SYS_fstatfs, fd, &system) != 0) return 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if ((unsigned long)system.f_type == known[i]) return 1;
  return 0;
}

int32_t os_pid(void) { return (int32_t)syscall(SYS_getpid); }

/* Parses digits of BASE at *P and leaves *P behind them. Not strtoul: newer headers bind it to GLIBC_2.38. */
static uint64_t parse_digits(const char **p, unsigned base) {
  uint64_t value = 0;
  for (;; (*p)++) {
    unsigned digit = **p >= '0' && **p <= '9'   ? (unsigned)(**p - '0')
                     : **p >= 'a' && **p <= 'f' ? (unsigned)(**p - 'a' + 10)
                                                : base;
    if (digit >= base) return value;
    value = value * base + digit;
  }
}

uint32_t os_pid_namespace(void) {
  static const char begin[] = "pid:[";
  char link[64];
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", link, sizeof link - 1);
  if (length <= 0) return 0;
  link[length] = 0;
  if (strncmp(link, begin, sizeof begin - 1) != 0) return 0;
  const char *number = link + sizeof begin - 1;
  return (uint32_t)parse_digits(&number, 10);
}

int os_process_exists(int32_t pid) { return syscall(SYS_kill, pid, 0) == 0 || errno != ESRCH; }

void os_process_name(char *out, size_t size) {
  char name[17] = "";
  syscall(SYS_prctl, PR_GET_NAME, name, 0, 0, 0);
  text_join(out, size, name, "", "");
}

int os_memory_available(uint64_t *bytes) {
  char text[512];
  unsigned long long kib;
  int fd = file_open("/proc/meminfo", O_RDONLY, 0);
  ssize_t length = fd < 0 ? -1 : file_read(fd, text, sizeof text - 1);
  if (fd >= 0) file_close(fd);
  if (length <= 0) return VC_EIO;
  text[length] = 0;
  const char *line = strstr(text, "\nMemAvailable:");
  if (line == NULL || sscanf(line, " MemAvailable: %llu kB", &kib) != 1) return VC_EIO;
  *bytes = (uint64_t)kib << 10;
  return VC_OK;
}

static _Atomic(os_clock *) direct_clock;

void os_use_clock(os_clock *function) { atomic_store_explicit(&direct_clock, function, memory_order_relaxed); }

static inline int coarse_time(struct timespec *now) {
  os_clock *direct = atomic_load_explicit(&direct_clock, memory_order_relaxed);
  if (direct != NULL) return direct(CLOCK_MONOTONIC_COARSE, now);
  return clock_gettime(CLOCK_MONOTONIC_COARSE, now); /* not its address, which every start would have to look up */
}

uint64_t os_coarse_stamp(void) {
  struct timespec now;
  return coarse_time(&now) == 0 ? ((uint64_t)now.tv_sec << 30) + (uint64_t)now.tv_nsec : 0;
}

uint64_t os_coarse_ms(void) {
  struct timespec now;
  if (coarse_time(&now) != 0) return 0;
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t os_now_ns(void) {
  struct timespec now;
  if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void os_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t ns) {
  struct timespec pause = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  enum { WAIT_PRIVATE = 128 }; /* FUTEX_WAIT | FUTEX_PRIVATE_FLAG */
  syscall(SYS_futex, word, WAIT_PRIVATE, expected, ns != 0 ? &pause : NULL, NULL, 0);
}

void os_wake(_Atomic uint32_t *word) {
  enum { WAKE_PRIVATE = 129 };
  syscall(SYS_futex, word, WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static uint64_t signal_bit(int number) { return UINT64_C(1) << (number - 1); }

/* A fault that is blocked ends the process, and so does a system call that a sandbox carries out in its handler of
 * SIGSYS. The C library sends the first two real-time signals to all threads, and waits for them when the program
 * changes its user. */
void os_signals_block(uint64_t *old) {
  enum { CANCEL = 32, SET_USER = 33 };
  const uint64_t some = ~(signal_bit(SIGILL) | signal_bit(SIGTRAP) | signal_bit(SIGBUS) | signal_bit(SIGFPE) |
                          signal_bit(SIGSEGV) | signal_bit(SIGSYS) | signal_bit(CANCEL) | signal_bit(SET_USER));
  *old = 0;
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &some, old, sizeof some);
}

void os_signals_restore(const uint64_t *old) { syscall(SYS_rt_sigprocmask, SIG_SETMASK, old, NULL, sizeof *old); }

void os_thread_name(const char *name) { syscall(SYS_prctl, PR_SET_NAME, name, 0, 0, 0); }

void os_sleep_us(uint32_t microseconds) {
  struct timespec pause = {microseconds / 1000000, (long)(microseconds % 1000000) * 1000};
  syscall(SYS_nanosleep, &pause, NULL);
}

void os_yield(void) { sched_yield(); }
