/* SPDX-License-Identifier: Apache-2.0 */
/* `sandbox PROFILE PROGRAM [ARGS]`: starts a program under a seccomp filter.
 *   docker  what container runtimes allow without added capabilities (docker_allowed.txt), the rest EPERM, clone3
 *           ENOSYS, clone only without namespaces
 *   eperm   everything but what small profiles forget: these calls answer EPERM
 *   enosys  the same as an old kernel would answer */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEW_NAMESPACES 0x7e020000
#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

static const int allowed[] = {
#include "docker_allowed.h"
};
static const int forgotten[] = {SYS_membarrier, SYS_openat2, SYS_fallocate, SYS_renameat2, SYS_rseq, SYS_pidfd_open};

enum { COUNT_ALLOWED = sizeof allowed / sizeof *allowed, COUNT_FORGOTTEN = sizeof forgotten / sizeof *forgotten };

static struct sock_filter program[2 * COUNT_ALLOWED + 32];
static unsigned short length;

static void add(unsigned short code, unsigned int k, unsigned char yes, unsigned char no) {
  program[length++] = (struct sock_filter){code, yes, no, k};
}

static void answer(int number, unsigned int action) {
  add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)number, 0, 1);
  add(BPF_RET | BPF_K, action, 0, 0);
}

static void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, (unsigned int)offset, 0, 0); }

static void write_docker(void) {
  for (int i = 0; i < COUNT_ALLOWED; i++) answer(allowed[i], SECCOMP_RET_ALLOW);
  answer(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
  add(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0);
  add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM, 0, 0);
  load(offsetof(struct seccomp_data, args[0]));
  add(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1);
  add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM, 0, 0);
  add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

static void write_small(int error) {
  for (int i = 0; i < COUNT_FORGOTTEN; i++) answer(forgotten[i], SECCOMP_RET_ERRNO | (unsigned int)error);
  add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

int main(int argc, char **argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s docker|eperm|enosys PROGRAM [ARGS]\n", argv[0]), 2;
  load(offsetof(struct seccomp_data, arch));
  add(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
  add(BPF_RET | BPF_K, SECCOMP_RET_KILL, 0, 0);
  load(offsetof(struct seccomp_data, nr));
  if (!strcmp(argv[1], "docker")) write_docker();
  else write_small(!strcmp(argv[1], "eperm") ? EPERM : ENOSYS);
  struct sock_fprog filter = {length, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
    perror("seccomp");
    return 3;
  }
  execv(argv[2], argv + 2);
  perror(argv[2]);
  return 1;
}
