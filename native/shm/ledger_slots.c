/* SPDX-License-Identifier: Apache-2.0 */
/* The owner of a slot, and how a slot changes hands. A slot's owner holds two locks on it: one that proves that it
 * lives, which nothing but its end drops, and a record lock by which other processes read its PID (ledger_hold.h). A
 * slot that is not held is emptied by a process that needs room, under the record lock.
 *
 * The record lock does not last: its process drops it by closing any descriptor of the file. So every step that changes
 * a slot is one that fails when another process was there meanwhile: emptying or taking a slot raises its generation,
 * and the owner compares generations on every charge. An owner cannot lose a held slot. One that has lost its hold (the
 * program unmapped the page behind it) and then its slot registers again with what it really holds.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger.c, test_ledger_hold.c, test_ledger_kill.c. */
#include "ledger_slots.h"

#include "ledger_allowance.h"
#include "os.h"

enum { SWEEP_PER_CLAIM = 8, SPARED_PER_CLAIM = 2, PASSED_PER_CLAIM = 64 };

static _Thread_local char self; /* its address names the thread */

/* 0: this thread has it already, and was interrupted there by a signal whose handler allocates memory: that allocation
 * must do without the lock. */
static int claim_lock(struct ledger *ledger) { return long_lock_take(&ledger->claiming, &self); }

static void claim_unlock(struct ledger *ledger) { long_lock_give(&ledger->claiming); }

/* A slot that is not held; where holds do not last. */
static int may_live(struct ledger *ledger, const struct ledger_slot *slot) {
  return ledger_may_live(atomic_load(&slot->hold), atomic_load(&slot->pid), atomic_load(&ledger->hold.pid_namespace));
}

enum life { DEAD, ALIVE, BUSY /* its record lock is another's: that one empties or takes it */ };

/* Another process's slot. *PID: of the process that has its record lock. Where nothing is known the slot counts as
 * alive: a slot that may have an owner is never taken. */
static enum life slot_life(struct ledger *ledger, uint32_t index, int32_t *pid) {
  int fd = ledger_hold_fd(&ledger->hold);
  if (fd < 0) return ALIVE;
  int named = os_lock_owner(fd, LEDGER_LOCKS + index, pid);
  if (ledger_is_held(fd, index) != 0 || may_live(ledger, &ledger->file->slot[index])) return ALIVE;
  if (named == 0) return DEAD;
  return *pid == atomic_load(&ledger->file->slot[index].pid) ? ALIVE : BUSY;
}

int ledger_slot_alive(struct ledger *ledger, uint32_t index, int32_t *pid) {
  int ours = claim_lock(ledger);
  enum life life = slot_life(ledger, index, pid);
  if (ours) claim_unlock(ledger);
  return life != DEAD;
}

/* Between any two steps below the record lock may be gone and another process there. So each step that changes a slot
 * begins with the generation that was read before the slot was judged. */
static void clear_word(const struct ledger_slot *slot, uint32_t generation, used_t *cell) {
  uint64_t word = atomic_load(cell);
  do {
    if (atomic_load(&slot->generation) != generation) return;
  } while (!atomic_compare_exchange_weak(cell, &word, (word & ~USED_BYTES_MASK) + USED_TICK));
}

/* The slot was judged at generation JUDGED and is ours by lock; forget what it held. The tick keeps every change of a
 * word visible to concurrent readers. The generation is raised before, so that the old owner notices, and after (by
 * raise_again), so that a refusal that counted these words notices. 1: it is JUDGED + 1 now. 0: another process was
 * there. */
static int clear_slot(struct ledger *ledger, uint32_t index, uint32_t judged) {
  struct ledger_slot *slot = &ledger->file->slot[index];
  struct ledger_split *split = ledger->split != NULL ? &ledger->split[index] : NULL;
  uint32_t generation = judged + 1;
  if (!atomic_compare_exchange_strong(&slot->generation, &judged, generation)) return 0;
  for (uint32_t g = 0; g < VC_MAX_GPUS; g++) {
    clear_word(slot, generation, &slot->used[g]);
    if (split != NULL) {
      clear_word(slot, generation, &split->real[g]);
      clear_word(slot, generation, &split->managed[g]);
    }
  }
  if (atomic_load(&slot->generation) != generation) return 0;
  for (uint32_t g = 0; g < VC_MAX_GPUS; g++) atomic_store_explicit(&slot->peak[g], 0, memory_order_relaxed);
  if (split != NULL) atomic_store_explicit(&split->busy, 0, memory_order_relaxed);
  atomic_store_explicit(&slot->refused, 0, memory_order_relaxed);
  atomic_store_explicit(&slot->flight, 0, memory_order_relaxed);
  return 1;
}

