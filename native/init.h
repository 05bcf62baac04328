/* The only thing that init.c shows besides hooks/guest.h, which it implements.
 * Tests: tests/integration/test_native_config.py. */
#ifndef VC_INIT_H
#define VC_INIT_H

/* In a forked child: the parent's slot, books, contexts and locks are not ours. Async-signal-safe. */
void init_after_fork(void);

#endif
