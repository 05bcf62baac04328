/* os.h on Linux. The kernel is called through syscall(): fstat as a function would need GLIBC_2.33; open, read, close
 * and nanosleep would be points where a program's thread can be cancelled, with our locks in its hands; and each
 * function of the C library that a process has not called yet is looked up by the loader, which takes as long as the
 * call.
 * Knows nobody. Tests: tests/native/test_base.c. */
#define _GNU_SOURCE
#include "os.h"

#include <dirent.h>
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
#include <sys/sysmacros.h>
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
  /* O_NONBLOCK: opening a FIFO planted under this name must not hang. */
  int fd = file_open(path, (writable ? O_RDWR : O_RDONLY) | O_NOCTTY | O_NONBLOCK, 0);
  if (fd < 0) return errno == EISDIR || errno == ENXIO ? VC_ECORRUPT : status_of_errno(errno);
  if (file_stat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    file_close(fd);
    return VC_ECORRUPT;
  }
  out->fd = fd;
  out->size = (uint64_t)st.st_size;
  out->device = (uint64_t)st.st_dev;
  out->inode = (uint64_t)st.st_ino;
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

/* Old kernels lack a call, sandboxes forbid what their authors had not heard of: there is always an older way. */
static int is_unavailable(int error) { return error == ENOSYS || error == EPERM; }

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

enum { PROC_PATH = 64 };

static void proc_path(int32_t pid, const char *name, char path[PROC_PATH]) {
  char number[TEXT_NUMBER];
  size_t length = text_join(path, PROC_PATH, "/proc/", text_number((uint32_t)pid, number), "/");
  text_join(path + length, PROC_PATH - length, name, "", "");
}

/* Reads a small /proc file of one process; returns its length, -1 when there is none. */
static ssize_t read_proc(int32_t pid, const char *name, char *buffer, size_t size) {
  char path[PROC_PATH];
  proc_path(pid, name, path);
  int fd = file_open(path, O_RDONLY, 0);
  if (fd < 0) return -1;
  ssize_t n = file_read(fd, buffer, size - 1);
  file_close(fd);
  if (n < 0) return -1;
  buffer[n] = '\0';
  return n;
}

/* "./": emulators of other processors (qemu-user) know the file's usual name and make it up for the process itself, with
 * a time that nobody else reads. The kernel passes over the point; by way of task/ it would make three directories more,
 * in every process that starts. */
uint64_t os_start_time(int32_t pid) {
  char text[1024];
  ssize_t length = read_proc(pid, "./stat", text, sizeof text);
  if (length <= 0) return 0;
  const char *p = text + length;
  while (p > text && p[-1] != ')') p--; /* the command name before it may contain anything */
  if (p == text) return 0;
  for (int field = 2; field < 22; p++) { /* proc(5): starttime is field 22, the name field 2 */
    if (*p == 0) return 0;
    field += *p == ' ';
  }
  return parse_digits(&p, 10);
}

/* One line of /proc/PID/maps: "start-end perms offset major:minor inode path". */
static int line_is_file(const char *line, uint64_t device, uint64_t inode) {
  for (int field = 0; field < 3; field++) {
    line = strchr(line, ' ');
    if (!line) return 0;
    line++;
  }
  uint64_t major_number = parse_digits(&line, 16);
  if (*line++ != ':') return 0;
  uint64_t minor_number = parse_digits(&line, 16);
  if (*line++ != ' ') return 0;
  return parse_digits(&line, 10) == inode && major_number == major(device) && minor_number == minor(device);
}

/* *EMPTY becomes 0 when anything is mapped there at all. */
static int task_maps(int32_t task, uint64_t device, uint64_t inode, int *empty) {
  char buffer[4096], path[PROC_PATH];
  size_t filled = 0;
  int found = 0;
  proc_path(task, "maps", path);
  int fd = file_open(path, O_RDONLY, 0);
  if (fd < 0) return 0;
  while (!found) {
    ssize_t n = file_read(fd, buffer + filled, sizeof buffer - 1 - filled);
    if (n <= 0) break;
    *empty = 0;
    filled += (size_t)n;
    buffer[filled] = '\0';
    char *line = buffer, *end;
    while (!found && (end = strchr(line, '\n')) != NULL) {
      *end = '\0';
      found = line_is_file(line, device, inode);
      line = end + 1;
    }
    filled = strlen(line);
    if (filled == sizeof buffer - 1) filled = 0; /* a path longer than the buffer: not ours */
    memmove(buffer, line, filled);
  }
  file_close(fd);
  return found;
}

/* Of a thread that has ended the kernel shows no memory. When it was the process's first one, any other tells. */
static int other_thread_maps(int32_t pid, uint64_t device, uint64_t inode) {
  _Alignas(struct dirent64) char entries[1024];
  char path[PROC_PATH];
  int found = 0, empty = 1;
  proc_path(pid, "task", path);
  int fd = file_open(path, O_RDONLY | O_DIRECTORY, 0);
  if (fd < 0) return 0;
  long length = syscall(SYS_getdents64, fd, entries, sizeof entries);
  const struct dirent64 *entry = (const void *)entries;
  for (long at = 0; at < length && empty; at += entry->d_reclen) {
    entry = (const void *)(entries + at);
    const char *name = entry->d_name;
    int32_t task = (int32_t)parse_digits(&name, 10); /* 0: this directory and the one above */
    if (task != 0 && task != pid) found = task_maps(task, device, inode, &empty);
  }
  file_close(fd);
  return found;
}

int os_process_maps(int32_t pid, uint64_t device, uint64_t inode) {
  int empty = 1;
  return task_maps(pid, device, inode, &empty) || (empty && other_thread_maps(pid, device, inode));
}

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
