/* SPDX-License-Identifier: Apache-2.0 */
/* Two small locks that need no thread library and can be reset in a forked child.
 * Depends on nothing. Tests: tests/native/test_lock.c. */
#ifndef VC_BASE_LOCK_H
#define VC_BASE_LOCK_H

#include <stdatomic.h>

#include "os.h"

/* For a few dozen instructions: one read-modify-write to take, one store to give. */
struct lock {
  _Atomic int taken;
};

/* Between two tries: gives the processor away, and after some tries sleeps. */
void lock_pause(unsigned int tries);
/* Until it was seen given. */
void lock_wait(struct lock *lock);

static inline void lock_take(struct lock *lock) {
  while (__builtin_expect(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire), 0)) lock_wait(lock);
}

/* 1: taken. For what can be done without: where a signal's handler may come in that interrupted the holder. */
static inline int lock_try(struct lock *lock) {
  return atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0;
}

static inline void lock_give(struct lock *lock) { atomic_store_explicit(&lock->taken, 0, memory_order_release); }

/* For driver calls that take milliseconds. The holder is known, so that a call that comes back in on the same thread
 * (a profiler inside the driver) does not wait for itself. */
struct long_lock {
  _Atomic(const void *) holder;
};

/* 1: taken. 0: this thread holds it already. SELF: an address that only this thread has (of a thread-local). */
static inline int long_lock_take(struct long_lock *lock, const void *self) {
  const void *none = NULL;
  if (atomic_load_explicit(&lock->holder, memory_order_relaxed) == self) return 0;
  for (unsigned int tries = 0; !atomic_compare_exchange_weak_explicit(&lock->holder, &none, self,
                                                                      memory_order_acquire, memory_order_relaxed);
       tries++) {
    none = NULL;
    lock_pause(tries);
  }
  return 1;
}

/* The same, but 0 also when another thread has held it for about LIMIT_MS (0: no waiting). For calls
 * that may come from inside the driver, whose own locks the holder may be waiting for. */
static inline int long_lock_try(struct long_lock *lock, const void *self, unsigned int limit_ms) {
  const void *none = NULL;
  if (atomic_load_explicit(&lock->holder, memory_order_relaxed) == self) return 0;
  for (unsigned int tries = 0; !atomic_compare_exchange_strong_explicit(&lock->holder, &none, self,
                                                                        memory_order_acquire, memory_order_relaxed);
       tries++) {
    none = NULL;
    if (tries >= limit_ms * 20) return 0;
    os_sleep_us(50);
  }
  return 1;
}

/* This thread has it. */
static inline int long_lock_is_mine(struct long_lock *lock, const void *self) {
  return atomic_load_explicit(&lock->holder, memory_order_relaxed) == self;
}

static inline void long_lock_give(struct long_lock *lock) {
  atomic_store_explicit(&lock->holder, NULL, memory_order_release);
}

#endif
