/* SPDX-License-Identifier: Apache-2.0 */
/* Stream states: one for each stream of this process that kernels were launched into, with what is known of its work.
 *
 * A launching thread writes two words of the state. The thread of poller.c polls each state that was written to: it
 * asks the driver whether the stream's work is done. It never does so while the stream begins a capture, ends, or loses
 * its context: those calls take the same lock (stream_polls_block). The default stream of a thread can be queried by
 * that thread alone; there fences tell, which are events that the thread records behind its launches, and what it
 * waited for itself. After a poll a few launches in a row get a fence, so that of a thread that launches seldom all is
 * known, and one that launches often does not pay for more. A state is found without a lock, so a stream keeps it until
 * it ends: docs/adr/0044-a-stream-keeps-its-state.md. Fences also measure every stream's queue, for the window that
 * bounds it: shm/bucket.c.
 * Uses the driver, neither buckets nor time. Tests: tests/native/test_stream_state.c,
 * tests/integration/test_native_share.py. */
#ifndef VC_CUDA_STREAM_STATE_H
#define VC_CUDA_STREAM_STATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "lock.h"
#include "nvidia.h"
#include "shm.h"

enum { STREAM_FENCES = 4 };

enum stream_kind {
  STREAM_CREATED, /* the program's own */
  STREAM_LEGACY, /* the default stream that all threads share */
  STREAM_OF_THREAD, /* the default stream of one thread */
  STREAM_ENDED,  /* destroyed, with work left */
  STREAM_OVERFLOW,  /* all for which there is no memory: known to have work while they are launched into, no further */
};

struct stream_fence {
  CUevent event;
  uint64_t behind;      /* launches */
  uint32_t outstanding; /* of them, when it was set */
  uint64_t set_ns;
};

struct stream_state {
  _Atomic uintptr_t *key; /* its place in the table */
  _Atomic uint32_t dirty;    /* launches since the last poll */
  _Atomic uint64_t launched; /* a plain counter: threads that share a stream may lose some */
  _Atomic uint64_t passed;   /* of them, known to be done */
  _Atomic uint64_t next_fence;
  _Atomic uint32_t allowed;  /* the window's */
  _Atomic uint32_t fences_due; /* so many of the next launches get a fence, whatever the window allows */
  enum stream_kind kind;
  uint32_t column;
  CUstream stream;
  CUcontext context;
  /* Under the lock. */
  struct lock lock;
  struct vc_window window;
  CUcontext events_of; /* context of the fences' events */
  uint32_t fence_count, first_fence;
  struct stream_fence fence[STREAM_FENCES];
  /* Of the polling thread. */
  _Atomic int busy; /* at the last poll */
  uint64_t seen;    /* launches then */
};

/* The state of a launch into STREAM by this thread; NULL: the current context's GPU has no entry in the page, or there
 * is no context. PER_THREAD: stream 0 is the thread's own. */
struct stream_state *stream_state_find(CUstream stream, int per_thread);

/* Whether the stream is being captured, so that launches become nodes. The thread that launches asks. */
int stream_state_is_capturing(const struct stream_state *state);

/* Sets a fence behind what was launched, if one is due. By the thread that launched. */
void stream_state_set_fence(struct stream_state *state);

/* All that the calling thread launched into its default stream of CONTEXT (NULL: the current one) is done. */
void stream_thread_is_done(CUcontext context);

/* Takes notice of fences that were passed. */
void stream_state_poll(struct stream_state *state);

static inline int stream_state_is_full(const struct stream_state *state) {
  uint64_t launched = atomic_load_explicit(&state->launched, memory_order_relaxed);
  uint64_t passed = atomic_load_explicit(&state->passed, memory_order_relaxed);
  return launched - passed >= atomic_load_explicit(&state->allowed, memory_order_relaxed) && launched > passed;
}

/* After a launch: two plain stores; returns whether a fence is due. */
static inline int stream_state_note(struct stream_state *state) {
  uint64_t launched = atomic_load_explicit(&state->launched, memory_order_relaxed) + 1;
  atomic_store_explicit(&state->launched, launched, memory_order_relaxed);
  atomic_store_explicit(&state->dirty, 1, memory_order_release);
  return launched >= atomic_load_explicit(&state->next_fence, memory_order_relaxed);
}

/* What one pass over all states found: a bit for each column with work under way; ANY: there may be some that the pass
 * did not find. */
struct stream_poll {
  uint32_t busy;
  int any;
};
struct stream_poll stream_states_poll(void);
/* Whether anything was launched since. */
int stream_states_are_dirty(void);

/* Around driver calls that a poll must not meet. */
void stream_polls_block(void);
void stream_polls_unblock(void);
/* No poll from now on, as soon as the present one is over; waits at most so long for that. */
void stream_polls_stop(unsigned int limit_ms);
/* Within, before a stream is destroyed: sets a fence behind the work it has left, and its state is not found any more,
 * since the driver may give the handle to another thread's new stream at once. And after: the stream is gone (its work
 * may not be), or it is not, and its state is found again. */
struct stream_state *stream_state_before_end(CUstream stream);
void stream_state_after_end(struct stream_state *state, int gone);
/* Within, before a context ends that may leave its events behind: they go first. */
void stream_states_drop_events(CUcontext context);
/* Within: the context is gone, or all of the column that KEEPS does not name, and all work with it. */
void stream_states_forget_context(CUcontext context);
void stream_states_forget_column(uint32_t column, int (*keeps)(CUcontext context));

/* In a forked child. */
void stream_states_after_fork(void);

#endif
