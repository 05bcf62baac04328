/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger seen from outside: create, read, cut back. The reader is the node agent, the writers are the container's
 * processes, so nothing that is read here is trusted: sizes are checked, the file is never mapped (one cut short under
 * a mapping kills the reader), and the only identity taken for truth is the owner that the kernel gives for a slot's
 * lock.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger_file.c, tests/unit/vcuda/test_ledger.py. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ledger_hold.h"
#include "ledger_layout.h"
#include "limits_layout.h"
#include "os.h"
#include "shm.h"

uint64_t ledger_checksum(const struct ledger_file *file) {
  return checksum_add(CHECKSUM_START, file, offsetof(struct ledger_file, checksum));
}

uint64_t ledger_size(uint32_t version) {
  if (version == LEDGER_VERSION) return sizeof(struct ledger_file);
  return version == LEDGER_VERSION_SPLIT ? sizeof(struct ledger_file_split) : 0;
}

int ledger_check(const struct ledger_file *file, uint64_t size) {
  if (memcmp(file->magic, LEDGER_MAGIC, sizeof file->magic) != 0) return VC_ECORRUPT;
  uint64_t whole = ledger_size(file->version);
  if (whole == 0) return VC_EVERSION;
  if (size < whole || file->size != whole) return VC_ECORRUPT;
  if (file->gpu_count == 0 || file->gpu_count > VC_MAX_GPUS || file->slot_count != VC_MAX_SLOTS) return VC_ECORRUPT;
  return file->checksum == ledger_checksum(file) ? VC_OK : VC_ECORRUPT;
}

uint64_t ledger_file_bytes(void) { return sizeof(struct ledger_file); }

/* A container without host memory gets the older file, which every library reads. */
static uint32_t version_for(const struct vc_gpu_limit *gpus, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (gpus[i].physical_bytes != 0) return LEDGER_VERSION_SPLIT;
  return LEDGER_VERSION;
}

/* The header of an empty ledger; NULL and *STATUS when there can be none. The slots behind it stay untouched. */
static struct ledger_file *compose(const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count,
                                   int *status) {
  *status = limits_gpus_are_valid(gpus, count) ? VC_OK : VC_EINVAL;
  if (*status != VC_OK) return NULL;
  struct ledger_file *file = calloc(1, sizeof *file);
  if (!file) {
    *status = VC_EIO;
    return NULL;
  }
  memcpy(file->magic, LEDGER_MAGIC, sizeof file->magic);
  file->version = version_for(gpus, count);
  file->size = (uint32_t)ledger_size(file->version);
  file->gpu_count = count;
  file->slot_count = VC_MAX_SLOTS;
  file->features = LEDGER_ALLOWANCES;
  memcpy(file->id, id, sizeof file->id);
  for (uint32_t i = 0; i < count; i++) memcpy(file->uuid[i], gpus[i].uuid, 16);
  file->checksum = ledger_checksum(file);
  return file;
}

int ledger_create(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count,
                  uint32_t mode) {
  int status;
  struct ledger_file *file = compose(id, gpus, count, &status);
  if (file) status = os_publish(path, file, LEDGER_HEADER_BYTES, file->size, mode);
  free(file);
  return status;
}

int ledger_reserve(const char *path, uint32_t mode) { return os_reserve(path, sizeof(struct ledger_file), mode); }

int ledger_fill(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count) {
  int status;
  struct ledger_file *file = compose(id, gpus, count, &status);
  if (file) status = os_fill(path, file, LEDGER_HEADER_BYTES, file->size);
  free(file);
  return status;
}

