/* SPDX-License-Identifier: Apache-2.0 */
/* See throttle.h. Each reason is a function that returns when it is none any more. They run in order, the bucket last,
 * so that it has paid for the work before.
 *
 * No reason can hold a launch for ever, whatever the page, the ledger or the agent do: a queue that does not move is
 * waited for PATIENCE_NS at most (it may be waiting for the host), debt as long as it takes to earn what was owed in
 * the beginning, and page and bucket are read anew at least every ten milliseconds.
 * Tests: tests/integration/test_native_share.py. */
#include "throttle.h"

#include "ledger.h"
#include "os.h"
#include "poller.h"
#include "runtime_state.h"

enum { PATIENCE_NS = 250000000, STUCK_NS = 2000000000, FIRST_NAP_US = 20, LONGEST_NAP_US = 500 };

/* The stream's queue is as long as it may be. When it has not moved for seconds, its work waits for something else than
 * the GPU, perhaps for launches that come later: then the bound grows. */
static void wait_for_room(struct stream_state *state) {
  static _Thread_local uint64_t moved_ns; /* when this thread last saw a queue move */
  uint64_t since = os_now_ns(), passed = atomic_load(&state->passed);
  for (uint32_t nap = FIRST_NAP_US; stream_state_is_full(state); nap = nap < LONGEST_NAP_US ? nap * 2 : LONGEST_NAP_US) {
    stream_state_poll(state);
    if (!stream_state_is_full(state)) break;
    uint64_t now = os_now_ns();
    if (now - since >= PATIENCE_NS) {
      if (moved_ns != 0 && now - moved_ns > STUCK_NS) atomic_store(&state->allowed, atomic_load(&state->allowed) * 2);
      break;
    }
    os_sleep_us(nap);
  }
  if (atomic_load(&state->passed) != passed || moved_ns == 0) moved_ns = os_now_ns();
}

/* The container is in debt. */
static void wait_for_share(struct stream_state *state) {
  struct vc_bucket *bucket = ledger_bucket(runtime_ledger, state->column);
  struct vc_pace pace;
  uint64_t began = os_now_ns(), now = began, nap = 0;
  for (int asked = 0;; asked = 1, now = os_now_ns()) {
    uint64_t now_ms = os_coarse_ms();
    uint32_t permille = ledger_permille(runtime_ledger, state->column, now_ms);
    if (permille >= 1000) break;
    bucket_fill(bucket, now, permille, ledger_credit(runtime_ledger, state->column));
    int64_t level = bucket_level(bucket);
    if (!asked) pace_begin(&pace, level, permille, now);
    nap = pace_nap(&pace, level, permille, now);
    if (nap == 0) break;
    ledger_waiting(runtime_ledger, state->column, now_ms);
    os_sleep_us((uint32_t)(nap / 1000));
  }
  if (now > began) ledger_throttled(runtime_ledger, state->column, (now - began) / 1000);
}

/* Waiting for the time slice is elsewhere (time_slice.c): copies wait for it too. */
static void (*const reasons[])(struct stream_state *state) = {wait_for_room, wait_for_share};

void throttle_launch(struct stream_state *state) {
  if (stream_state_is_capturing(state)) return;
  if (ledger_cores(runtime_ledger, state->column) == 0) return; /* all of the GPU is lent: queues stay short */
  for (unsigned int i = 0; i < sizeof reasons / sizeof *reasons; i++) reasons[i](state);
}
