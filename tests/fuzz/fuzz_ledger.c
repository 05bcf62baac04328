/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a ledger, which the container's processes can write: the agent's reader stays within bounds, and a
 * process that attaches to it neither crashes nor gets more than its limit. The first byte: bit 0 makes magic, sizes
 * and checksum right; bit 1 leaves the file at its own size; bit 2 makes it larger than a ledger; bit 3 makes it one
 * that counts host memory, which get the second half of the input. Slots beyond the input are empty. Subjects:
 * native/shm/ledger_file.c, ledger_attach.c, ledger.c, ledger_slots.c, ledger_time_slice.c. */
#define _GNU_SOURCE
#include <stdio.h>

#include "fuzz.h"
#include "ledger.h"
#include "ledger_slots.h"
#include "memory_file.h"
#include "os.h"
#include "shm.h"

enum { LIMIT = 1000, PHYSICAL = 700 };

static struct ledger_file_split image;
static struct vc_slot_usage slots[VC_MAX_SLOTS];

static void mend(struct ledger_file *file, int split) {
  memcpy(file->magic, LEDGER_MAGIC, sizeof file->magic);
  file->version = split ? LEDGER_VERSION_SPLIT : LEDGER_VERSION;
  file->size = (uint32_t)ledger_size(file->version);
  file->gpu_count = 1 + file->gpu_count % VC_MAX_GPUS;
  file->slot_count = VC_MAX_SLOTS;
  file->checksum = ledger_checksum(file);
}

static void read_as_agent(const char *path) {
  struct vc_ledger_info info;
  int count = ledger_read(path, &info, slots, VC_MAX_SLOTS);
  REQUIRE(count >= 0 || count == VC_ECORRUPT || count == VC_EVERSION);
  if (count < 0) return;
  REQUIRE(count <= VC_MAX_SLOTS && info.gpu_count > 0 && info.gpu_count <= VC_MAX_GPUS);
  for (int i = 0; i < count; i++) {
    REQUIRE(slots[i].slot < VC_MAX_SLOTS && slots[i].pid == 0); /* no process holds a lock */
    for (uint32_t g = 0; g < VC_MAX_GPUS; g++) {
      REQUIRE(slots[i].used[g] <= USED_BYTES_MASK && slots[i].peak[g] <= USED_BYTES_MASK);
      REQUIRE(slots[i].undeclared[g] <= slots[i].used[g] && slots[i].managed[g] <= slots[i].used[g]);
    }
    for (const char *c = slots[i].name; *c != 0; c++) REQUIRE(*c >= ' ' && *c <= '~');
    REQUIRE(slots[i].name[VC_NAME_BYTES - 1] == 0);
  }
  REQUIRE(ledger_read(path, &info, slots, 1) <= 1);
  struct vc_time_slice_usage slices[VC_MAX_GPUS];
  count = ledger_read_time_slices(path, slices, VC_MAX_GPUS);
  REQUIRE(count == (info.version == LEDGER_VERSION ? 0 : (int)info.gpu_count));
  for (int i = 0; i < count; i++) REQUIRE(slices[i].alive == 0 && slices[i].managed == 0 && slices[i].waiting <= 1);
}

/* Marks and foreign PIDs make a refusal take its time (docs/adr/0005); charges are tried where it would not. */
static int is_quiet(const struct ledger_file *file) {
  for (uint32_t i = 0; i < VC_MAX_SLOTS; i++) {
    const struct ledger_slot *slot = &file->slot[i];
    if (slot->shared_marks != 0) return 0;
    for (int m = 0; m < LEDGER_MARKS; m++)
      if (slot->mark[m] != 0) return 0;
  }
  return 1;
}

