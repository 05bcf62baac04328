/* SPDX-License-Identifier: Apache-2.0 */
/* What stream_state.c, stream_table.c and stream_poll.c share with one another and with no other file. */
#ifndef VC_CUDA_STREAM_STATE_PRIV_H
#define VC_CUDA_STREAM_STATE_PRIV_H

#include "stream_state.h"

/* --- the table (stream_table.c) ------------------------------------------------------------------------------------- */

/* Of a state whose stream is being destroyed or is gone: no launch searches for it. */
enum { KEY_ENDED = 3 };

/* Guards places: entering and freeing. Before a state's own lock, after that of stream_polls_block(). */
extern struct lock stream_table_lock __attribute__((visibility("hidden")));

/* The state of a key; with a CONTEXT only one of that context. Takes no lock. */
struct stream_state *stream_table_find(uintptr_t key, CUcontext context);
/* Under the table's lock: a free place for the key, whose state is not found before stream_table_enter(). NULL: there
 * is none, and no memory for more. */
struct stream_state *stream_table_place(uintptr_t key);
void stream_table_enter(struct stream_state *state, uintptr_t key);
void stream_table_free(struct stream_state *state);
int stream_table_has(const struct stream_state *state);

/* All places that were ever used, free ones included: their events live as long as their context. */
struct stream_cursor {
  unsigned int shelf;
  size_t at;
};
struct stream_state *stream_table_next(struct stream_cursor *cursor);

void stream_table_after_fork(void);

/* --- stream states ------------------------------------------------------------------------------------------------ */

/* Stand for the streams that find no place, one for each column. */
extern struct stream_state stream_overflows[VC_MAX_GPUS] __attribute__((visibility("hidden")));

/* Polls are over; read under the lock of stream_polls_block(). */
extern _Atomic int stream_polls_stopped __attribute__((visibility("hidden")));

/* The polling thread and those that launch may both find out what is done: what one has found the other must not
 * undo. */
static inline void stream_state_raise_passed(struct stream_state *state, uint64_t least) {
  uint64_t passed = atomic_load_explicit(&state->passed, memory_order_relaxed);
  while (passed < least && !atomic_compare_exchange_weak(&state->passed, &passed, least)) continue;
}

/* Under the state's lock: sets a fence by recording in STREAM. */
void stream_state_fence_on(struct stream_state *state, CUstream stream);

/* Under the lock of stream_polls_block(): the stream is gone, and so is its work. */
void stream_state_free(struct stream_state *state);

#endif
