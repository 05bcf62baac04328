/* SPDX-License-Identifier: Apache-2.0 */
/* See own_quota.h. Whoever joins or makes such a quota has the lock of its base directory until it has attached, and so
 * has who removes one: what is judged unused is not joined before it is gone. The GPUs are asked for before the lock is
 * taken, since that runs the dynamic loader, for which another thread of this process may wait with its own lock.
 * Tests: tests/integration/test_native_heads.py, test_native_named_quotas.py. */
#define _GNU_SOURCE
#include "own_quota.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "os.h"
#include "quota.h"
#include "text.h"
#include "tree.h"

enum {
  PAGE_MODE = 0644,
  LEDGER_MODE = 0666,
  RECORD_MODE = 0600,
  PATH = 512,
  LOCK_MS = 5000,
  ROUNDS = 8,
  /* Of try_quota(): what it needs to go on is had without the lock. */
  NEEDS_GPUS = 1,
  NEEDS_ANOTHER_LOOK = 2,
};

/* Root's are to hold for what becomes another user, too (vcuda/quotas.py has the same). */
static mode_t directory_mode(void) { return geteuid() == 0 ? 0711 : 0700; }

static int fail(int status, char *why, const char *what, const char *path, const char *cause, const char *remedy) {
  snprintf(why, CONFIG_WHY, "%s %s: %s; %s", what, path, cause, remedy);
  return status;
}

static void base_of(const struct config *config, char out[CONFIG_PATH]) {
  text_join(out, CONFIG_PATH, config->directory, "", "");
  char *slash = strrchr(out, '/');
  if (slash != NULL) *slash = 0;
}

static int is_private(const char *path) {
  struct stat st;
  if (syscall(SYS_newfstatat, -100 /* AT_FDCWD */, path, &st, 0x100 /* AT_SYMLINK_NOFOLLOW */) != 0) return 0;
  return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 022) == 0;
}

/* It lies in a directory that others may write to: one, or a link, that another user put there must not decide the
 * limits. */
static int make_base(const char *base, char *why) {
  static const char remedy[] = "set XDG_RUNTIME_DIR or VCUDA_DIR to a directory of yours";
  int made = mkdir(base, directory_mode()) == 0;
  if (!made && errno != EEXIST) return fail(VC_EACCES, why, "cannot create", base, strerror(errno), remedy);
  if (made) chmod(base, directory_mode()); /* whatever the umask is */
  if (is_private(base)) return VC_OK;
  return fail(VC_EACCES, why, "cannot use", base, "another user can write to it",
              "remove it, or set XDG_RUNTIME_DIR or VCUDA_DIR to a directory of yours");
}

/* --- the record, as vcuda run writes one: what vcuda ps shows, and who keeps the directory by living -------------- */

struct text {
  size_t length;
  char text[4096];
};

static void add(struct text *out, const char *text) {
  for (; *text != 0 && out->length < sizeof out->text - 1; text++) out->text[out->length++] = *text;
  out->text[out->length] = 0;
}

static void add_word(struct text *out, const char *word) {
  add(out, "\"");
  for (char part[3] = ""; *word != 0; word++) {
    int quoted = *word == '"' || *word == '\\';
    part[0] = quoted ? '\\' : *word >= ' ' && *word <= '~' ? *word : '?';
    part[1] = quoted ? *word : 0;
    add(out, part);
  }
  add(out, "\"");
}

static void add_field(struct text *out, const char *name, uint64_t value) {
  char number[TEXT_NUMBER];
  add(out, name);
  add(out, text_number(value, number));
}

static void add_command(struct text *out, int32_t pid) {
  char path[64], number[TEXT_NUMBER], words[1024];
  text_join(path, sizeof path, "/proc/", text_number((uint32_t)pid, number), "/cmdline");
  int length = tree_read(path, 0, words, sizeof words);
  add(out, "{\"command\": [");
  for (int at = 0; at < length; at += (int)strlen(words + at) + 1) {
    if (at > 0) add(out, ", ");
    add_word(out, words + at);
  }
  add(out, "]");
}

