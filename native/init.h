/* SPDX-License-Identifier: Apache-2.0 */
/* The only thing that init.c shows besides hooks/runtime_state.h, which it implements.
 * Tests: tests/integration/test_native_config.py. */
#ifndef VC_INIT_H
#define VC_INIT_H

/* In a forked child: the parent's slot, allocation tables, contexts and locks are not the child's.
 * Async-signal-safe. */
void init_after_fork(void);

#endif
