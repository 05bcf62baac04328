/* Claiming and revoking a bias; each happens at most once.
 * Knows nobody. Tests: tests/native/test_table.c. */
#define _GNU_SOURCE
#include "bias.h"

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"

/* linux/membarrier.h of Linux 4.3; no header of a glibc of 2012 has it. */
enum { MEMBARRIER_QUERY = 0, MEMBARRIER_GLOBAL = 1 };

_Thread_local char bias_thread;

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

/* Where the kernel has no such barrier nobody ever owns the bias. */
static void claim(struct bias *bias) {
  int unclaimed = BIAS_UNCLAIMED;
  if (!atomic_compare_exchange_strong(&bias->mode, &unclaimed, BIAS_CHANGING)) return;
  int possible = barrier_exists();
  if (possible) atomic_store_explicit(&bias->owner, bias_self(), memory_order_relaxed);
  atomic_store_explicit(&bias->mode, possible ? BIAS_OWNED : BIAS_REVOKED, memory_order_release);
}

/* Back to owned if the kernel should refuse after all, which it does not once it has offered the command; the caller
 * then waits for its turn by asking again. */
static void revoke_bias(struct bias *bias) {
  int owned = BIAS_OWNED;
  if (!atomic_compare_exchange_strong(&bias->mode, &owned, BIAS_CHANGING)) return;
  if (syscall(SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) != 0) {
    atomic_store_explicit(&bias->mode, BIAS_OWNED, memory_order_release);
    os_sleep_us(100);
    return;
  }
  while (atomic_load_explicit(&bias->inside, memory_order_acquire)) os_yield();
  atomic_store_explicit(&bias->owner, NULL, memory_order_relaxed);
  atomic_store_explicit(&bias->mode, BIAS_REVOKED, memory_order_release);
}

int bias_enter_slowly(struct bias *bias) {
  for (;;) {
    switch (atomic_load_explicit(&bias->mode, memory_order_acquire)) {
      case BIAS_UNCLAIMED:
        claim(bias);
        break;
      case BIAS_OWNED:
        if (atomic_load_explicit(&bias->owner, memory_order_relaxed) == bias_self()) return bias_enter(bias);
        revoke_bias(bias);
        break;
      case BIAS_CHANGING:
        os_yield();
        break;
      default:
        return 0;
    }
  }
}
