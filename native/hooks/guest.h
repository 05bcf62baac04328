/* What the hooks may know about the process they are guests in: whether limits are configured, whether they can be
 * used, and the ledger. The order of start-up and every decision behind these answers is in native/init.c, which
 * implements this header; the hooks know no file and no environment variable.
 * Tests: tests/integration/test_native_config.py. */
#ifndef VC_HOOKS_GUEST_H
#define VC_HOOKS_GUEST_H

#include <stdatomic.h>

struct ledger;

enum guest_passage {
  GUEST_FORWARD, /* nothing is configured: every call goes to the driver */
  GUEST_HOOK,    /* the ledger is attached */
  GUEST_REFUSE,  /* limits exist and cannot be used; the reason has been written to stderr */
};

/* Whether limits are configured at all. Cheap, opens nothing, settled by the first call. */
int guest_is_wanted(void);

/* Whether any GPU has, or may come to have, a compute share. Settled by the first call, like the above. */
int guest_may_have_shares(void);

/* The same, or host memory, for which containers take turns: whether its work ever has to wait. */
int guest_may_be_held(void);

/* Before the first lock of the library is taken: from then on a forked child gives them all. 0: it would not, and nobody
 * may lock. */
int guest_may_lock(void);

/* Attaches on the first call, then answers from memory. Thread-safe; a call that comes back in on the same thread
 * while attaching is answered with GUEST_FORWARD. */
enum guest_passage guest_enter(void);

/* Set before guest_enter() answers GUEST_HOOK for the first time, never changed afterwards. */
extern struct ledger *guest_ledger __attribute__((visibility("hidden")));

/* A gate remembers for one driver that guest_enter() said GUEST_HOOK and its real functions are known, so that the
 * common case is one load. */
typedef _Atomic int guest_gate;

#endif
