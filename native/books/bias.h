/* A lock that costs its first user nothing: most programs allocate from one thread, and for them the two locked
 * instructions of an uncontended lock are half the price of the books. The first thread that comes owns the bias and
 * enters with plain stores. The first other thread revokes it for good, with a barrier that the kernel executes on
 * every CPU of the process (membarrier, some milliseconds, once); from then on everybody takes ordinary locks.
 * Knows nobody. Tests: tests/native/test_table.c. */
#ifndef VC_BOOKS_BIAS_H
#define VC_BOOKS_BIAS_H

#include <stdatomic.h>

enum bias_mode {
  BIAS_UNCLAIMED,
  BIAS_OWNED,
  BIAS_CHANGING, /* being claimed or revoked: everybody waits */
  BIAS_REVOKED,
};

struct bias {
  _Atomic int mode;
  _Atomic(const void *) owner; /* bias_self() of the owning thread */
  _Atomic int inside;          /* written by the owner alone */
};

extern _Thread_local char bias_thread __attribute__((visibility("hidden")));

/* An address that only this thread has. */
static inline const void *bias_self(void) { return &bias_thread; }

__attribute__((noinline, cold)) int bias_enter_slowly(struct bias *bias);

/* 1: the caller is inside, alone. 0: the bias is revoked, take a lock instead. */
static inline int bias_enter(struct bias *bias) {
  if (atomic_load_explicit(&bias->owner, memory_order_relaxed) == bias_self()) {
    atomic_store_explicit(&bias->inside, 1, memory_order_relaxed);
    /* Against the revoker, which stores the mode, has the kernel run a barrier here, and loads INSIDE: the compiler
     * alone must keep the order of these two. */
    atomic_signal_fence(memory_order_seq_cst);
    if (__builtin_expect(atomic_load_explicit(&bias->mode, memory_order_acquire) == BIAS_OWNED, 1)) return 1;
    atomic_store_explicit(&bias->inside, 0, memory_order_release);
  }
  if (__builtin_expect(atomic_load_explicit(&bias->mode, memory_order_acquire) == BIAS_REVOKED, 1)) return 0;
  return bias_enter_slowly(bias);
}

static inline void bias_leave(struct bias *bias) { atomic_store_explicit(&bias->inside, 0, memory_order_release); }

#endif
