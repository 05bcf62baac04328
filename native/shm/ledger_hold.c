/* ledger_hold.h. */
#include "ledger_hold.h"

#include <stddef.h>

#include "ledger_layout.h"
#include "ledger_priv.h"
#include "os.h"
#include "text.h"

/* Set in the word of a slot whose hold may be lost; the owner's PID namespace is below, 0 when it is not known. Older
 * libraries wrote a start time there, which is smaller. */
#define MAY_BE_LOST (UINT64_C(1) << 63)

void ledger_hold_init(struct ledger_hold *hold) {
  hold->kind = HOLD_NONE;
  atomic_init(&hold->fd, -1);
  hold->page = NULL;
}

/* By its path; by way of our descriptor where the path leads nowhere any more (another root) or is forbidden by now. */
static int open_again(const struct ledger *ledger, int fd) {
  char link[64], number[TEXT_NUMBER];
  struct os_file file;
  for (int way = 0; way < 2; way++) {
    if (way == 1) text_join(link, sizeof link, "/proc/self/fd/", text_number((uint32_t)fd, number), "");
    if (os_open(way == 0 ? ledger->path : link, 1, &file) != VC_OK) continue;
    if (file.device == ledger->device && file.inode == ledger->inode) return file.fd;
    os_close(file.fd);
  }
  return -1;
}

/* The program may have closed it and put something else in its place. */
static void close_own(struct ledger *ledger) {
  int own = atomic_exchange(&ledger->hold.fd, -1);
  if (own >= 0 && os_is_file(own, ledger->device, ledger->inode)) os_close(own);
}

static int take_by_descriptor(struct ledger *ledger, int fd, uint32_t slot) {
  int own = open_again(ledger, fd);
  if (own < 0) return VC_EIO;
  atomic_store(&ledger->hold.fd, own);
  int taken = os_hold_try(own, LEDGER_HOLDS + slot);
  if (taken != 1) close_own(ledger);
  return taken;
}

/* 1: the lock is still there without the descriptor. */
static int give_to_mapping(struct ledger *ledger, int fd, uint32_t slot) {
  struct ledger_hold *hold = &ledger->hold;
  if (os_map_hold(atomic_load(&hold->fd), &hold->page) != VC_OK) return 0;
  close_own(ledger);
  if (ledger_is_held(fd, slot) == 1) return 1;
  os_unmap(hold->page, OS_HOLD_BYTES);
  hold->page = NULL;
  return 0;
}

static int take_by_ledger(struct ledger *ledger, int fd, uint32_t slot) {
  int taken = os_hold_try(fd, LEDGER_HOLDS + slot);
  if (taken == 1) ledger->hold.kind = HOLD_BY_LEDGER;
  if (taken != VC_ENOSYS) return taken;
  ledger->hold.kind = HOLD_BY_NAME;
  return 1;
}

static int take_kept_open(struct ledger *ledger, int fd, uint32_t slot) {
  int taken = take_by_descriptor(ledger, fd, slot);
  if (taken != 1) return taken < 0 ? take_by_ledger(ledger, fd, slot) : taken;
  atomic_store(&ledger->hold.fd, os_move_high(atomic_load(&ledger->hold.fd)));
  ledger->hold.kind = HOLD_BY_DESCRIPTOR;
  return 1;
}

int ledger_hold_take(struct ledger *ledger, uint32_t slot) {
  int fd = ledger_fd(ledger);
  if (fd < 0) return VC_EIO;
  int taken = take_by_descriptor(ledger, fd, slot);
  if (taken < 0) return take_by_ledger(ledger, fd, slot);
  if (taken == 0) return 0;
  if (give_to_mapping(ledger, fd, slot)) {
    ledger->hold.kind = HOLD_BY_MAPPING;
    return 1;
  }
  close_own(ledger);
  return take_kept_open(ledger, fd, slot);
}

int ledger_hold_confirm(struct ledger *ledger, uint32_t slot) {
  int fd = ledger_fd(ledger);
  if (fd < 0 || ledger->hold.kind == HOLD_BY_NAME || ledger_is_held(fd, slot) != 0) return 1;
  ledger_hold_forget(ledger);
  take_kept_open(ledger, fd, slot);
  return 0;
}

void ledger_hold_forget(struct ledger *ledger) {
  close_own(ledger);
  ledger->hold.page = NULL;
  ledger->hold.kind = HOLD_NONE;
}

void ledger_hold_release(struct ledger *ledger, uint32_t slot) {
  struct ledger_hold *hold = &ledger->hold;
  if (hold->kind == HOLD_BY_MAPPING) os_unmap(hold->page, OS_HOLD_BYTES);
  if (hold->kind == HOLD_BY_LEDGER) os_hold_release(ledger_fd(ledger), LEDGER_HOLDS + slot);
  ledger_hold_forget(ledger);
}

uint64_t ledger_hold_word(struct ledger *ledger) {
  if (ledger->hold.kind == HOLD_BY_MAPPING) return 0;
  if (ledger->hold.kind == HOLD_BY_LEDGER && os_mapping_keeps(ledger_fd(ledger))) return 0;
  uint32_t namespace = atomic_load(&ledger->pid_namespace);
  return MAY_BE_LOST | (namespace != 0 ? namespace : os_pid_namespace());
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
