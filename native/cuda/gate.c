/* See gate.h. Each reason is a function that returns when it is none any more. They are asked in order, the bucket last,
 * so that it knows what the work before has cost.
 *
 * No reason can hold a launch for ever, whatever the page, the ledger or the agent do: a queue that does not move is waited
 * for PATIENCE_NS at most (it may be waiting for the host), debt as long as it takes to earn what was owed in the beginning,
 * and page and bucket are read anew at least every ten milliseconds.
 * Tests: tests/integration/test_native_share.py. */
#include "gate.h"

#include "guest.h"
#include "ledger.h"
#include "os.h"
#include "watch.h"

enum { PATIENCE_NS = 250000000, STUCK_NS = 2000000000, FIRST_NAP_US = 20, LONGEST_NAP_US = 500 };

/* The stream's queue is as long as it may be. When it has not moved for seconds, what is in it waits for something else
 * than the card, perhaps for launches that come later: then the bound grows. */
static void wait_for_room(struct lane *lane) {
  static _Thread_local uint64_t moved_ns; /* when this thread last saw a queue move */
  uint64_t since = os_now_ns(), passed = atomic_load(&lane->passed);
  for (uint32_t nap = FIRST_NAP_US; lane_is_full(lane); nap = nap < LONGEST_NAP_US ? nap * 2 : LONGEST_NAP_US) {
    lane_poll(lane);
    if (!lane_is_full(lane)) break;
    uint64_t now = os_now_ns();
    if (now - since >= PATIENCE_NS) {
      if (moved_ns != 0 && now - moved_ns > STUCK_NS) atomic_store(&lane->allowed, atomic_load(&lane->allowed) * 2);
      break;
    }
    os_sleep_us(nap);
  }
  if (atomic_load(&lane->passed) != passed || moved_ns == 0) moved_ns = os_now_ns();
}

/* The container is in debt. */
static void wait_for_share(struct lane *lane) {
  struct vc_bucket *bucket = ledger_bucket(guest_ledger, lane->column);
  struct vc_pace pace;
  uint64_t began = os_now_ns(), now = began, nap = 0;
  for (int asked = 0;; asked = 1, now = os_now_ns()) {
    uint64_t now_ms = os_coarse_ms();
    uint32_t permille = ledger_permille(guest_ledger, lane->column, now_ms);
    if (permille >= 1000) break;
    bucket_fill(bucket, now, permille, ledger_credit(guest_ledger, lane->column));
    int64_t level = bucket_level(bucket);
    if (!asked) pace_begin(&pace, level, permille, now);
    nap = pace_nap(&pace, level, permille, now);
    if (nap == 0) break;
    ledger_waiting(guest_ledger, lane->column, now_ms);
    os_sleep_us((uint32_t)(nap / 1000));
  }
  if (now > began) ledger_throttled(guest_ledger, lane->column, (now - began) / 1000);
}

/* Whose turn it is on a card that is given to one container at a time is asked elsewhere (turn.c): copies wait for it too. */
static void (*const reasons[])(struct lane *lane) = {wait_for_room, wait_for_share};

void gate_pass(struct lane *lane) {
  if (lane_is_capturing(lane)) return;
  if (ledger_cores(guest_ledger, lane->column) == 0) return; /* while all of the card is only lent, queues stay short */
  for (unsigned int i = 0; i < sizeof reasons / sizeof *reasons; i++) reasons[i](lane);
}
