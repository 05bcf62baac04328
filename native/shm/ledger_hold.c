/* SPDX-License-Identifier: Apache-2.0 */
/* See ledger_hold.h.
 * Tests: tests/native/test_ledger_hold.c. */
#include "ledger_hold.h"

#include <stddef.h>

#include "ledger_layout.h"
#include "shm.h"
#include "text.h"

/* Set in the word of a slot whose lock may be lost; the owner's PID namespace is below, 0 when it is not known. Older
 * libraries wrote a start time there, which is smaller. */
#define MAY_BE_LOST (UINT64_C(1) << 63)

void ledger_hold_init(struct ledger_hold *hold) {
  hold->kind = HOLD_NONE;
  atomic_init(&hold->own_fd, -1);
  hold->page = NULL;
}

/* When the program closed it, it may have put something else in its place. */
int ledger_hold_fd(struct ledger_hold *hold) {
  struct os_file again;
  if (os_is_file(hold->file.fd, hold->file.device, hold->file.inode)) return hold->file.fd;
  if (os_open(hold->path, 1, &again) != VC_OK) return -1;
  if (again.device != hold->file.device || again.inode != hold->file.inode) {
    os_close(again.fd);
    return -1;
  }
  hold->file.fd = os_move_high(again.fd);
  return hold->file.fd;
}

uint32_t ledger_hold_namespace(struct ledger_hold *hold) {
  uint32_t known = atomic_load_explicit(&hold->pid_namespace, memory_order_relaxed);
  if (known != 0) return known;
  known = os_pid_namespace();
  atomic_store_explicit(&hold->pid_namespace, known, memory_order_relaxed);
  return known;
}

/* By its path; through our descriptor where the path leads nowhere any more (another root) or is forbidden by now. */
static int open_again(const struct ledger_hold *hold, int fd) {
  char link[64], number[TEXT_NUMBER];
  struct os_file file;
  for (int way = 0; way < 2; way++) {
    if (way == 1) text_join(link, sizeof link, "/proc/self/fd/", text_number((uint32_t)fd, number), "");
    if (os_open(way == 0 ? hold->path : link, 1, &file) != VC_OK) continue;
    if (file.device == hold->file.device && file.inode == hold->file.inode) return file.fd;
    os_close(file.fd);
  }
  return -1;
}

/* The program may have closed it and put something else in its place. */
static void close_own(struct ledger_hold *hold) {
  int own = atomic_exchange(&hold->own_fd, -1);
  if (own >= 0 && os_is_file(own, hold->file.device, hold->file.inode)) os_close(own);
}

static int take_by_descriptor(struct ledger_hold *hold, int fd, uint32_t slot) {
  int own = open_again(hold, fd);
  if (own < 0) return VC_EIO;
  atomic_store(&hold->own_fd, own);
  int taken = os_hold_try(own, LEDGER_HOLDS + slot);
  if (taken != 1) close_own(hold);
  return taken;
}

/* 1: the lock is still there without the descriptor. */
static int give_to_mapping(struct ledger_hold *hold, int fd, uint32_t slot) {
  if (os_map_hold(atomic_load(&hold->own_fd), &hold->page) != VC_OK) return 0;
  close_own(hold);
  if (ledger_is_held(fd, slot) == 1) return 1;
  os_unmap(hold->page, OS_HOLD_BYTES);
  hold->page = NULL;
  return 0;
}

static int take_by_ledger(struct ledger_hold *hold, int fd, uint32_t slot) {
  int taken = os_hold_try(fd, LEDGER_HOLDS + slot);
  if (taken == 1) hold->kind = HOLD_BY_LEDGER;
  if (taken != VC_ENOSYS) return taken;
  hold->kind = HOLD_BY_NAME;
  return 1;
}

static int take_kept_open(struct ledger_hold *hold, int fd, uint32_t slot) {
  int taken = take_by_descriptor(hold, fd, slot);
  if (taken != 1) return taken < 0 ? take_by_ledger(hold, fd, slot) : taken;
  atomic_store(&hold->own_fd, os_move_high(atomic_load(&hold->own_fd)));
  hold->kind = HOLD_BY_DESCRIPTOR;
  return 1;
}

int ledger_hold_take(struct ledger_hold *hold, uint32_t slot) {
  int fd = ledger_hold_fd(hold);
  if (fd < 0) return VC_EIO;
  int taken = take_by_descriptor(hold, fd, slot);
  if (taken < 0) return take_by_ledger(hold, fd, slot);
  if (taken == 0) return 0;
  if (give_to_mapping(hold, fd, slot)) {
    hold->kind = HOLD_BY_MAPPING;
    return 1;
  }
  close_own(hold);
  return take_kept_open(hold, fd, slot);
}

int ledger_hold_confirm(struct ledger_hold *hold, uint32_t slot) {
  int fd = ledger_hold_fd(hold);
  if (fd < 0 || hold->kind == HOLD_BY_NAME || ledger_is_held(fd, slot) != 0) return 1;
  ledger_hold_forget(hold);
  take_kept_open(hold, fd, slot);
  return 0;
}

void ledger_hold_forget(struct ledger_hold *hold) {
  close_own(hold);
  hold->page = NULL;
  hold->kind = HOLD_NONE;
}

void ledger_hold_release(struct ledger_hold *hold, uint32_t slot) {
  if (hold->kind == HOLD_BY_MAPPING) os_unmap(hold->page, OS_HOLD_BYTES);
  if (hold->kind == HOLD_BY_LEDGER) os_hold_release(ledger_hold_fd(hold), LEDGER_HOLDS + slot);
  ledger_hold_forget(hold);
}

int ledger_hold_lasts(const char *path) {
  struct ledger_hold hold = {.path = ""};
  ledger_hold_init(&hold);
  if (text_join(hold.path, sizeof hold.path, path, "", "") >= sizeof hold.path) hold.path[0] = 0; /* by descriptor */
  int status = os_open(path, 1, &hold.file);
  if (status != VC_OK) return status;
  status = ledger_hold_take(&hold, 0);
  int lasts = hold.kind == HOLD_BY_MAPPING;
  if (status == 1) ledger_hold_release(&hold, 0);
  os_close(hold.file.fd);
  return status < 0 ? status : lasts;
}

uint64_t ledger_hold_word(struct ledger_hold *hold) {
  if (hold->kind == HOLD_BY_MAPPING) return 0;
  if (hold->kind == HOLD_BY_LEDGER && os_mapping_keeps(ledger_hold_fd(hold))) return 0;
  return MAY_BE_LOST | ledger_hold_namespace(hold);
}

int ledger_may_live(uint64_t word, int32_t pid, uint32_t namespace) {
  if (!(word & MAY_BE_LOST) || pid <= 0) return 0; /* a word outlives its owner in a slot that was emptied */
  uint32_t its = (uint32_t)word;
  if (its == 0 || its != (namespace != 0 ? namespace : os_pid_namespace())) return 1;
  return pid != os_pid() && os_process_exists(pid); /* ours was that of the program before exec */
}

int ledger_is_held(int fd, uint32_t slot) {
  int32_t pid;
  return os_lock_owner(fd, LEDGER_HOLDS + slot, &pid);
}

int ledger_any_held(int fd, uint32_t first, uint32_t slots) { return os_lock_any(fd, LEDGER_HOLDS + first, slots); }