/* A page that fits the ledger; 0: there can be none, because a UUID is there twice. */
static int make_limits(struct memory_file *out, const struct ledger_file *file) {
  struct vc_gpu_limit gpus[VC_MAX_GPUS];
  char path[64];
  memset(gpus, 0, sizeof gpus);
  for (uint32_t i = 0; i < file->gpu_count; i++) {
    memcpy(gpus[i].uuid, file->uuid[i], sizeof gpus[i].uuid);
    gpus[i].memory_bytes = LIMIT;
    if (file->version == LEDGER_VERSION_SPLIT) gpus[i].physical_bytes = PHYSICAL;
  }
  snprintf(path, sizeof path, "/tmp/vc-fuzz-limits-%d", (int)getpid());
  if (limits_create(path, file->id, gpus, file->gpu_count, 0600) != VC_OK) return 0;
  snprintf(out->path, sizeof out->path, "%.31s", path);
  return 1;
}

static void use(struct ledger *ledger) {
  struct ledger_process processes[4];
  uint64_t limit, used, before = 0, after = 0;
  int found = ledger_processes(ledger, 0, processes, 4);
  REQUIRE(found >= 0 && found <= VC_MAX_SLOTS);
  ledger_view(ledger, 0, &limit, &used);
  REQUIRE(limit == LIMIT && used <= USED_BYTES_MASK);
  if (!is_quiet(ledger->file)) return;
  int status = ledger_charge(ledger, 0, LIMIT + 1);
  REQUIRE(status == VC_ENOMEM || status == VC_EFULL || status == VC_EIO);
  status = ledger_charge(ledger, 0, 600);
  int second = ledger_charge(ledger, 0, 600);
  REQUIRE(status != VC_OK || second != VC_OK);
  if (ledger_is_split(ledger)) {
    int managed = ledger_charge_part(ledger, LEDGER_MANAGED, 0, LIMIT - PHYSICAL, 1);
    REQUIRE(managed != VC_OK || ledger_charge_part(ledger, LEDGER_MANAGED, 0, 1, 1) != VC_OK);
    if (managed == VC_OK) ledger_uncharge_part(ledger, LEDGER_MANAGED, 0, LIMIT - PHYSICAL);
    ledger_time_slice_busy(ledger, 0);
  }
  if (status != VC_OK) return;
  ledger_view(ledger, 0, &limit, &before);
  ledger_uncharge(ledger, 0, 600);
  ledger_view(ledger, 0, &limit, &after);
  REQUIRE(before >= 600 && after <= before);
}

static void detach(struct ledger *ledger) {
  os_unmap(ledger->file, ledger->mapped);
  os_unmap((void *)ledger->limits, LIMITS_BYTES);
  os_close(ledger->hold.file.fd);
  free(ledger);
}

static void attach_as_process(const char *path) {
  struct memory_file limits;
  struct ledger *ledger;
  char why[512] = "";
  if (!make_limits(&limits, &image.file)) return;
  int status = ledger_attach(limits.path, path, &ledger, why, sizeof why);
  unlink(limits.path);
  REQUIRE(status == VC_OK);
  use(ledger);
  detach(ledger);
}

/* The input as a file; returns its bytes. */
static size_t fill(const uint8_t *data, size_t size, int split) {
  size_t first = split ? size / 2 : size, rest = size - first;
  memset(&image, 0, sizeof image);
  memcpy(&image.file, data, first < sizeof image.file ? first : sizeof image.file);
  if (!split) return first < sizeof image.file ? first : sizeof image.file;
  size_t time_slice = rest < sizeof image.time_slice ? rest : sizeof image.time_slice;
  memcpy(image.time_slice, data + first, time_slice);
  memcpy(image.split, data + first + time_slice, rest - time_slice);
  return sizeof image;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct memory_file file;
  if (size == 0 || size > 65536) return 0;
  int split = (data[0] & 8) != 0;
  size_t whole = split ? sizeof image : sizeof image.file, length = fill(data + 1, size - 1, split);
  if (data[0] & 1) mend(&image.file, split);
  size_t total = data[0] & 2 ? length : whole + (data[0] & 4 ? 123 : 0);
  memory_file_make(&file, &image, total < whole ? total : whole, total);
  read_as_agent(file.path);
  if (ledger_check(&image.file, whole) == VC_OK && total >= whole) attach_as_process(file.path);
  int trimmed = ledger_trim(file.path);
  REQUIRE(trimmed == (total > ledger_size(image.file.version == LEDGER_VERSION ? 1 : 2)));
  close(file.fd);
  return 0;
}