/* Marks are plain stores, and nothing makes them fail. So only the slot's new owner clears them, once no process can
 * take the slot for that of a dead process: a process that empties a slot and has lost its lock would clear those of an
 * owner that decides by now, and what that one may yet take back would count as held. In an empty slot they say nothing
 * (take_instant). */
static void clear_marks(struct ledger_slot *slot) {
  for (uint32_t m = 0; m < LEDGER_MARKS; m++) atomic_store_explicit(&slot->mark[m], 0, memory_order_relaxed);
  atomic_store_explicit(&slot->shared_marks, 0, memory_order_relaxed);
}

/* No other process was there since the slot was judged at this generation and cleared. */
static int raise_again(struct ledger_slot *slot, uint32_t judged) {
  uint32_t generation = judged + 1;
  return atomic_compare_exchange_strong(&slot->generation, &generation, generation + 1);
}

/* The owner that was found in a slot, and at which generation. */
struct finding {
  uint32_t generation; /* read first */
  int32_t pid;
};

static struct finding find_owner(const struct ledger_slot *slot) {
  struct finding found = {.generation = atomic_load(&slot->generation)};
  found.pid = atomic_load(&slot->pid);
  return found;
}

static int empty_slot(struct ledger *ledger, uint32_t index, struct finding found) {
  struct ledger_slot *slot = &ledger->file->slot[index];
  if (!clear_slot(ledger, index, found.generation) || !raise_again(slot, found.generation)) return 0;
  atomic_compare_exchange_strong(&slot->pid, &found.pid, 0);
  return 1;
}

/* Empties a dead process's slot. Called under claim_lock, never for our own slot. */
static int reclaim_slot(struct ledger *ledger, uint32_t index, int *unsure) {
  struct ledger_slot *slot = &ledger->file->slot[index];
  int32_t pid = 0;
  enum life life = slot_life(ledger, index, &pid);
  if (life == ALIVE) return 0;
  int fd = ledger_hold_fd(&ledger->hold);
  if (life == BUSY || fd < 0 || os_lock_try(fd, LEDGER_LOCKS + index) != 1) {
    if (unsure != NULL) *unsure = 1;
    return 0;
  }
  /* Between the question and the lock another process may have reclaimed the slot, used it and died: still dead. Or
   * it may have taken and released it as we do here: then it is empty and emptying it again is harmless. Or it owns the
   * slot and lost the record lock already: that is why we ask again, now that no other process can take it. */
  struct finding found = find_owner(slot);
  int alive = ledger_is_held(fd, index) != 0 || may_live(ledger, slot);
  int dead = !alive && empty_slot(ledger, index, found);
  os_lock_release(fd, LEDGER_LOCKS + index);
  return dead;
}

static int holds_bytes(const used_t *cell) { return used_bytes(atomic_load_explicit(cell, memory_order_relaxed)) != 0; }

static int slot_needs_reclaim(const struct ledger *ledger, uint32_t index) {
  const struct ledger_slot *slot = &ledger->file->slot[index];
  const struct ledger_split *split = ledger->split != NULL ? &ledger->split[index] : NULL;
  if (atomic_load_explicit(&slot->pid, memory_order_relaxed) != 0) return 1;
  for (uint32_t g = 0; g < ledger->columns; g++) {
    if (holds_bytes(&slot->used[g])) return 1;
    if (split != NULL && (holds_bytes(&split->real[g]) || holds_bytes(&split->managed[g]))) return 1;
    if (allowances_exist(ledger) && holds_bytes(allowance_cell(ledger, (int32_t)index, g))) return 1;
  }
  return 0;
}

static int slot_is_current(const struct ledger *ledger) {
  int32_t own = atomic_load(&ledger->slot);
  return own >= 0 && atomic_load(&ledger->file->slot[own].generation) == atomic_load(&ledger->generation);
}