static int write_record(const char *prepared, int32_t head) {
  struct text record = {0};
  char path[PATH];
  uint64_t start = quota_start_time(head);
  add_command(&record, start != 0 ? head : os_pid());
  add_field(&record, ", \"pid\": ", (uint32_t)head);
  add_field(&record, ", \"launcher\": ", (uint32_t)head);
  add_field(&record, ", \"launcher_start\": ", start);
  add_field(&record, ", \"start\": ", (uint64_t)time(NULL));
  add(&record, ", \"version\": 1}\n");
  text_join(path, sizeof path, prepared, "/command.json", "");
  return os_publish(path, record.text, record.length, record.length, RECORD_MODE);
}

/* --- making one --------------------------------------------------------------------------------------------------- */

static int fill(const struct config *config, const char *prepared, const struct vc_gpu_limit *entry, uint32_t count,
                char *why) {
  char path[PATH];
  uint8_t id[VC_ID_BYTES];
  int status = machine_make_id(id, why);
  if (status != VC_OK) return status;
  text_join(path, sizeof path, prepared, "/limits", "");
  status = limits_create(path, id, entry, count, PAGE_MODE);
  text_join(path, sizeof path, prepared, "/ledger", "");
  if (status == VC_OK) status = ledger_create(path, id, entry, count, LEDGER_MODE);
  if (status == VC_OK && config->origin == CONFIG_HEAD) status = write_record(prepared, config->head);
  if (status == VC_OK) return VC_OK;
  return fail(status, why, "cannot create", config->directory, status_text(status),
              status == VC_ENOSPC ? "free some" : "set XDG_RUNTIME_DIR or VCUDA_DIR to a directory of yours");
}

/* It appears complete or not at all, and one that is there wins. */
static int make_whole(const struct config *config, const struct requests *requests, const struct machine *machine,
                      char *why) {
  struct vc_gpu_limit entry[VC_MAX_GPUS];
  char base[CONFIG_PATH], begin[CONFIG_PATH + 32], number[TEXT_NUMBER], random[2 * QUOTA_RANDOM + 1], prepared[PATH];
  int count = config_resolve(requests, (const uint8_t(*)[VC_UUID_BYTES])machine->gpus, machine->count, entry, why);
  if (count < 0) return count;
  base_of(config, base);
  if (quota_random(random, QUOTA_RANDOM) != VC_OK)
    return fail(VC_ENOSYS, why, "cannot create", config->directory, "the kernel gave no random bytes",
                "use a Linux of 2014 or later");
  text_join(begin, sizeof begin, base, "/" QUOTA_NEW, text_number((uint32_t)os_pid(), number));
  text_join(prepared, sizeof prepared, begin, "-", random);
  if (mkdir(prepared, 0700) != 0)
    return fail(errno == ENOSPC ? VC_ENOSPC : VC_EACCES, why, "cannot create", prepared, strerror(errno),
                "set XDG_RUNTIME_DIR or VCUDA_DIR to a directory of yours");
  int status = fill(config, prepared, entry, (uint32_t)count, why);
  if (status == VC_OK && (chmod(prepared, directory_mode()) != 0 || rename(prepared, config->directory) != 0)) {
    status = NEEDS_ANOTHER_LOOK;
    if (errno != EEXIST && errno != ENOTEMPTY)
      status = fail(VC_EIO, why, "cannot create", config->directory, strerror(errno), "try again");
  }
  if (status != VC_OK) tree_remove(prepared);
  return status;
}

/* --- joining one -------------------------------------------------------------------------------------------------- */

static int compare(const struct config *config, const struct requests *requests, const struct machine *machine,
                   const struct vc_limits *page, char *why) {
  char place[CONFIG_PATH + 64];
  const uint8_t(*gpus)[VC_UUID_BYTES] = (const uint8_t(*)[VC_UUID_BYTES])machine->gpus;
  /* Limits that were changed live are a later decision; the variable only repeats the first one. */
  if (page->changes != 0) return VC_OK;
  if (config->origin == CONFIG_NAMED) {
    snprintf(place, sizeof place, "%s, which a program uses,", config->limits);
    return config_compare(requests, gpus, machine->count, page, place, "set VCUDA_QUOTA to another name", why);
  }
  snprintf(place, sizeof place, "%s, the quota that process %d heads,", config->limits, (int)config->head);
  return config_compare(requests, gpus, machine->count, page, place, "set VCUDA_QUOTA to a name for a quota of its own", why);
}

