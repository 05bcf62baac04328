/* The lock that says a slot's owner lives.
 *
 * A slot has two lock bytes. The record lock (LEDGER_LOCKS) names the owner: F_GETLK tells its PID in the asker's
 * namespace. But the kernel drops it when the process closes any descriptor of the file. So it names and proves
 * nothing. The open-file-description lock (LEDGER_HOLDS) names no process (F_GETLK says -1) and proves that the owner
 * lives: it belongs to an open file of its own, which only a mapping keeps open. No close() reaches it; a forked child
 * does not inherit it (MADV_DONTFORK); it goes with the process's memory, at its end or at exec. The owner need not be
 * found in /proc, so other users, namespaces and file systems make no difference.
 *
 * That is not to be had everywhere: on overlayfs a mapping keeps the file below, not the one that was opened; the file
 * may be out of reach when a slot is taken (another root, another user); kernels before 3.15 lack the lock. There the
 * owner keeps what it can get and says in its slot that it may live without: then it counts as alive unless its PID is
 * certainly gone. Too much may be counted then, and never too little.
 *
 * Sources: fcntl(2), "Open file description locks"; in the kernel, locks_remove_file() runs at the last reference to
 * the open file, a mapping is one, and ovl_mmap() puts the file below in its place. Uses nothing of CUDA or NVML.
 * Tests: tests/native/test_ledger_hold.c. */
#ifndef VC_SHM_LEDGER_HOLD_H
#define VC_SHM_LEDGER_HOLD_H

#include <stdatomic.h>
#include <stdint.h>

struct ledger;

struct ledger_hold {
  enum { HOLD_NONE, HOLD_BY_MAPPING, HOLD_BY_DESCRIPTOR, HOLD_BY_LEDGER, HOLD_BY_NAME } kind;
  _Atomic int fd; /* by descriptor: that; and while a slot is being taken; -1 */
  void *page;     /* by mapping */
};

void ledger_hold_init(struct ledger_hold *hold);

/* Takes the lock of a slot, when nothing is held. It closes a descriptor of the file: record locks come afterwards.
 * 1: ours now; 0: another process holds it; negative: it cannot be told, the slot must not be taken. */
int ledger_hold_take(struct ledger *ledger, uint32_t slot);
/* Takes it again if it was lost nevertheless. 1: as it was, 0: the slot's word must be written anew. */
int ledger_hold_confirm(struct ledger *ledger, uint32_t slot);
/* Gives it back; nothing is held then. */
void ledger_hold_release(struct ledger *ledger, uint32_t slot);
/* It was lost, or its slot was: the program has unmapped the page, and something of its own may be there by now. */
void ledger_hold_forget(struct ledger *ledger);
/* Nothing of the parent's is ours in a forked child either: ledger_hold_forget(). */

/* What the owner writes into its slot: 0 where what it holds lasts as long as it lives. */
uint64_t ledger_hold_word(struct ledger *ledger);
/* Whether the process of that WORD and PID may live though its slot is not held, as a process in a PID NAMESPACE finds;
 * 0: the calling one's. */
int ledger_may_live(uint64_t word, int32_t pid, uint32_t namespace);

/* Whether a slot's owner lives, by any descriptor of the file: 1, 0 or negative when it cannot be told. */
int ledger_is_held(int fd, uint32_t slot);
/* Whether a slot of SLOTS from FIRST on is held. */
int ledger_any_held(int fd, uint32_t first, uint32_t slots);

#endif
