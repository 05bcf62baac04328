/* The ledger seen from outside: create, read, cut back. The reader is the node agent, the writers are the container's
 * processes, so nothing that is read here is believed: sizes are checked, the file is never mapped (one cut short under
 * a mapping kills the reader), and the only identity taken for truth is the kernel's word on who holds a slot's lock.
 * Knows nothing of CUDA or NVML. Tests: tests/native/test_ledger_file.c, tests/unit/vcuda/test_ledger.py. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "ledger_layout.h"
#include "limits_layout.h"
#include "os.h"
#include "shm.h"

uint64_t ledger_checksum(const struct ledger_file *file) {
  return checksum_add(CHECKSUM_START, file, offsetof(struct ledger_file, checksum));
}

int ledger_check(const struct ledger_file *file, uint64_t size) {
  if (memcmp(file->magic, LEDGER_MAGIC, sizeof file->magic) != 0) return VC_ECORRUPT;
  if (file->version != LEDGER_VERSION) return VC_EVERSION;
  if (size != sizeof *file || file->size != sizeof *file) return VC_ECORRUPT;
  if (file->gpu_count == 0 || file->gpu_count > VC_MAX_GPUS || file->slot_count != VC_MAX_SLOTS) return VC_ECORRUPT;
  return file->checksum == ledger_checksum(file) ? VC_OK : VC_ECORRUPT;
}

uint64_t ledger_file_bytes(void) { return sizeof(struct ledger_file); }

int ledger_create(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count,
                  uint32_t mode) {
  if (!limits_gpus_are_valid(gpus, count)) return VC_EINVAL;
  struct ledger_file *file = calloc(1, sizeof *file); /* its slots stay untouched: only the header is written */
  if (!file) return VC_EIO;
  memcpy(file->magic, LEDGER_MAGIC, sizeof file->magic);
  file->version = LEDGER_VERSION;
  file->size = (uint32_t)sizeof *file;
  file->gpu_count = count;
  file->slot_count = VC_MAX_SLOTS;
  memcpy(file->id, id, sizeof file->id);
  for (uint32_t i = 0; i < count; i++) memcpy(file->uuid[i], gpus[i].uuid, 16);
  file->checksum = ledger_checksum(file);
  int status = os_publish(path, file, LEDGER_HEADER_BYTES, sizeof *file, mode);
  free(file);
  return status;
}

/* A name written by a container may hold terminal escapes. */
static void copy_name(char out[16], const char name[16]) {
  memset(out, 0, 16);
  for (int i = 0; i < 15 && name[i]; i++) out[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
}

/* Fills OUT from a slot; 0 when the slot has nothing to tell. */
static int read_slot(int fd, const struct ledger_slot *slot, uint32_t index, uint32_t gpus, struct vc_slot_usage *out) {
  int32_t owner = 0;
  uint64_t any = 0;
  memset(out, 0, sizeof *out);
  for (uint32_t g = 0; g < gpus; g++) {
    out->used[g] = slot->used[g] & USED_BYTES_MASK;
    uint64_t peak = slot->peak[g], excess = (peak >> PEAK_EXCESS_SHIFT) * VC_EXCESS_UNIT;
    out->peak[g] = peak & PEAK_BYTES_MASK;
    out->excess[g] = excess < out->used[g] ? excess : out->used[g];
    any |= out->used[g];
  }
  if (slot->pid == 0 && any == 0) return 0;
  if (os_lock_owner(fd, LEDGER_LOCKS + index, &owner) != 1) owner = 0;
  if (owner == 0 && any == 0) return 0;
  out->slot = index;
  out->pid = owner;
  out->pid_inside = slot->pid;
  out->start_time = slot->start_time;
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
  for (uint32_t g = 0; g < file->gpu_count; g++) info->peak[g] = file->peak[g] & USED_BYTES_MASK;
}

/* How many slots there are to read: those that were ever used, as the file says, unless the kernel knows of an owner
 * beyond them. */
static uint32_t slots_to_read(int fd, const struct ledger_file *file) {
  uint32_t used = file->high_water < VC_MAX_SLOTS ? file->high_water : VC_MAX_SLOTS;
  if (used < VC_MAX_SLOTS && os_lock_any(fd, LEDGER_LOCKS + used, VC_MAX_SLOTS - used)) return VC_MAX_SLOTS;
  return used;
}

/* Fills COPY as far as it matters and *USED with the number of slots in it. A file that grew is still readable: what is
 * beyond our size means nothing, and the agent cuts it off. */
static int read_file(const struct os_file *file, struct ledger_file *copy, uint32_t *used) {
  if (file->size < sizeof *copy) return VC_ECORRUPT;
  int status = os_read_all(file->fd, copy, LEDGER_HEADER_BYTES, 0);
  if (status == VC_OK) status = ledger_check(copy, sizeof *copy);
  if (status != VC_OK) return status;
  *used = slots_to_read(file->fd, copy);
  return os_read_all(file->fd, copy->slot, *used * sizeof *copy->slot, LEDGER_HEADER_BYTES);
}

int ledger_read(const char *path, struct vc_ledger_info *info, struct vc_slot_usage *slots, uint32_t max) {
  struct os_file file;
  uint32_t used = 0, count = 0;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  struct ledger_file *copy = malloc(sizeof *copy);
  status = copy ? read_file(&file, copy, &used) : VC_EIO;
  if (status == VC_OK) {
    read_info(copy, info);
    for (uint32_t i = 0; i < used && count < max; i++)
      count += (uint32_t)read_slot(file.fd, &copy->slot[i], i, copy->gpu_count, &slots[count]);
    status = (int)count;
  }
  free(copy);
  os_close(file.fd);
  return status;
}

int ledger_trim(const char *path) {
  struct os_file file;
  int status = os_open(path, 1, &file);
  if (status != VC_OK) return status;
  status = 0;
  if (file.size > sizeof(struct ledger_file)) {
    status = os_truncate(file.fd, sizeof(struct ledger_file));
    if (status == VC_OK) status = 1;
  }
  os_close(file.fd);
  return status;
}
