/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the process that the hooks run in: whether limits are configured, whether they can be
 * used, and the ledger. The order of start-up and every decision behind these answers is in native/init.c, which
 * implements this header; the hooks read no file and no environment variable.
 * Tests: tests/integration/test_native_config.py. */
#ifndef VC_HOOKS_RUNTIME_STATE_H
#define VC_HOOKS_RUNTIME_STATE_H

#include <stdatomic.h>

struct ledger;

enum runtime_passage {
  RUNTIME_FORWARD, /* nothing is configured: every call goes to the driver */
  RUNTIME_HOOK,    /* the ledger is attached */
  RUNTIME_REFUSE,  /* limits exist and cannot be used; the reason has been written to stderr */
};

/* Whether limits are configured at all. Cheap, opens nothing, settled by the first call. */
int runtime_is_limited(void);

/* Whether any GPU has, or may come to have, a compute share. Settled by the first call, like the above. */
int runtime_may_have_shares(void);

/* The same, or host memory, for which containers have time slices: whether its work ever has to wait. */
int runtime_may_be_held(void);

/* Before the first lock of the library is taken: from then on a forked child gives them all. 0: it would not, and no
 * lock may be taken. */
int runtime_may_lock(void);

/* Attaches on the first call, then answers from memory. Thread-safe; a call that comes back in on the same thread
 * while attaching is answered with RUNTIME_FORWARD. */
enum runtime_passage runtime_enter(void);

/* For the sentence of a refusal, once limits are in force: whether one is wanted, and whether it stands in a container,
 * whose neighbours are nobody's business there. */
int runtime_tells_refusals(void);
int runtime_is_container(void);

/* Set before runtime_enter() answers RUNTIME_HOOK for the first time, never changed afterwards. */
extern struct ledger *runtime_ledger __attribute__((visibility("hidden")));

/* Remembers for one driver that runtime_enter() answered RUNTIME_HOOK and its real functions are known, so that the
 * common case is one load. */
typedef _Atomic int runtime_passed;

#endif
