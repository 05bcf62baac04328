/* SPDX-License-Identifier: Apache-2.0 */
/* Stream states: whose they are while many threads launch, and when they end. Under a driver of this file's own that
 * knows which streams are alive and who launched where. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "context_table.h"
#include "driver.h"
#include "stream_state_priv.h"
#include "lock.h"
#include "place.h"
#include "status.h"

enum { POOL = 8192, THREADS = 8, STREAMS_EACH = 40, LAUNCHES = 20000, DESTROY_EVERY = 7 };

struct cuda_api real_cuda;

/* --- the driver --------------------------------------------------------------------------------------------------- */

/* Handles are places in the pool: the one that was given back last is the next one given out, to whatever thread. */
static struct driver_stream {
  _Alignas(16) _Atomic int alive;
  int next_free;
} pool[POOL];
static int first_free = -1, first_new;
static struct lock pool_lock;

static char context_a, context_b;
static _Thread_local CUcontext current;
static _Thread_local CUstream launched_into;
static _Atomic uint64_t records, foreign, dead, questions;
static _Atomic int busy_streams; /* what a question for a stream or event says */

static CUstream stream_new(void) {
  lock_take(&pool_lock);
  int at = first_free >= 0 ? first_free : first_new;
  if (first_free >= 0)
    first_free = pool[at].next_free;
  else
    first_new++;
  lock_give(&pool_lock);
  CHECK(at < POOL);
  atomic_store(&pool[at].alive, 1);
  return (CUstream)&pool[at];
}

static CUresult stream_destroy(CUstream stream) {
  struct driver_stream *own = (struct driver_stream *)stream;
  lock_take(&pool_lock);
  atomic_store(&own->alive, 0);
  own->next_free = first_free;
  first_free = (int)(own - pool);
  lock_give(&pool_lock);
  return CUDA_SUCCESS;
}

static void ask_about(CUstream stream) {
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || stream == NULL) return;
  if (!atomic_load(&((struct driver_stream *)stream)->alive)) atomic_fetch_add(&dead, 1);
}

static CUresult get_current(CUcontext *out) {
  *out = current;
  return CUDA_SUCCESS;
}

static CUresult push_current(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}

static CUresult pop_current(CUcontext *out) {
  *out = current;
  return CUDA_SUCCESS;
}

static CUresult stream_context(CUstream stream, CUcontext *out) {
  ask_about(stream);
  *out = (CUcontext)&context_a;
  return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *out, unsigned int flags) {
  (void)flags;
  *out = (CUevent)&records;
  return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event) {
  (void)event;
  return CUDA_SUCCESS;
}

