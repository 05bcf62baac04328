/* SPDX-License-Identifier: Apache-2.0 */
/* Quota directories that nobody named by path: who uses one, and how it goes when nobody does. `vcuda run` makes them
 * (run-…), so does the first program with VCUDA_MEMORY_LIMIT (env-…), and VCUDA_QUOTA names some (quota-…); all lie in
 * one base directory of the user's. What Python may call is in shm_api.h.
 *
 * One is in use while a process owns a slot of its ledger, while its launcher lives, or while a process names it: by its
 * environment, which the kernel shows as it was when the program was started, or by a mapping of its ledger. A forked
 * child shows its parent's environment, to which the parent may have added the directory later; what it has mapped tells
 * that it has attached. A child that has not is no reason to keep a directory: it makes it anew, with the same limits.
 *
 * Directories of the last two kinds are joined, made and removed under a lock on the base (tree_lock): so one that is
 * judged unused is not joined before it is gone.
 * Uses neither CUDA nor NVML. Tests: tests/native/test_quota.c, tests/unit/vcuda/test_quotas.py. */
#ifndef VC_SHM_QUOTA_H
#define VC_SHM_QUOTA_H

#include <stdint.h>

#include "shm.h"

#define QUOTA_RUN "run-"
#define QUOTA_HEAD "env-"
#define QUOTA_NAMED "quota-"
#define QUOTA_NEW ".new-"
#define QUOTA_DEAD ".dead-"
#define QUOTA_PROC "/proc"

/* What a program asks of a quota that has a name, as its environment has it; NULL: not set. */
struct quota_values {
  const char *memory, *physical, *cores;
};

/* As quota_is_named(), by processes other than the caller. OURS: those that have DIRECTORY's name in VCUDA_QUOTA together
 * with these very values do not count: they want what the caller wants; NULL: all count. *PID: one of them. */
int quota_named_by(const char *proc, const char *directory, const struct quota_values *ours, int32_t *pid);

/* Renames DIRECTORY first, so that no process finds a half removed one. 1: removed, 0: another process did that. */
int quota_discard(const char *directory);

/* Clock ticks between boot and the start of process PID; 0: there is none. */
uint64_t quota_start_time(int32_t pid);

/* SIZE random bytes as text, two characters each. VC_ENOSYS. */
enum { QUOTA_RANDOM = 12 };
int quota_random(char *out, uint32_t size);

/* The part behind the last slash. */
const char *quota_base_name(const char *path);

#endif
