/* What lane.c, lane_table.c and lane_look.c share with one another and with nobody else. */
#ifndef VC_CUDA_LANE_PRIV_H
#define VC_CUDA_LANE_PRIV_H

#include "lane.h"

/* --- the table (lane_table.c) ------------------------------------------------------------------------------------- */

/* Of a lane whose stream is being destroyed or is gone: nobody searches for it. */
enum { KEY_ENDED = 3 };

/* Guards places: who enters, who frees. Before a lane's own lock, after that of lane_touch(). */
extern struct lock lane_table_lock __attribute__((visibility("hidden")));

/* The lane of a key; with a CONTEXT only one of that context. Takes no lock. */
struct lane *lane_table_find(uintptr_t key, CUcontext context);
/* Under the table's lock: a free place for the key, whose lane nobody finds before lane_table_enter(). NULL: there is
 * none, and no memory for more. */
struct lane *lane_table_place(uintptr_t key);
void lane_table_enter(struct lane *lane, uintptr_t key);
void lane_table_free(struct lane *lane);
int lane_table_has(const struct lane *lane);

/* All places that were ever used, free ones included: their events live as long as their context. */
struct lane_cursor {
  unsigned int shelf;
  size_t at;
};
struct lane *lane_table_next(struct lane_cursor *cursor);

void lane_table_after_fork(void);

/* --- lanes -------------------------------------------------------------------------------------------------------- */

/* Stand for the streams that find no place, one for each column. */
extern struct lane lane_crowds[VC_MAX_GPUS] __attribute__((visibility("hidden")));

/* Looks are over; asked for under the lock of lane_touch(). */
extern _Atomic int lanes_stopped __attribute__((visibility("hidden")));

/* The thread that looks and those that launch may both find out what is done: what one has found the other must not undo. */
static inline void lane_raise_passed(struct lane *lane, uint64_t least) {
  uint64_t passed = atomic_load_explicit(&lane->passed, memory_order_relaxed);
  while (passed < least && !atomic_compare_exchange_weak(&lane->passed, &passed, least)) continue;
}

/* Under the lane's lock: sets a mark by recording in STREAM. */
void lane_mark_on(struct lane *lane, CUstream stream);

/* Under the lock of lane_touch(): the lane's stream is gone, and so is its work. */
void lane_free(struct lane *lane);

#endif