static CUresult answer(void) {
  uint64_t number = atomic_fetch_add(&questions, 1);
  return atomic_load(&busy_streams) && number % 4 != 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult event_query(CUevent event) {
  (void)event;
  return answer();
}

static CUresult event_record(CUevent event, CUstream stream) {
  (void)event;
  ask_about(stream);
  atomic_fetch_add(&records, 1);
  if (launched_into != NULL && stream != launched_into) atomic_fetch_add(&foreign, 1);
  return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream) {
  ask_about(stream);
  return answer();
}

CUresult context_place(struct place *out) {
  *out = (struct place){0, 1};
  return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static void start_driver(void) {
  real_cuda.cuCtxGetCurrent = get_current;
  real_cuda.cuCtxPushCurrent_v2 = push_current;
  real_cuda.cuCtxPopCurrent_v2 = pop_current;
  real_cuda.cuStreamGetCtx = stream_context;
  real_cuda.cuEventCreate = event_create;
  real_cuda.cuEventDestroy_v2 = event_destroy;
  real_cuda.cuEventQuery = event_query;
  real_cuda.cuEventRecord = event_record;
  real_cuda.cuStreamQuery = stream_query;
  current = (CUcontext)&context_a;
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

static void launch(CUstream stream) {
  struct stream_state *state = stream_state_find(stream, 0);
  CHECK(state != NULL);
  CHECK(state->kind == STREAM_OVERFLOW || state->stream == stream);
  launched_into = stream;
  if (stream_state_note(state)) stream_state_set_fence(state);
  CHECK(state->kind == STREAM_OVERFLOW || state->stream == stream);
}

static void end(CUstream stream) {
  stream_polls_block();
  struct stream_state *state = stream_state_before_end(stream);
  stream_destroy(stream);
  stream_state_after_end(state, 1);
  stream_polls_unblock();
}

static _Atomic int running;

static void *launch_many(void *unused) {
  CUstream streams[STREAMS_EACH];
  current = (CUcontext)&context_a;
  for (int i = 0; i < STREAMS_EACH; i++) streams[i] = stream_new();
  for (int i = 0; i < LAUNCHES; i++) {
    CUstream *stream = &streams[i % STREAMS_EACH];
    launch(*stream);
    if (i % DESTROY_EVERY != 0) continue;
    end(*stream);
    *stream = stream_new();
  }
  atomic_fetch_sub(&running, 1);
  return unused;
}

TEST(stream_state_race_no_thread_records_elsewhere) {
  pthread_t threads[THREADS];
  start_driver();
  atomic_store(&busy_streams, 1);
  atomic_store(&running, THREADS);
  for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, launch_many, NULL), 0);
  while (atomic_load(&running) != 0) stream_states_poll();
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK(atomic_load(&records) > THREADS);
  CHECK_EQ(atomic_load(&foreign), 0);
  CHECK_EQ(atomic_load(&dead), 0);
}

TEST(stream_state_every_stream_has_its_own) {
  enum { MANY = 5000 };
  static struct stream_state *states[MANY];
  static CUstream streams[MANY];
  start_driver();
  for (int i = 0; i < MANY; i++) {
    streams[i] = stream_new();
    states[i] = stream_state_find(streams[i], 0);
    launch(streams[i]);
    CHECK_EQ(states[i]->kind, STREAM_CREATED);
  }
  CHECK_EQ(stream_states_poll().busy, 0); /* all are idle now, and keep their stream states */
  for (int i = 0; i < MANY; i++) {
    CHECK(stream_state_find(streams[i], 0) == states[i]);
    CHECK(states[i]->stream == streams[i]);
    CHECK_EQ(atomic_load(&states[i]->launched), 1);
  }
}

TEST(stream_state_of_an_ended_stream_is_used_again) {
  uintptr_t lowest = UINTPTR_MAX, highest = 0;
  start_driver();
  for (int i = 0; i < 100000; i++) {
    CUstream stream = stream_new();
    launch(stream);
    uintptr_t at = (uintptr_t)stream_state_find(stream, 0);
    lowest = at < lowest ? at : lowest;
    highest = at > highest ? at : highest;
    if (i % 3 == 0) stream_states_poll();
    end(stream);
    stream_states_poll();
    if (i % 10 == 0) stream_new(); /* other handles */
    if (first_new == POOL - 1) first_new = 0;
  }
  CHECK(highest - lowest < 256 * sizeof(struct stream_state));
}

TEST(stream_state_of_a_destroyed_stream_tells_until_its_work_is_done) {
  start_driver();
  CUstream stream = stream_new();
  launch(stream);
  struct stream_state *state = stream_state_find(stream, 0);
  atomic_store(&busy_streams, 1);
  atomic_store(&questions, 1);
  end(stream);
  CHECK_EQ(state->kind, STREAM_ENDED);
  CHECK_EQ(stream_states_poll().busy, 1);
  atomic_store(&busy_streams, 0);
  CHECK_EQ(stream_states_poll().busy, 0);
  CHECK(!stream_table_has(state));
  CHECK_EQ(atomic_load(&dead), 0);
}

TEST(stream_state_of_a_stream_that_was_not_destroyed_is_found_again) {
  start_driver();
  CUstream stream = stream_new();
  launch(stream);
  struct stream_state *state = stream_state_find(stream, 0);
  stream_polls_block();
  CHECK(stream_state_before_end(stream) == state);
  CHECK(stream_table_find((uintptr_t)stream, NULL) == NULL);
  stream_state_after_end(state, 0);
  stream_polls_unblock();
  CHECK(stream_state_find(stream, 0) == state);
}

TEST(stream_state_of_a_handle_that_comes_again_at_once_is_a_new_one) {
  start_driver();
  CUstream stream = stream_new();
  launch(stream);
  stream_polls_block();
  struct stream_state *state = stream_state_before_end(stream);
  stream_destroy(stream);
  CHECK(stream_new() == stream); /* another thread's, which launches before the first one comes back from the driver */
  launch(stream);
  struct stream_state *next = stream_state_find(stream, 0);
  stream_state_after_end(state, 1);
  stream_polls_unblock();
  CHECK(next != state);
  CHECK(stream_state_find(stream, 0) == next);
  CHECK_EQ(atomic_load(&next->launched), 1);
}

/* A default stream cannot be destroyed, whatever the program asks for. */
TEST(stream_state_of_a_default_stream_does_not_end) {
  start_driver();
  launch(CU_STREAM_LEGACY);
  launch(CU_STREAM_PER_THREAD);
  CHECK(stream_state_before_end(NULL) == NULL);
  CHECK(stream_state_before_end(CU_STREAM_LEGACY) == NULL);
  CHECK(stream_state_before_end(CU_STREAM_PER_THREAD) == NULL);
}

static int keeps_nothing(CUcontext context) {
  (void)context;
  return 0;
}

TEST(stream_state_goes_with_its_context) {
  start_driver();
  CUstream stream = stream_new();
  launch(stream);
  current = (CUcontext)&context_b;
  launched_into = NULL;
  struct stream_state *other = stream_state_find(NULL, 0);
  current = (CUcontext)&context_a;
  stream_states_forget_context((CUcontext)&context_a);
  CHECK(stream_table_find((uintptr_t)stream, NULL) == NULL);
  CHECK(stream_table_has(other));
  stream_states_forget_column(0, keeps_nothing);
  CHECK(!stream_table_has(other));
}

TEST(stream_state_after_a_fork_is_a_new_one) {
  enum { MANY = 2000 };
  static CUstream streams[MANY];
  start_driver();
  for (int i = 0; i < MANY; i++) launch(streams[i] = stream_new());
  int pid = fork();
  if (pid == 0) {
    stream_states_after_fork();
    for (int i = 0; i < MANY; i++) CHECK(stream_table_find((uintptr_t)streams[i], NULL) == NULL);
    for (int i = 0; i < MANY; i++) launch(streams[i]);
    for (int i = 0; i < MANY; i++) CHECK_EQ(atomic_load(&stream_state_find(streams[i], 0)->launched), 1);
    _Exit(0);
  }
  expect_exit(pid, 0);
}

/* No memory for more stream states: the rest is known to have work while it is launched into, and no stream is
 * disturbed. */
TEST(stream_state_without_memory_for_more) {
  enum { MANY = 1000 };
  start_driver();
  const struct rlimit none = {1, RLIM_INFINITY};
  CHECK_EQ(setrlimit(RLIMIT_AS, &none), 0);
  CHECK(mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
  CUstream last = NULL;
  for (int i = 0; i < MANY; i++) launch(last = stream_new());
  CHECK_EQ(stream_state_find(last, 0)->kind, STREAM_OVERFLOW);
  stream_states_poll();
  CHECK(!stream_states_are_dirty());
  for (int i = 0; i < 10000; i++) launch(last);
  CHECK(!stream_state_is_full(stream_state_find(last, 0)));
  CHECK(stream_states_are_dirty());
  CHECK_EQ(stream_states_poll().busy, 1);
  CHECK_EQ(stream_states_poll().busy, 0);
  CHECK_EQ(atomic_load(&foreign), 0);
  stream_states_after_fork();
  CHECK(stream_state_find(last, 0)->kind == STREAM_CREATED);
}