static int read_page(const struct config *config, struct vc_limits *page, char *why) {
  int status = limits_read(config->limits, page);
  if (status == VC_OK) return VC_OK;
  if (status == VC_EACCES)
    return fail(status, why, "limits page", config->limits, status_text(status),
                "it is another user's: set VCUDA_QUOTA to a name for a quota of this user's");
  return fail(status, why, "limits page", config->limits, status_text(status),
              "remove the directory when no program uses it, or set VCUDA_QUOTA to another name");
}

static int is_used(const struct config *config) {
  const struct quota_values ours = {config->memory_limit, config->physical_limit, config->cores};
  int used = ledger_is_used(config->ledger);
  return used == 1 || used == VC_EACCES || quota_named_by(QUOTA_PROC, config->directory, &ours, NULL);
}

/* One that is there has other limits, or none that can be read. */
static int make_anew(const struct config *config, const struct requests *requests, const struct machine *machine,
                     int status, char *why) {
  char ignored[CONFIG_WHY];
  if (config->origin != CONFIG_NAMED || is_used(config)) return status;
  if (machine->count == 0) return NEEDS_GPUS;
  quota_discard(config->directory);
  status = make_whole(config, requests, machine, ignored);
  if (status < 0) text_join(why, CONFIG_WHY, ignored, "", "");
  return status;
}

static int join(const struct config *config, const struct requests *requests, const struct machine *machine, char *why) {
  struct vc_limits page;
  int status = read_page(config, &page, why);
  if (status == VC_ENOENT) return NEEDS_ANOTHER_LOOK;
  if (requests == NULL) return status;
  if (status == VC_OK && config_needs_gpus(requests) && machine->count == 0) return NEEDS_GPUS;
  if (status == VC_OK) status = compare(config, requests, machine, &page, why);
  return status == VC_OK ? VC_OK : make_anew(config, requests, machine, status, why);
}

/* The first to use CUDA makes the quota that the head named: not one that was given other values since. */
static int refuse_other_values(const struct config *config, char *why) {
  snprintf(why, CONFIG_WHY,
           "VCUDA_MEMORY_LIMIT (%.48s) and what goes with it are not what process %d, the head of this program's quota, "
           "was given; leave them as they were, or set VCUDA_QUOTA to a name for a quota of its own (%s)",
           config->memory_limit, (int)config->head, config->directory);
  return VC_EINVAL;
}

static int make(const struct config *config, const struct requests *requests, const struct machine *machine, char *why) {
  if (requests == NULL)
    return fail(VC_ENOENT, why, "nothing is at", config->limits, "no program has used this quota yet",
                "set VCUDA_MEMORY_LIMIT too");
  if (config->origin == CONFIG_HEAD && config->values != config->head_values) return refuse_other_values(config, why);
  return machine->count == 0 ? NEEDS_GPUS : make_whole(config, requests, machine, why);
}

static int try_quota(const struct config *config, const struct requests *requests, const struct machine *machine,
                     int *lock, char *why) {
  char base[CONFIG_PATH];
  int status = VC_OK;
  base_of(config, base);
  if (config->origin == CONFIG_NAMED || (requests != NULL && !os_exists(config->limits))) status = make_base(base, why);
  if (status != VC_OK) return status;
  *lock = tree_lock(base, LOCK_MS);
  if (*lock == VC_EBUSY)
    return fail(VC_EBUSY, why, "cannot use", base, "another program keeps it locked",
                "end one that is stopped in the midst of its start, and try again");
  status = os_exists(config->limits) ? join(config, requests, machine, why) : make(config, requests, machine, why);
  if (status == VC_OK) return VC_OK;
  tree_unlock(*lock);
  *lock = -1;
  return status;
}

int own_quota_prepare(const struct config *config, const struct requests *requests, standalone_list_gpus *list_gpus,
                      int *lock, char *why) {
  struct machine machine = {.count = 0};
  char base[CONFIG_PATH];
  for (int round = 0; round < ROUNDS; round++) {
    int status = try_quota(config, requests, &machine, lock, why);
    if (status != NEEDS_GPUS && status != NEEDS_ANOTHER_LOOK) return status;
    if (status == NEEDS_ANOTHER_LOOK || machine.count != 0) continue;
    status = machine_list(list_gpus, &machine, why);
    if (status != VC_OK) return status;
    base_of(config, base);
    quota_sweep(base); /* who makes a directory removes what others have left */
  }
  return fail(VC_EBUSY, why, "cannot use", config->directory, "others make and remove it all the time", "try again");
}
