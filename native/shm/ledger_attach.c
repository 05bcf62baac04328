/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching to a limits page and its ledger: everything is checked here once, so that the hot paths check nothing.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger.c. */
#include <stdio.h>
#include <stdlib.h>

#include "ledger_slots.h"
#include "os.h"
#include "plain.h"
#include "text.h"

/* A file that may not be opened is not mended by making it anew. */
static const char *remedy(int status) {
  if (status == VC_EACCES)
    return "this user may not open it: start vcuda run as the user of this program; in a pod see what forbids it (SELinux, a "
           "user namespace)";
  if (status == VC_ENOENT)
    return "if the program has changed its root directory, mount /etc/vcuda in the new root or use CUDA before; else "
           "recreate the pod, or the directory that vcuda run made";
  return "recreate the pod, or the directory that vcuda run made";
}

static int fail(int status, char *why, size_t size, const char *what, const char *path, const char *remedy) {
  if (why) snprintf(why, size, "%s %s: %s; %s", what, path, status_text(status), remedy);
  return status;
}

/* The file may be larger than it should be (a container made it grow): what lies beyond is not read. */
static int map_ledger(const struct os_file *file, void **address, size_t *mapped) {
  uint64_t whole = ledger_size(LEDGER_VERSION_SPLIT), first = ledger_size(LEDGER_VERSION);
  if (file->size < first) return VC_ECORRUPT;
  uint64_t size = file->size >= whole ? whole : first; /* of what is there no more than any version has */
  int status = os_map(file->fd, size, 1, address);
  if (status != VC_OK) return status;
  *mapped = size;
  status = ledger_check(*address, size);
  if (status != VC_OK) os_unmap(*address, size);
  return status;
}

static int attach_ledger(const char *path, struct ledger *ledger) {
  struct os_file file;
  void *address;
  int status = os_open(path, 1, &file);
  if (status != VC_OK) return status;
  status = map_ledger(&file, &address, &ledger->mapped);
  if (status != VC_OK) {
    os_close(file.fd);
    return status;
  }
  ledger->file = address;
  if (ledger->file->version == LEDGER_VERSION_SPLIT) {
    ledger->split = ((struct ledger_file_split *)address)->split;
    ledger->time_slice = ((struct ledger_file_split *)address)->time_slice;
  }
  ledger->hold.file = file;
  ledger->hold.file.fd = os_move_high(file.fd);
  ledger->columns = ledger->file->gpu_count;
  ledger->allowances = (ledger->file->features & LEDGER_ALLOWANCES) != 0 && ledger->columns <= VC_MAX_GPUS / 2 &&
                       ledger->file->version == LEDGER_VERSION;
  return VC_OK;
}

/* A page that splits a quota needs a ledger that does. */
static int is_split_for(const struct ledger *ledger, uint32_t column) {
  return ledger->split != NULL || ledger_physical(ledger, column) >= ledger_memory(ledger, column);
}

static int match_columns(struct ledger *ledger) {
  if (!plain_same_bytes(ledger->file->id, ledger->limits->id, VC_ID_BYTES)) return VC_EMISMATCH;
  if (ledger->columns != ledger->limits->gpu_count) return VC_EMISMATCH;
  for (uint32_t c = 0; c < ledger->columns; c++) {
    uint32_t entry = 0;
    while (entry < ledger->limits->gpu_count &&
           !plain_same_bytes(ledger->limits->gpu[entry].uuid, ledger->file->uuid[c], VC_UUID_BYTES))
      entry++;
    if (entry == ledger->limits->gpu_count) return VC_EMISMATCH;
    ledger->limit_of[c] = &ledger->limits->gpu[entry];
    ledger->share_of[c] = &ledger->limits->share[entry];
    if (!is_split_for(ledger, c)) return VC_EMISMATCH;
  }
  return VC_OK;
}

/* Fills LEDGER in, or leaves nothing of it behind. */
static int attach_under(const struct limits_page *limits, const char *path, struct ledger *ledger) {
  ledger->limits = limits;
  atomic_init(&ledger->slot, -1);
  ledger_hold_init(&ledger->hold);
  int status = attach_ledger(path, ledger);
  if (status == VC_OK) status = match_columns(ledger);
  if (status != VC_OK && ledger->file) {
    os_unmap(ledger->file, ledger->mapped);
    os_close(ledger->hold.file.fd);
  }
  return status;
}

int ledger_attach_under(const struct limits_page *limits, const char *ledger_path, struct ledger **out, char *why,
                        size_t why_size) {
  struct ledger *ledger = calloc(1, sizeof *ledger);
  if (!ledger) return fail(VC_EIO, why, why_size, "ledger", ledger_path, "free some memory");
  if (text_join(ledger->hold.path, sizeof ledger->hold.path, ledger_path, "", "") >= sizeof ledger->hold.path) {
    free(ledger);
    return fail(VC_EINVAL, why, why_size, "ledger", ledger_path, "use a path shorter than 256 characters");
  }
  int status = attach_under(limits, ledger_path, ledger);
  if (status == VC_OK) {
    ledger_forget_former_program(ledger);
    *out = ledger;
    return VC_OK;
  }
  free(ledger);
  return fail(status, why, why_size, "ledger", ledger_path, remedy(status));
}

int ledger_attach(const char *limits_path, const char *ledger_path, struct ledger **out, char *why, size_t why_size) {
  const struct limits_page *limits;
  int status = limits_map(limits_path, &limits);
  if (status != VC_OK) return fail(status, why, why_size, "limits page", limits_path, remedy(status));
  status = ledger_attach_under(limits, ledger_path, out, why, why_size);
  if (status != VC_OK) limits_unmap(limits);
  return status;
}
