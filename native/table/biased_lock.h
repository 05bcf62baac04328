/* A lock that costs its first user nothing: most programs allocate from one thread, and for them the two locked
 * instructions of an uncontended lock are half the price of an allocation table. The first thread that comes owns the
 * bias and enters with plain stores. The first other thread revokes it for good, with a barrier that the kernel
 * executes on every CPU of the process (membarrier, some milliseconds, once); from then on every thread takes ordinary
 * locks.
 * Depends on nothing. Tests: tests/native/test_table.c. */
#ifndef VC_TABLE_BIASED_LOCK_H
#define VC_TABLE_BIASED_LOCK_H

#include <stdatomic.h>

enum biased_lock_mode {
  BIASED_LOCK_UNCLAIMED,
  BIASED_LOCK_OWNED,
  BIASED_LOCK_CHANGING, /* being claimed or revoked: every thread waits */
  BIASED_LOCK_REVOKED,
};

struct biased_lock {
  _Atomic int mode;
  _Atomic(const void *) owner; /* biased_lock_self() of the owning thread */
  _Atomic int inside;          /* written by the owner alone */
};

extern _Thread_local char biased_lock_thread __attribute__((visibility("hidden")));

/* An address that only this thread has. */
static inline const void *biased_lock_self(void) { return &biased_lock_thread; }

__attribute__((noinline, cold)) int biased_lock_enter_slowly(struct biased_lock *lock);

/* 1: the caller is inside, alone. 0: the bias is revoked, take a lock instead. */
static inline int biased_lock_enter(struct biased_lock *lock) {
  if (atomic_load_explicit(&lock->owner, memory_order_relaxed) == biased_lock_self()) {
    atomic_store_explicit(&lock->inside, 1, memory_order_relaxed);
    /* Against the revoker, which stores the mode, has the kernel run a barrier here, and loads INSIDE: the compiler
     * alone must keep the order of these two. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&lock->mode, memory_order_acquire) == BIASED_LOCK_OWNED, 1)) return 1;
    atomic_store_explicit(&lock->inside, 0, memory_order_release);
  }
  if (__builtin_expect(atomic_load_explicit(&lock->mode, memory_order_acquire) == BIASED_LOCK_REVOKED, 1)) return 0;
  return biased_lock_enter_slowly(lock);
}

static inline void biased_lock_leave(struct biased_lock *lock) {
  atomic_store_explicit(&lock->inside, 0, memory_order_release);
}

#endif
