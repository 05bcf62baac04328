/* SPDX-License-Identifier: Apache-2.0 */
/* Everything the shared-memory code needs from the operating system, as contracts. Functions return 0 or VC_E…;
 * out-parameters are never NULL and are written only on success. Nothing here needs a glibc newer than 2.17 or
 * allocates memory.
 * Depends on nothing. Tests: tests/native/test_base.c. */
#ifndef VC_BASE_OS_H
#define VC_BASE_OS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct os_file {
  int fd;
  int now; /* for readers: without waiting; os_open() sets it to 0 */
  uint64_t size, device, inode;
};

/* Opens a regular file, close-on-exec, and never waits. VC_ENOENT, VC_EACCES, VC_ECORRUPT (not a regular file),
 * VC_EBUSY or VC_EIO. */
int os_open(const char *path, int writable, struct os_file *out);
/* The size of an open file, and what it takes of the disk: more where room was reserved beyond its end. */
int os_stored(int fd, uint64_t *size, uint64_t *stored);
void os_close(int fd);
int os_exists(const char *path);
/* Moves FD out of the range that programs close wholesale or expect to be free. Returns the descriptor to use. */
int os_move_high(int fd);
/* Whether FD still is the file it was: a program may have closed it and opened something else in its place. */
int os_is_file(int fd, uint64_t device, uint64_t inode);

int os_map(int fd, size_t size, int writable, void **out);
void os_unmap(void *address, size_t size);

/* Reads exactly SIZE bytes from OFFSET on; VC_ECORRUPT when the file is shorter. */
int os_read_all(int fd, void *buffer, size_t size, uint64_t offset);
/* The same without waiting: VC_EBUSY where the disk would have to be asked, or another process keeps the file to itself
 * by writing it (XFS reads no file that is being written). Waits where kernel or file system have no other way. */
int os_read_now(int fd, void *buffer, size_t size, uint64_t offset);
/* One of the two, by FILE->now. */
int os_read_from(const struct os_file *file, void *buffer, size_t size, uint64_t offset);
/* Makes a new file of TOTAL bytes that begins with SIZE bytes of BUFFER and is zero beyond, with permission bits MODE
 * whatever the umask is, and with all blocks allocated, so that a full disk is an error here and not a SIGBUS later.
 * The file appears complete or not at all. VC_EEXIST. */
int os_publish(const char *path, const void *buffer, size_t size, size_t total, uint32_t mode);
/* Makes an empty file of TOTAL bytes likewise: to be written by os_fill later, before another process opens it. */
int os_reserve(const char *path, size_t total, uint32_t mode);
/* Writes SIZE bytes of BUFFER at the beginning of a file that os_reserve made, and makes it TOTAL bytes long where it
 * is not. It may be cut short by a sudden end. VC_ENOENT, VC_ENOSPC. */
int os_fill(const char *path, const void *buffer, size_t size, size_t total);
int os_truncate(int fd, uint64_t size);

/* POSIX record locks on one byte: owned by the process, dropped by the kernel when it ends in whatever way. */
int os_lock_try(int fd, uint64_t offset);    /* 1: ours now; 0: another process's; VC_EIO */
void os_lock_release(int fd, uint64_t offset);
/* 1: another process, or any open file, holds it, *pid = the process's PID in our namespace (0 when it has none there,
 * and for open files); 0: neither. */
int os_lock_owner(int fd, uint64_t offset, int32_t *pid);
/* Whether another process holds a lock on any of LENGTH bytes. */
int os_lock_any(int fd, uint64_t offset, uint64_t length);

/* Open-file-description locks on one byte: they belong to the open file, whichever process has descriptors or mappings
 * of it, and go with the last of these. 1: ours now; 0: another open file's or process's; VC_ENOSYS: the kernel has
 * none; VC_EIO. */
int os_hold_try(int fd, uint64_t offset);
void os_hold_release(int fd, uint64_t offset);
/* Keeps the open file open, and its locks with it, without a descriptor: until os_unmap(page, OS_HOLD_BYTES) or the end
 * of the process's memory. A forked child does not get the mapping. */
enum { OS_HOLD_BYTES = 4096 };
int os_map_hold(int fd, void **page);
/* Whether a mapping is known to keep open the file that was opened; overlayfs maps the file below. */
int os_mapping_keeps(int fd);

int32_t os_pid(void);
/* Number of the PID namespace; 0 when /proc does not say. The machine's first one has the same everywhere
 * (linux/nsfs.h: PID_NS_INIT_INO). */
#define OS_FIRST_PID_NAMESPACE 0xEFFFFFFCu
uint32_t os_pid_namespace(void);
/* Whether there is a process of this number in our PID namespace. */
int os_process_exists(int32_t pid);
/* Command name of the calling process (at most SIZE - 1 characters). */
void os_process_name(char *out, size_t size);

/* What the kernel thinks can be taken without swapping; VC_EIO when /proc does not say. */
int os_memory_available(uint64_t *bytes);

/* The kernel's own clock_gettime(), which the C library's calls, for os_coarse_ms(): a frequent caller finds it. */
struct timespec;
typedef int os_clock(int32_t clock, struct timespec *out);
void os_use_clock(os_clock *function);
/* Milliseconds of a monotonic clock, cheap (no system call) and coarse (a few ms). */
uint64_t os_coarse_ms(void);
/* The same for a comparison with an earlier one, in nanoseconds of which a second has 2^30: without a multiplication
 * and a division, which take as long as the clock. */
uint64_t os_coarse_stamp(void);
/* The same clock, exact. */
uint64_t os_now_ns(void);
/* Sleeps while *WORD is EXPECTED, until another thread wakes it or NS have passed (0: without end). May return
 * early. */
void os_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t ns);
void os_wake(_Atomic uint32_t *word);
/* Blocks every signal that a process sends, so that no handler of the program's runs; OLD: for os_signals_restore(). */
void os_signals_block(uint64_t *old);
void os_signals_restore(const uint64_t *old);
void os_thread_name(const char *name);
void os_sleep_us(uint32_t microseconds);
void os_yield(void);

#endif
