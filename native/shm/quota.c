/* SPDX-License-Identifier: Apache-2.0 */
/* See quota.h.
 * Tests: tests/native/test_quota.c, tests/unit/vcuda/test_quotas.py. */
#define _GNU_SOURCE
#include "quota.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"
#include "text.h"
#include "tree.h"

enum { PATH = 512, RECORD_TAIL = 256 };

int quota_random(char *out, uint32_t size) {
  static const char hex[] = "0123456789abcdef";
  uint8_t bytes[QUOTA_RANDOM];
  if (size > sizeof bytes || syscall(SYS_getrandom, bytes, (size_t)size, 0) != (long)size) return VC_ENOSYS;
  for (uint32_t i = 0; i < size; i++) {
    *out++ = hex[bytes[i] >> 4];
    *out++ = hex[bytes[i] & 15];
  }
  *out = 0;
  return VC_OK;
}

static uint64_t number_at(const char *text) {
  uint64_t number = 0;
  for (; *text >= '0' && *text <= '9'; text++) number = number * 10 + (uint64_t)(*text - '0');
  return number;
}

uint64_t quota_start_time(int32_t pid) {
  enum { FIELD = 22 - 2 }; /* the second field, a name, may contain anything: counted from its end */
  char path[64], number[TEXT_NUMBER], text[1024];
  text_join(path, sizeof path, "/proc/", text_number((uint32_t)pid, number), "/stat");
  if (pid <= 0 || tree_read(path, 0, text, sizeof text) <= 0) return 0;
  const char *at = strrchr(text, ')');
  for (int field = 0; at != NULL && field < FIELD; field++) {
    at = strchr(at, ' ');
    if (at != NULL) at++;
  }
  return at != NULL ? number_at(at) : 0;
}

/* A number of a record that `vcuda run` or a library wrote; the last of this name, and 0 for none. What stands in the
 * command is quoted, so it is not taken for a name. */
static uint64_t recorded(const char *text, const char *name) {
  const char *at = NULL;
  for (const char *next = strstr(text, name); next != NULL; next = strstr(next + 1, name)) at = next;
  return at != NULL ? number_at(at + strlen(name)) : 0;
}

static int launcher_lives(const char *directory) {
  char path[PATH], text[RECORD_TAIL];
  text_join(path, sizeof path, directory, "/command.json", "");
  if (tree_read(path, 1, text, sizeof text) <= 0) return 0; /* what is at its end is all that is looked for */
  uint64_t pid = recorded(text, "\"launcher\": "), start = recorded(text, "\"launcher_start\": ");
  return pid != 0 && pid <= INT32_MAX && start != 0 && quota_start_time((int32_t)pid) == start;
}

/* No process can use a ledger that cannot be read; those that name its directory still count. */
static int has_processes(const char *directory) {
  char path[PATH];
  text_join(path, sizeof path, directory, "/ledger", "");
  int used = ledger_is_used(path);
  return used == 1 || used == VC_EACCES;
}

int quota_in_use(const char *directory, int launcher_done) {
  if (strlen(directory) >= PATH - 16) return 1;
  if (!launcher_done && launcher_lives(directory)) return 1;
  return has_processes(directory) || quota_is_named(QUOTA_PROC, directory);
}

static int parent_of(const char *path, char out[PATH]) {
  size_t length = (size_t)(quota_base_name(path) - path);
  if (length < 2 || length >= PATH) return 0;
  memcpy(out, path, length - 1);
  out[length - 1] = 0;
  return 1;
}

int quota_discard(const char *directory) {
  char parent[PATH], doomed[PATH], random[2 * QUOTA_RANDOM + 1];
  if (!parent_of(directory, parent) || quota_random(random, QUOTA_RANDOM) != VC_OK) return 0;
  text_join(doomed, sizeof doomed, parent, "/" QUOTA_DEAD, random);
  if (rename(directory, doomed) != 0) return 0;
  tree_remove(doomed);
  return 1;
}

/* Without waiting: what is not removed now is by the next who sweeps. */
int quota_remove_unused(const char *directory, int launcher_done) {
  char parent[PATH];
  if (!parent_of(directory, parent)) return 0;
  if ((!launcher_done && launcher_lives(directory)) || has_processes(directory)) return 0; /* most of them */
  int lock = tree_lock(parent, 0);
  if (lock == VC_EBUSY) return 0;
  int removed = !quota_in_use(directory, launcher_done) && quota_discard(directory);
  tree_unlock(lock);
  return removed;
}

static int begins_with(const char *text, const char *begin) { return strncmp(text, begin, strlen(begin)) == 0; }

/* A directory that is being filled, by a process of this number. */
static int maker_lives(const char *name) {
  const char *digits = name + sizeof QUOTA_NEW - 1;
  uint64_t pid = number_at(digits);
  return pid != 0 && pid <= INT32_MAX && quota_start_time((int32_t)pid) != 0;
}

struct sweep {
  const char *base;
  int count;
};

static int sweep_name(const char *name, void *context) {
  struct sweep *sweep = context;
  char path[PATH];
  if (text_join(path, sizeof path, sweep->base, "/", name) >= sizeof path) return 0;
  if (begins_with(name, QUOTA_RUN) || begins_with(name, QUOTA_HEAD) || begins_with(name, QUOTA_NAMED))
    sweep->count += quota_remove_unused(path, 0);
  else if (begins_with(name, QUOTA_NEW) && !maker_lives(name))
    sweep->count += quota_discard(path);
  else if (begins_with(name, QUOTA_DEAD))
    sweep->count += quota_discard(path);
  return 0;
}

int quota_sweep(const char *base) {
  struct sweep sweep = {.base = base};
  tree_names(base, sweep_name, &sweep);
  return sweep.count;
}
