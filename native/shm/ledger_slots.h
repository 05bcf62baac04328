/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a ledger: which one is this process's, and what becomes of those whose owners have died.
 * Uses no charge and no view. Tests: tests/native/test_ledger.c, test_ledger_hold.c, test_ledger_kill.c. */
#ifndef VC_SHM_LEDGER_SLOTS_H
#define VC_SHM_LEDGER_SLOTS_H

#include "ledger_state.h"

/* Makes sure the calling process owns a slot whose generation is current. VC_EFULL, VC_EIO; VC_ENOMEM: this thread is
 * about to register, and the caller is a signal's handler that interrupted it. */
int ledger_own_slot(struct ledger *ledger);

/* Empties what the program that this process was before exec left behind. When the ledger is attached: a program may
 * never need a slot. */
void ledger_forget_former_program(struct ledger *ledger);

/* Empties the slots of dead processes and confirms our own record lock. Returns how many were emptied. *UNSURE (may be
 * NULL) becomes 1 when another process than the writer of the slot's PID has the slot's record lock, and no owner holds
 * the slot: that process is emptying or taking it at this moment. */
int ledger_reclaim(struct ledger *ledger, int *unsure);

/* Takes our slot's record lock again if the program closed a descriptor of the ledger and thereby dropped it. */
__attribute__((noinline, cold)) void ledger_confirm_lock(struct ledger *ledger);

/* Owner of another process's slot: 1 alive (*pid in our namespace, 0 when invisible), 0 dead or free. */
int ledger_slot_alive(struct ledger *ledger, uint32_t slot, int32_t *pid);

#endif
