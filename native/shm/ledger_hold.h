/* SPDX-License-Identifier: Apache-2.0 */
/* The lock that shows that a slot's owner lives, and the open ledger file that a process takes its locks by.
 *
 * A slot has two lock bytes. The record lock (LEDGER_LOCKS) names the owner: F_GETLK gives its PID in the caller's
 * namespace. But the kernel drops it when the process closes any descriptor of the file, so its absence proves nothing.
 * The open-file-description lock (LEDGER_HOLDS) names no process (F_GETLK gives -1) and proves that the owner lives: it
 * belongs to an open file of its own, which only a mapping keeps open. No close() reaches it; a forked child does not
 * inherit it (MADV_DONTFORK); it goes with the process's memory, at its end or at exec. The owner need not be found in
 * /proc, so other users, namespaces and file systems make no difference.
 *
 * Not every machine offers that. On overlayfs a mapping keeps the lower file, not the one that was opened; the file may
 * be out of reach when a slot is taken (another root, another user); kernels before 3.15 lack the lock. There the owner
 * keeps the best lock it can get and notes in its slot that it may live without one: then it counts as alive unless its
 * PID is certainly gone. Too much may be counted then, never too little.
 *
 * Sources: fcntl(2), "Open file description locks"; in the kernel, locks_remove_file() runs at the last reference to
 * the open file, a mapping is one, and ovl_mmap() puts the lower file in its place.
 * Uses no slot's contents and no `struct ledger`. Tests: tests/native/test_ledger_hold.c. */
#ifndef VC_SHM_LEDGER_HOLD_H
#define VC_SHM_LEDGER_HOLD_H

#include <stdatomic.h>
#include <stdint.h>

#include "os.h"

struct ledger_hold {
  struct os_file file; /* the ledger, open; the program may have closed the descriptor: ledger_hold_fd() */
  char path[256];      /* opens it again */
  _Atomic uint32_t pid_namespace; /* of this process; 0: not read yet */
  enum { HOLD_NONE, HOLD_BY_MAPPING, HOLD_BY_DESCRIPTOR, HOLD_BY_LEDGER, HOLD_BY_NAME } kind;
  _Atomic int own_fd; /* by descriptor, and while a slot is being taken: another open file of the ledger; else -1 */
  void *page;         /* by mapping */
};

void ledger_hold_init(struct ledger_hold *hold);

/* Descriptor of the ledger's file, opened again when the program closed it; -1: it cannot be. */
int ledger_hold_fd(struct ledger_hold *hold);
/* Number of this process's PID namespace, read once; 0 when /proc does not give it. */
uint32_t ledger_hold_namespace(struct ledger_hold *hold);

/* Takes the lock of a slot, when nothing is held. It closes a descriptor of the file: record locks come afterwards.
 * 1: ours now; 0: another process holds it; negative: unknown, the slot must not be taken. */
int ledger_hold_take(struct ledger_hold *hold, uint32_t slot);
/* Takes it again if it was lost nevertheless. 1: as it was, 0: the slot's word must be written anew. */
int ledger_hold_confirm(struct ledger_hold *hold, uint32_t slot);
/* Gives it back; nothing is held then. */
void ledger_hold_release(struct ledger_hold *hold, uint32_t slot);
/* The lock was lost, or the slot was, or this is a forked child, which inherits no lock. The program has unmapped the
 * page, and something of its own may be there by now: it is left alone. */
void ledger_hold_forget(struct ledger_hold *hold);

/* What the owner writes into its slot: 0 where its lock lasts as long as it lives. */
uint64_t ledger_hold_word(struct ledger_hold *hold);
/* Whether the process of that WORD and PID may live though its slot is not held, as a process in a PID NAMESPACE finds;
 * 0: the calling one's. */
int ledger_may_live(uint64_t word, int32_t pid, uint32_t namespace);

/* Whether a slot's owner lives, by any descriptor of the file: 1, 0 or negative when unknown. */
int ledger_is_held(int fd, uint32_t slot);
/* Whether a slot of SLOTS from FIRST on is held. */
int ledger_any_held(int fd, uint32_t first, uint32_t slots);

#endif
