/* Lanes: the streams of this process that kernels were launched into, and what is known of their work.
 *
 * A launching thread writes two words of its lane. The thread of watch.c looks at each lane that was written to: it asks
 * the driver whether the stream's work is done. It never does so while the stream begins a capture, ends, or loses its
 * context: those calls take the same lock (lane_touch). The default stream of a thread can be asked for by that thread
 * alone; there events say it, which the thread sets behind its launches (marks), and what it waited for itself. After a
 * look a few launches in a row are marked, so that of a thread that launches seldom all is known, and one that launches
 * often does not pay for more.
 * A lane is found without a lock, so a stream keeps it until it ends: docs/adr/0044-a-stream-keeps-its-lane.md.
 * Marks also measure every stream's queue, for the window that bounds it: shm/window.c.
 * Knows the driver, neither buckets nor time. Tests: tests/native/test_lane.c, tests/integration/test_native_share.py. */
#ifndef VC_CUDA_LANE_H
#define VC_CUDA_LANE_H

#include <stdatomic.h>
#include <stdint.h>

#include "lock.h"
#include "nvidia.h"
#include "shm.h"

enum { LANE_MARKS = 4 };

enum lane_kind {
  LANE_STREAM, /* the program's own */
  LANE_LEGACY, /* the default stream that all threads share */
  LANE_THREAD, /* the default stream of one thread */
  LANE_ENDED,  /* destroyed, with work left */
  LANE_CROWD,  /* all for which there is no memory: known to have work while they are launched into, no further */
};

struct lane_mark {
  CUevent event;
  uint64_t behind;      /* launches */
  uint32_t outstanding; /* of them, when it was set */
  uint64_t set_ns;
};

struct lane {
  _Atomic uintptr_t *key; /* its place in the table */
  _Atomic uint32_t dirty;    /* launches since the last look */
  _Atomic uint64_t launched; /* a plain counter: threads that share a stream may lose some */
  _Atomic uint64_t passed;   /* of them, known to be done */
  _Atomic uint64_t next_mark;
  _Atomic uint32_t allowed;  /* the window's */
  _Atomic uint32_t marks_due; /* so many of the next launches are marked, whatever the window says */
  enum lane_kind kind;
  uint32_t column;
  CUstream stream;
  CUcontext context;
  /* Under the lock. */
  struct lock lock;
  struct vc_window window;
  CUcontext events_of; /* context of the marks' events */
  uint32_t mark_count, first_mark;
  struct lane_mark mark[LANE_MARKS];
  /* Of the looking thread. */
  _Atomic int busy; /* at the last look */
  uint64_t seen;    /* launches then */
};

/* The lane of a launch into STREAM by this thread; NULL: the current context's GPU has no entry in the page, or there is
 * no context. PER_THREAD: stream 0 is the thread's own. */
struct lane *lane_find(CUstream stream, int per_thread);

/* Whether the stream is being captured, so that launches become nodes. The thread that launches asks. */
int lane_is_capturing(const struct lane *lane);

/* Sets a mark behind what was launched, if one is due. By the thread that launched. */
void lane_set_mark(struct lane *lane);

/* All that the calling thread launched into its default stream of CONTEXT (NULL: the current one) is done. */
void lane_thread_is_done(CUcontext context);

/* Takes notice of marks that were passed. */
void lane_poll(struct lane *lane);

static inline int lane_is_full(const struct lane *lane) {
  uint64_t launched = atomic_load_explicit(&lane->launched, memory_order_relaxed);
  uint64_t passed = atomic_load_explicit(&lane->passed, memory_order_relaxed);
  return launched - passed >= atomic_load_explicit(&lane->allowed, memory_order_relaxed) && launched > passed;
}

/* After a launch: two plain stores, and a look whether a mark is due. */
static inline int lane_note(struct lane *lane) {
  uint64_t launched = atomic_load_explicit(&lane->launched, memory_order_relaxed) + 1;
  atomic_store_explicit(&lane->launched, launched, memory_order_relaxed);
  atomic_store_explicit(&lane->dirty, 1, memory_order_release);
  return launched >= atomic_load_explicit(&lane->next_mark, memory_order_relaxed);
}

/* What one look at all lanes found: a bit for each column with work under way; ANY: there may be some that the look did
 * not find. */
struct lane_view {
  uint32_t busy;
  int any;
};
struct lane_view lanes_look(void);
/* Whether anything was launched since. */
int lanes_are_dirty(void);

/* Around driver calls that a look must not meet. */
void lane_touch(void);
void lane_touch_end(void);
/* No look from now on, as soon as the present one is over; waits at most so long for that. */
void lanes_stop(unsigned int limit_ms);
/* Within, before a stream is destroyed: marks the work it has left, and nobody finds its lane any more, since the driver may
 * give the handle to another thread's new stream at once. And after: the stream is gone (its work may not be), or it is
 * not, and its lane is found again. */
struct lane *lane_before_end(CUstream stream);
void lane_after_end(struct lane *lane, int gone);
/* Within, before a context ends that may leave its events behind: they go first. */
void lanes_drop_events(CUcontext context);
/* Within: the context is gone, or all of the column that KEEPS does not name, and all work with it. */
void lanes_forget_context(CUcontext context);
void lanes_forget_column(uint32_t column, int (*keeps)(CUcontext context));

/* In a forked child. */
void lanes_after_fork(void);

#endif