/* A lock on a slot that is ours no more is let go: it would make a later owner seem alive after its death. */
static void confirm_own_lock(struct ledger *ledger) {
  int32_t own = atomic_load(&ledger->slot);
  int fd = own >= 0 ? ledger_hold_fd(&ledger->hold) : -1;
  if (fd < 0 || !slot_is_current(ledger)) return;
  if (!ledger_hold_confirm(&ledger->hold, (uint32_t)own))
    atomic_store(&ledger->file->slot[own].hold, ledger_hold_word(&ledger->hold));
  if (os_lock_try(fd, LEDGER_LOCKS + (uint32_t)own) == 1 && !slot_is_current(ledger))
    os_lock_release(fd, LEDGER_LOCKS + (uint32_t)own);
}

void ledger_confirm_lock(struct ledger *ledger) {
  if (!claim_lock(ledger)) return;
  confirm_own_lock(ledger);
  claim_unlock(ledger);
}

int ledger_reclaim(struct ledger *ledger, int *unsure) {
  int count = 0;
  if (!claim_lock(ledger)) {
    if (unsure != NULL) *unsure = 1;
    return 0;
  }
  confirm_own_lock(ledger);
  int32_t own = atomic_load(&ledger->slot);
  for (uint32_t i = 0; i < ledger_slots_in_use(ledger); i++)
    if ((int32_t)i != own && slot_needs_reclaim(ledger, i)) count += reclaim_slot(ledger, i, unsure);
  atomic_store_explicit(&ledger->swept_ms, os_coarse_ms(), memory_order_relaxed);
  claim_unlock(ledger);
  return count;
}

static void raise_high_water(struct ledger *ledger, uint32_t slots) {
  uint32_t seen = atomic_load(&ledger->file->high_water);
  while (seen < slots && !atomic_compare_exchange_weak(&ledger->file->high_water, &seen, slots)) continue;
}

/* Whether the slot that we just filled in is ours in every respect: lock, generation and PID. The lock is taken again
 * because another thread of the program may have closed our descriptor, and with it dropped the lock, in between. */
static int taking_holds(int fd, uint32_t index, const struct ledger_slot *slot, uint32_t generation) {
  return os_lock_try(fd, LEDGER_LOCKS + index) == 1 && atomic_load(&slot->generation) == generation &&
         atomic_load(&slot->pid) == os_pid();
}

/* Fills in a slot of which both locks are ours, and whose PID field only one can fill. The words are cleared even
 * though they are zero, except for what a process that lost the slot may have added since. */
static int fill_slot(struct ledger *ledger, int fd, uint32_t index, struct finding found) {
  struct ledger_slot *slot = &ledger->file->slot[index];
  int32_t unused = 0, pid = os_pid();
  if (!atomic_compare_exchange_strong(&slot->pid, &unused, pid)) return 0;
  if (clear_slot(ledger, index, found.generation)) {
    raise_high_water(ledger, index + 1);
    os_process_name(slot->name, sizeof slot->name);
    if (raise_again(slot, found.generation)) {
      clear_marks(slot);
      atomic_store(&slot->hold, ledger_hold_word(&ledger->hold));
      if (taking_holds(fd, index, slot, found.generation + 2)) {
        atomic_store(&ledger->generation, found.generation + 2);
        atomic_store(&ledger->slot, (int32_t)index);
        return 1;
      }
    }
  }
  atomic_compare_exchange_strong(&slot->pid, &pid, 0);
  return 0;
}

/* 1: ours now; 0: another process was quicker, or it is not free; negative: slots cannot be held. The record lock comes
 * second, because taking the other one closes a descriptor. */
static int take_slot(struct ledger *ledger, int fd, uint32_t index) {
  struct finding found = find_owner(&ledger->file->slot[index]);
  if (found.pid != 0) return 0;
  int held = ledger_hold_take(&ledger->hold, index);
  if (held != 1) return held;
  if (os_lock_try(fd, LEDGER_LOCKS + index) == 1) {
    if (fill_slot(ledger, fd, index, found)) return 1;
    os_lock_release(fd, LEDGER_LOCKS + index);
  }
  ledger_hold_release(&ledger->hold, index);
  return 0;
}

/* Checks a few used slots per claim, so that a container which starts one short process after another does not fill
 * the table with the dead; and at fewer where they live, so that many that start at once are not in each other's way.
 * What once held a crowd is not searched through by each one that comes later. */
