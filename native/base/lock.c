/* SPDX-License-Identifier: Apache-2.0 */
/* The waiting side of the locks.
 * Depends on nothing. Tests: tests/native/test_lock.c. */
#include "lock.h"

enum { YIELDS = 64, NAP_US = 50 };

/* A thread of real-time priority gives the processor to none of lower priority by yielding, and the holder may be one
 * of these. */
void lock_pause(unsigned int tries) {
  if (tries < YIELDS)
    os_yield();
  else
    os_sleep_us(NAP_US);
}

void lock_wait(struct lock *lock) {
  for (unsigned int tries = 0; atomic_load_explicit(&lock->taken, memory_order_relaxed); tries++) lock_pause(tries);
}