/* A name written by a container may hold terminal escapes. */
static void copy_name(char out[16], const char name[16]) {
  memset(out, 0, 16);
  for (int i = 0; i < 15 && name[i]; i++) out[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
}

/* Fills OUT from a slot; 0 when the slot has nothing to tell. */
static int read_slot(int fd, const struct ledger_file_split *copy, uint32_t index, struct vc_slot_usage *out) {
  const struct ledger_slot *slot = &copy->file.slot[index];
  uint32_t gpus = copy->file.gpu_count;
  int32_t owner = 0;
  uint64_t any = 0;
  memset(out, 0, sizeof *out);
  for (uint32_t g = 0; g < gpus; g++) {
    out->used[g] = slot->used[g] & USED_BYTES_MASK;
    uint64_t peak = slot->peak[g], undeclared = (peak >> PEAK_UNDECLARED_SHIFT) * VC_UNDECLARED_UNIT;
    out->peak[g] = peak & PEAK_BYTES_MASK;
    out->undeclared[g] = undeclared < out->used[g] ? undeclared : out->used[g];
    uint64_t managed = copy->split[index].managed[g] & USED_BYTES_MASK;
    out->managed[g] = managed < out->used[g] ? managed : out->used[g];
    any |= out->used[g];
  }
  if (slot->pid == 0 && any == 0) return 0;
  out->alive = os_lock_owner(fd, LEDGER_LOCKS + index, &owner) != 0 || ledger_is_held(fd, index) != 0 ||
               ledger_may_live(slot->hold, slot->pid, 0);
  if (!out->alive && any == 0) return 0;
  out->slot = index;
  out->pid = owner;
  out->pid_inside = slot->pid;
  out->generation = slot->generation;
  out->refused = slot->refused;
  copy_name(out->name, slot->name);
  return 1;
}

static void read_info(const struct ledger_file *file, struct vc_ledger_info *info) {
  memset(info, 0, sizeof *info);
  info->version = file->version;
  info->gpu_count = file->gpu_count;
  info->slot_count = file->slot_count;
  memcpy(info->id, file->id, sizeof info->id);
  memcpy(info->uuid, file->uuid, sizeof info->uuid);
  for (uint32_t g = 0; g < file->gpu_count; g++) {
    info->peak[g] = file->peak[g] & USED_BYTES_MASK;
    info->driver_refused[g] = file->refusal[g].count & USED_BYTES_MASK;
    info->driver_refused_bytes[g] = file->refusal[g].bytes & USED_BYTES_MASK;
    info->context_bytes[g] = ledger_learned_bytes(file->context_cost[g]);
  }
}

/* How many slots there are to read: those that were ever used, by the file's own count, unless the kernel has an owner
 * beyond them. */
static uint32_t slots_to_read(int fd, const struct ledger_file *file) {
  uint32_t used = file->high_water < VC_MAX_SLOTS ? file->high_water : VC_MAX_SLOTS;
  uint32_t rest = VC_MAX_SLOTS - used;
  return rest != 0 && (os_lock_any(fd, LEDGER_LOCKS + used, rest) || ledger_any_held(fd, used, rest)) ? VC_MAX_SLOTS : used;
}

/* Fills COPY as far as it matters and *USED with the number of slots in it. A file that grew is still readable: what is
 * beyond our size means nothing, and the agent cuts it off. */
static int read_file(const struct os_file *file, struct ledger_file_split *copy, uint32_t *used) {
  struct ledger_file *first = &copy->file;
  if (file->size < sizeof *first) return VC_ECORRUPT;
  int status = os_read_from(file, first, LEDGER_HEADER_BYTES, 0);
  if (status == VC_OK) status = ledger_check(first, file->size);
  if (status != VC_OK) return status;
  *used = slots_to_read(file->fd, first);
  status = os_read_from(file, first->slot, *used * sizeof *first->slot, LEDGER_HEADER_BYTES);
  if (status != VC_OK || first->version == LEDGER_VERSION) return status;
  status = os_read_from(file, copy->split, *used * sizeof *copy->split, sizeof *first);
  /* Not needed here, but a later read that does not wait for the disk finds it in memory. */
  if (status == VC_OK)
    status = os_read_from(file, copy->time_slice, sizeof copy->time_slice, offsetof(struct ledger_file_split, time_slice));
  return status;
}

static int read_ledger(const char *path, int now, struct vc_ledger_info *info, struct vc_slot_usage *slots,
                       uint32_t max) {
  struct os_file file;
  uint32_t used = 0, count = 0;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  file.now = now;
  struct ledger_file_split *copy = calloc(1, sizeof *copy); /* what is not read was never used */
  status = copy ? read_file(&file, copy, &used) : VC_EIO;
  if (status == VC_OK) {
    read_info(&copy->file, info);
    for (uint32_t i = 0; i < used && count < max; i++)
      count += (uint32_t)read_slot(file.fd, copy, i, &slots[count]);
    status = (int)count;
  }
  free(copy);
  os_close(file.fd);
  return status;
}

int ledger_read(const char *path, struct vc_ledger_info *info, struct vc_slot_usage *slots, uint32_t max) {
  return read_ledger(path, 0, info, slots, max);
}

int ledger_read_now(const char *path, struct vc_ledger_info *info, struct vc_slot_usage *slots, uint32_t max) {
  return read_ledger(path, 1, info, slots, max);
}

/* The version is the container's word: it decides between two sizes. */
static uint64_t size_to_keep(const struct os_file *file) {
  struct {
    char magic[8];
    uint32_t version;
  } head;
  if (os_read_all(file->fd, &head, sizeof head, 0) == VC_OK && head.version == LEDGER_VERSION)
    return ledger_size(LEDGER_VERSION);
  return ledger_size(LEDGER_VERSION_SPLIT);
}

/* What file systems keep beside the data, and reserve beyond a file's end of their own accord. */
enum { LEDGER_SLACK = 256 * 1024 };

static int is_too_large(uint64_t size, uint64_t stored, uint64_t keep) {
  return size > keep || stored > keep + LEDGER_SLACK;
}

int ledger_trim_open(int fd) {
  const struct os_file file = {.fd = fd};
  uint64_t size, before, after, keep = size_to_keep(&file);
  int status = os_stored(fd, &size, &before);
  if (status != VC_OK || !is_too_large(size, before, keep)) return status;
  /* Room reserved beyond the end does not show in the size, and where that stays the same it may stay too. */
  if (size <= keep) status = os_truncate(fd, keep + 1);
  if (status == VC_OK) status = os_truncate(fd, keep);
  if (status == VC_OK) status = os_stored(fd, &size, &after);
  if (status != VC_OK) return status;
  return !is_too_large(size, after, keep) || after < before;
}

int ledger_trim(const char *path) {
  struct os_file file;
  int status = os_open(path, 1, &file);
  if (status != VC_OK) return status;
  status = ledger_trim_open(file.fd);
  os_close(file.fd);
  return status;
}

int ledger_owners(const char *path, struct vc_slot_owner *owners, uint32_t max) {
  struct os_file file;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  int any = os_lock_any(file.fd, LEDGER_LOCKS, VC_MAX_SLOTS) || ledger_any_held(file.fd, 0, VC_MAX_SLOTS);
  uint32_t count = 0, slots = any ? VC_MAX_SLOTS : 0;
  for (uint32_t i = 0; i < slots && count < max; i++) {
    int32_t pid = 0;
    if ((os_lock_owner(file.fd, LEDGER_LOCKS + i, &pid) == 1 && pid > 0) || ledger_is_held(file.fd, i) == 1)
      owners[count++] = (struct vc_slot_owner){.slot = i, .pid = pid};
  }
  os_close(file.fd);
  return (int)count;
}

/* A slot of whose lock nothing is known counts, as for its own processes. */
static int may_have_processes(const struct os_file *file) {
  struct ledger_file_split *copy = calloc(1, sizeof *copy);
  uint32_t used = 0;
  int status = copy != NULL ? read_file(file, copy, &used) : VC_EIO;
  for (uint32_t i = 0; status == VC_OK && i < used; i++)
    if (ledger_may_live(copy->file.slot[i].hold, copy->file.slot[i].pid, 0)) status = 1;
  free(copy);
  return status;
}

int ledger_is_used(const char *path) {
  struct os_file file;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  int any = os_lock_any(file.fd, LEDGER_LOCKS, VC_MAX_SLOTS) || ledger_any_held(file.fd, 0, VC_MAX_SLOTS);
  status = any ? 1 : may_have_processes(&file);
  os_close(file.fd);
  return status;
}