static void sweep_some(struct ledger *ledger) {
  uint32_t used = ledger_slots_in_use(ledger), checked = 0, spared = 0;
  uint32_t start = used ? (uint32_t)os_pid() % used : 0, passed = used < PASSED_PER_CLAIM ? used : PASSED_PER_CLAIM;
  for (uint32_t i = 0; i < passed && checked < SWEEP_PER_CLAIM && spared < SPARED_PER_CLAIM; i++) {
    uint32_t index = (start + i) % used;
    if (!slot_needs_reclaim(ledger, index)) continue;
    checked++;
    spared += !reclaim_slot(ledger, index, NULL);
  }
}

/* Our own leftovers first: after exec the kernel dropped our locks but the old program's bytes are still there. */
static void drop_own_leftovers(struct ledger *ledger) {
  int32_t pid = os_pid();
  for (uint32_t i = 0; i < ledger_slots_in_use(ledger); i++)
    if (atomic_load(&ledger->file->slot[i].pid) == pid) reclaim_slot(ledger, i, NULL);
}

void ledger_forget_former_program(struct ledger *ledger) {
  if (!claim_lock(ledger)) return;
  drop_own_leftovers(ledger);
  claim_unlock(ledger);
}

static int take_any_slot(struct ledger *ledger, int fd) {
  for (int round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < VC_MAX_SLOTS; i++) {
      int taken = take_slot(ledger, fd, i);
      if (taken != 0) return taken == 1 ? VC_OK : taken;
    }
    for (uint32_t i = 0; i < VC_MAX_SLOTS; i++) reclaim_slot(ledger, i, NULL);
  }
  return VC_EFULL;
}

static int claim_slot(struct ledger *ledger) {
  int fd = ledger_hold_fd(&ledger->hold);
  if (fd < 0) return VC_EIO;
  drop_own_leftovers(ledger);
  sweep_some(ledger);
  int status = take_any_slot(ledger, fd);
  if (status == VC_OK) confirm_own_lock(ledger);
  return status;
}

void ledger_set_usage(struct ledger *ledger, ledger_usage_fn usage, ledger_usage_fn managed_usage) {
  ledger->usage = usage;
  ledger->managed_usage = managed_usage;
}

static void restore_word(used_t *cell, uint64_t bytes) {
  if (bytes != 0) atomic_fetch_add(cell, (bytes & USED_BYTES_MASK) + USED_TICK);
}

/* What we really hold goes back into the ledger whether it fits or not: the memory is held. */
static void restore_usage(struct ledger *ledger) {
  int32_t own = atomic_load(&ledger->slot);
  struct ledger_slot *slot = &ledger->file->slot[own];
  if (!ledger->usage) return;
  for (uint32_t g = 0; g < ledger->columns; g++) {
    uint64_t bytes = ledger->usage(g), managed = ledger->split != NULL ? ledger->managed_usage(g) : 0;
    if (ledger->split != NULL) {
      restore_word(&ledger->split[own].managed[g], managed);
      restore_word(&ledger->split[own].real[g], bytes > managed ? bytes - managed : 0);
    }
    restore_word(&slot->used[g], bytes);
  }
}

int ledger_own_slot(struct ledger *ledger) {
  if (slot_is_current(ledger)) return VC_OK;
  int status = VC_OK;
  if (!claim_lock(ledger)) return VC_ENOMEM;
  if (!slot_is_current(ledger)) {
    int32_t lost = atomic_exchange(&ledger->slot, -1);
    if (lost >= 0) ledger_hold_forget(&ledger->hold);
    status = claim_slot(ledger);
    if (status == VC_OK && lost >= 0) restore_usage(ledger);
  }
  claim_unlock(ledger);
  return status;
}

void ledger_after_fork(struct ledger *ledger) {
  /* The parent's locks are not ours, its slot keeps its bytes; threads that held the lock do not exist here. */
  atomic_store(&ledger->slot, -1);
  ledger_hold_forget(&ledger->hold);
  long_lock_give(&ledger->claiming);
  atomic_store(&ledger->hold.pid_namespace, 0);
  for (uint32_t g = 0; g < VC_MAX_GPUS; g++) {
    atomic_store(&ledger->allowed[g].bytes, 0);
    atomic_store(&ledger->allowed[g].renewing, 0);
  }
}
