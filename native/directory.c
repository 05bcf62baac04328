/* SPDX-License-Identifier: Apache-2.0 */
/* See directory.h.
 * Tests: tests/native/test_config.c, tests/integration/test_native_heads.py. */
#define _GNU_SOURCE
#include "directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "head.h"
#include "quota.h"
#include "text.h"

/* Quotas of root's are to hold for what becomes another user too, so that one must be able to enter the directory. */
static int is_own_directory(const char *path) {
  struct stat st;
  if (syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) != 0) return 0;
  return S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

static int is_open_to_all(const char *path) {
  struct stat st;
  return syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0 && (st.st_mode & S_IXOTH) != 0;
}

size_t directory_base(const char *runtime, char out[CONFIG_PATH]) {
  char user[TEXT_NUMBER];
  if (runtime != NULL && runtime[0] == '/' && is_own_directory(runtime) && (geteuid() != 0 || is_open_to_all(runtime)))
    return text_join(out, CONFIG_PATH, runtime, "/vcuda", "");
  return text_join(out, CONFIG_PATH, "/tmp/vcuda-", text_number(geteuid(), user), "");
}

static int too_long(const char *path, char *why) {
  snprintf(why, CONFIG_WHY, "the path %.64s… is too long; set VCUDA_DIR to one of fewer than %d characters", path,
           CONFIG_PATH - 8);
  return VC_EINVAL;
}

static int join_path(struct config *out, const char *base, const char *prefix_text, const char *name, char *why) {
  char file[CONFIG_PATH];
  text_join(file, sizeof file, "/", prefix_text, name);
  return text_join(out->directory, CONFIG_PATH, base, file, "") < CONFIG_PATH - 8 ? VC_OK : too_long(out->directory, why);
}

enum { NAME_MAX_LENGTH = 64 };

static int is_quota_name(const char *name) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  size_t length = strspn(name, allowed);
  return length > 0 && length <= NAME_MAX_LENGTH && name[length] == 0;
}

static int is_of_head(const char *directory) {
  uint64_t values;
  int32_t head;
  return head_parse(quota_base_name(directory), &head, &values);
}

/* VCUDA_QUOTA beside it was set later. */
int directory_is_inherited(const char *directory) {
  return strncmp(quota_base_name(directory), QUOTA_RUN, sizeof QUOTA_RUN - 1) == 0 || is_of_head(directory);
}

static int choose_by_name(struct config *out, const struct directory_names *names, char *why) {
  const char *quota = names->quota, *named = names->directory;
  char base[CONFIG_PATH];
  out->origin = CONFIG_NAMED;
  if (!is_quota_name(quota)) {
    snprintf(why, CONFIG_WHY, "VCUDA_QUOTA is \"%.64s\"; give a name of at most %d letters, digits, dots, hyphens and "
             "underscores", quota, NAME_MAX_LENGTH);
    return VC_EINVAL;
  }
  if (named != NULL && !directory_is_inherited(named)) {
    snprintf(why, CONFIG_WHY, "VCUDA_QUOTA (%.64s) and VCUDA_DIR (%.64s) name two quotas; unset one of them", quota, named);
    return VC_EINVAL;
  }
  if (directory_base(names->runtime, base) >= sizeof base) return too_long(base, why);
  return join_path(out, base, QUOTA_NAMED, quota, why);
}

/* Whether this user's quotas may be made there: a directory that is missing is made only where it would be ours. */
static int may_make_in(const struct directory_names *names, const char *base) {
  char own[CONFIG_PATH], parent[CONFIG_PATH];
  struct stat st;
  if (directory_base(names->runtime, own) < sizeof own && strcmp(own, base) == 0) return 1;
  if (syscall(SYS_newfstatat, AT_FDCWD, base, &st, 0) == 0) return st.st_uid == geteuid();
  text_join(parent, sizeof parent, base, "", "");
  char *slash = strrchr(parent, '/');
  if (slash == NULL || slash == parent) return 0;
  *slash = 0;
  return syscall(SYS_newfstatat, AT_FDCWD, parent, &st, 0) == 0 && st.st_uid == geteuid() && (st.st_mode & 022) == 0;
}

/* A program that has become another user can join its head's quota. Where there is none yet it cannot make it, and has
 * one of the same name among its own: so all that user's processes below the head still are in one. */
static int choose_of_head(struct config *out, const struct directory_names *names, const char *directory, char *why) {
  char base[CONFIG_PATH];
  const char *name = quota_base_name(directory);
  out->origin = CONFIG_HEAD;
  head_parse(name, &out->head, &out->head_values);
  if (text_join(out->directory, CONFIG_PATH, directory, "", "") >= CONFIG_PATH - 8) return too_long(directory, why);
  if (syscall(SYS_faccessat, AT_FDCWD, directory, F_OK) == 0) return VC_OK;
  text_join(base, sizeof base, directory, "", "");
  base[name - directory - 1] = 0;
  if (may_make_in(names, base)) return VC_OK;
  if (directory_base(names->runtime, base) >= sizeof base) return too_long(base, why);
  return join_path(out, base, "", name, why);
}

/* Variables that a program sets itself make it a head too; they are no business of the processes that it starts unless it
 * hands them on, and its environment is not changed while its threads read it. */
static int choose_own(struct config *out, const struct directory_names *names, char *why) {
  char base[CONFIG_PATH], name[HEAD_NAME], path[CONFIG_PATH + HEAD_NAME];
  if (head_published() != NULL) return choose_of_head(out, names, head_published(), why);
  if (directory_base(names->runtime, base) >= sizeof base) return too_long(base, why);
  if (head_name(out->values, name) != VC_OK) {
    snprintf(why, CONFIG_WHY, "the kernel gave no random bytes: %s; use a Linux of 2014 or later", strerror(errno));
    return VC_ENOSYS;
  }
  text_join(path, sizeof path, base, "/", name);
  return choose_of_head(out, names, path, why);
}

int directory_has_head(const struct directory_names *names) {
  return names->quota == NULL && (names->directory == NULL || is_of_head(names->directory));
}

int directory_choose(struct config *out, const struct directory_names *names, char *why) {
  if (names->quota != NULL) return choose_by_name(out, names, why);
  if (names->directory == NULL) return choose_own(out, names, why);
  if (is_of_head(names->directory)) return choose_of_head(out, names, names->directory, why);
  out->origin = CONFIG_GIVEN;
  int fits = text_join(out->directory, CONFIG_PATH, names->directory, "", "") < CONFIG_PATH - 8;
  return fits ? VC_OK : too_long(names->directory, why);
}
