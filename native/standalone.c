/* SPDX-License-Identifier: Apache-2.0 */
/* A directory that VCUDA_DIR names is filled where it is: the page is created complete or not at all, and the process that
 * creates it decides the identity; every process, the creator included, then makes sure that a ledger of that identity
 * exists. So no process waits for another, and one killed between the two leaves nothing that the next one does not
 * finish. The directory of a head or of a name is filled under another name and renamed (own_quota.c).
 * Uses neither CUDA nor NVML. Tests: tests/integration/test_native_config.py. */
#define _GNU_SOURCE
#include "standalone.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "directory.h"
#include "os.h"
#include "own_quota.h"
#include "tree.h"

enum { PAGE_MODE = 0644, LEDGER_MODE = 0666, DIRECTORY_MODE = 0700 };

static const char not_ours[] =
    "it is another user's: start vcuda run as the user of this program, let that user into the directory (chmod o+x), or "
    "set VCUDA_DIR to a directory of its own, which has a quota of its own";

static int fail(int status, char *why, const char *what, const char *path, const char *cause, const char *remedy) {
  snprintf(why, CONFIG_WHY, "%s %s: %s; %s", what, path, cause, remedy);
  return status;
}

static int make_directory(const struct config *config, char *why) {
  char parent[CONFIG_PATH];
  snprintf(parent, sizeof parent, "%s", config->directory);
  char *slash = strrchr(parent, '/');
  if (slash != NULL && slash != parent) *slash = 0;
  if (mkdir(parent, DIRECTORY_MODE) != 0 && errno != EEXIST)
    return fail(VC_EACCES, why, "cannot create", parent, strerror(errno), "set VCUDA_DIR to a directory of yours");
  if (mkdir(config->directory, DIRECTORY_MODE) != 0 && errno != EEXIST)
    return fail(VC_EACCES, why, "cannot create", config->directory, strerror(errno),
                "set VCUDA_DIR to a directory of yours");
  return VC_OK;
}

int machine_make_id(uint8_t id[VC_ID_BYTES], char *why) {
  if (syscall(SYS_getrandom, id, VC_ID_BYTES, 0) == VC_ID_BYTES) return VC_OK;
  snprintf(why, CONFIG_WHY, "the kernel gave no random bytes: %s; use a Linux of 2014 or later", strerror(errno));
  return VC_ENOSYS;
}

int machine_list(standalone_list_gpus *list_gpus, struct machine *out, char *why) {
  int listed = list_gpus(out->gpus, MACHINE_GPUS);
  if (listed <= 0) {
    snprintf(why, CONFIG_WHY, "VCUDA_MEMORY_LIMIT is set, but neither NVML nor the CUDA driver lists a GPU; check "
             "nvidia-smi -L");
    return VC_ENODRIVER;
  }
  out->count = (uint32_t)(listed < MACHINE_GPUS ? listed : MACHINE_GPUS); /* more GPUs than that are left out */
  return VC_OK;
}

static int create_page(const struct config *config, const struct requests *requests, standalone_list_gpus *list_gpus,
                       char *why) {
  uint8_t id[VC_ID_BYTES];
  struct vc_gpu_limit entry[VC_MAX_GPUS];
  struct machine machine;
  int status = machine_list(list_gpus, &machine, why);
  if (status != VC_OK) return status;
  int count = config_resolve(requests, (const uint8_t(*)[VC_UUID_BYTES])machine.gpus, machine.count, entry, why);
  if (count < 0) return count;
  status = make_directory(config, why);
  if (status == VC_OK) status = machine_make_id(id, why);
  if (status != VC_OK) return status;
  status = limits_create(config->limits, id, entry, (uint32_t)count, PAGE_MODE);
  if (status == VC_OK || status == VC_EEXIST) return VC_OK;
  return fail(status, why, "cannot create", config->limits, status_text(status),
              status == VC_ENOSPC    ? "free some"
              : status == VC_EACCES ? not_ours
                                    : "set VCUDA_DIR to a directory of yours");
}

static int check_page(const struct config *config, const struct requests *requests, standalone_list_gpus *list_gpus,
                      const struct vc_limits *page, char *why) {
  struct machine machine = {.count = 0};
  int status = VC_OK;
  /* Limits that were changed live are a later decision; the variable only repeats the first one. */
  if (requests == NULL || page->changes != 0) return VC_OK;
  if (config_needs_gpus(requests)) status = machine_list(list_gpus, &machine, why);
  if (status != VC_OK) return status;
  const char *remedy = directory_is_inherited(config->directory)
                           ? "set VCUDA_QUOTA to a name for a quota of its own"
                           : "set VCUDA_DIR to another directory, or remove this one when no program uses it";
  return config_compare(requests, (const uint8_t(*)[VC_UUID_BYTES])machine.gpus, machine.count, page, config->limits, remedy,
                        why);
}

static int read_page(const struct config *config, struct vc_limits *page, char *why) {
  int status = limits_read(config->limits, page);
  if (status == VC_OK) return VC_OK;
  if (status == VC_ENOENT)
    return fail(status, why, "nothing is at", config->limits, "VCUDA_DIR names a directory without limits",
                "set VCUDA_MEMORY_LIMIT too, or start the program with vcuda run");
  if (status == VC_EACCES)
    return fail(status, why, "limits page", config->limits, status_text(status), not_ours);
  return fail(status, why, "limits page", config->limits, status_text(status),
              "remove the directory, or set VCUDA_DIR to another one");
}

static int parse(const struct config *config, struct requests *out, char *why) {
  int status = config_parse_memory(config->memory_limit, out, why);
  if (status == VC_OK && config->physical_limit != NULL) status = config_parse_physical(config->physical_limit, out, why);
  if (status == VC_OK && config->cores != NULL) status = config_parse_cores(config->cores, out, why);
  return status;
}

static int prepare_given(const struct config *config, const struct requests *requests, standalone_list_gpus *list_gpus,
                         char *why) {
  struct vc_limits page;
  int status = VC_OK;
  if (requests != NULL && !os_exists(config->limits)) status = create_page(config, requests, list_gpus, why);
  /* The usual case, a directory that vcuda run has made: attaching checks both files anyway. */
  if (requests == NULL && os_exists(config->ledger)) return VC_OK;
  if (status == VC_OK) status = read_page(config, &page, why);
  if (status == VC_OK) status = check_page(config, requests, list_gpus, &page, why);
  if (status != VC_OK || os_exists(config->ledger)) return status;
  status = ledger_create(config->ledger, page.id, page.gpu, page.gpu_count, LEDGER_MODE);
  if (status == VC_OK || status == VC_EEXIST) return VC_OK;
  return fail(status, why, "cannot create", config->ledger, status_text(status),
              status == VC_ENOSPC ? "free some" : "make the directory writable");
}

int standalone_prepare(const struct config *config, standalone_list_gpus *list_gpus, int *lock, char *why) {
  struct requests parsed, *requests = config->memory_limit != NULL ? &parsed : NULL;
  *lock = -1;
  int status = requests != NULL ? parse(config, requests, why) : VC_OK;
  if (status != VC_OK) return status;
  if (config->origin != CONFIG_GIVEN) return own_quota_prepare(config, requests, list_gpus, lock, why);
  return prepare_given(config, requests, list_gpus, why);
}

void standalone_done(int lock) { tree_unlock(lock); }
