/* Claiming and revoking a biased lock; each happens at most once.
 * Depends on nothing. Tests: tests/native/test_table.c. */
#define _GNU_SOURCE
#include "biased_lock.h"

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"

/* linux/membarrier.h of Linux 4.3; no header of a glibc of 2012 has it. */
enum { MEMBARRIER_QUERY = 0, MEMBARRIER_GLOBAL = 1 };

_Thread_local char biased_lock_thread;

/* The thread sanitizer does not know the kernel's barrier and would see races where there are none. */
static int barrier_exists(void) {
#if defined(__SANITIZE_THREAD__)
  return 0;
#endif
  enum { UNASKED, ABSENT, PRESENT };
  static _Atomic int answer;
  int known = atomic_load_explicit(&answer, memory_order_relaxed);
  if (known == UNASKED) {
    long commands = syscall(SYS_membarrier, MEMBARRIER_QUERY, 0, 0);
    known = commands > 0 && (commands & MEMBARRIER_GLOBAL) ? PRESENT : ABSENT;
    atomic_store_explicit(&answer, known, memory_order_relaxed);
  }
  return known == PRESENT;
}

/* Where the kernel has no such barrier no thread ever owns the bias. */
static void claim(struct biased_lock *lock) {
  int unclaimed = BIASED_LOCK_UNCLAIMED;
  if (!atomic_compare_exchange_strong(&lock->mode, &unclaimed, BIASED_LOCK_CHANGING)) return;
  int possible = barrier_exists();
  if (possible) atomic_store_explicit(&lock->owner, biased_lock_self(), memory_order_relaxed);
  atomic_store_explicit(&lock->mode, possible ? BIASED_LOCK_OWNED : BIASED_LOCK_REVOKED, memory_order_release);
}

/* Back to owned if the kernel should refuse after all, which it does not once it has offered the command; the caller
 * then tries again. */
static void revoke_bias(struct biased_lock *lock) {
  int owned = BIASED_LOCK_OWNED;
  if (!atomic_compare_exchange_strong(&lock->mode, &owned, BIASED_LOCK_CHANGING)) return;
  if (syscall(SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) != 0) {
    atomic_store_explicit(&lock->mode, BIASED_LOCK_OWNED, memory_order_release);
    os_sleep_us(100);
    return;
  }
  while (atomic_load_explicit(&lock->inside, memory_order_acquire)) os_yield();
  atomic_store_explicit(&lock->owner, NULL, memory_order_relaxed);
  atomic_store_explicit(&lock->mode, BIASED_LOCK_REVOKED, memory_order_release);
}

int biased_lock_enter_slowly(struct biased_lock *lock) {
  for (;;) {
    switch (atomic_load_explicit(&lock->mode, memory_order_acquire)) {
      case BIASED_LOCK_UNCLAIMED:
        claim(lock);
        break;
      case BIASED_LOCK_OWNED:
        if (atomic_load_explicit(&lock->owner, memory_order_relaxed) == biased_lock_self()) return biased_lock_enter(lock);
        revoke_bias(lock);
        break;
      case BIASED_LOCK_CHANGING:
        os_yield();
        break;
      default:
        return 0;
    }
  }
}
