/* SPDX-License-Identifier: Apache-2.0 */
/* The compute share's words in page and ledger. */
#define _GNU_SOURCE
#include <unistd.h>

#include "ledger_fixture.h"
#include "os.h"

TEST(share_permille_of_the_page) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_permille(ledger, 0, 1000), 1000); /* no share: no limit */
  CHECK_EQ(limits_set_cores(test_path("limits"), gpu_a, 30), 0);
  CHECK_EQ(ledger_permille(ledger, 0, 2000), 300);
  CHECK_EQ(ledger_permille(ledger, 1, 2000), 1000);
  CHECK_EQ(limits_set_allowed(test_path("limits"), gpu_a, 850), 0);
  CHECK_EQ(ledger_permille(ledger, 0, 3000), 850);
  CHECK_EQ(ledger_permille(ledger, 0, 4999), 850);
  CHECK_EQ(ledger_permille(ledger, 0, 5000), 300); /* a page that is silent for two seconds lends nothing */
  CHECK_EQ(limits_set_allowed(test_path("limits"), gpu_a, 850), 0);
  CHECK_EQ(ledger_permille(ledger, 0, 6000), 850);
  CHECK_EQ(limits_set_allowed(test_path("limits"), gpu_a, 0), 0);
  CHECK_EQ(ledger_permille(ledger, 0, 6001), 300);
  CHECK_EQ(limits_set_cores(test_path("limits"), gpu_a, 0), 0);
  CHECK_EQ(limits_set_allowed(test_path("limits"), gpu_a, 200), 0);
  CHECK_EQ(ledger_permille(ledger, 0, 6002), 1000); /* without a share nothing is limited */
  CHECK_EQ(limits_set_credit(test_path("limits"), gpu_a, 77), 0);
  CHECK_EQ(ledger_credit(ledger, 0), 77);
  CHECK_EQ(ledger_credit(ledger, 1), 0);
}

TEST(share_work_under_way) {
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  uint64_t now = 1000000;
  CHECK_EQ(ledger_flying(ledger, 0, now), 0);
  ledger_fly(ledger, 0, now); /* nothing to say: no slot is taken for it */
  CHECK_EQ(atomic_load(&ledger->slot), -1);
  ledger_fly(ledger, 1, now);
  CHECK_EQ(ledger_flying(ledger, 0, now), 1);
  CHECK_EQ(ledger_flying(ledger, 1, now), 0);
  CHECK_EQ(ledger_flying(ledger, 0, now + LEDGER_FLIGHT_MS), 1);
  CHECK_EQ(ledger_flying(ledger, 0, now + LEDGER_FLIGHT_MS + 2 * LEDGER_FLIGHT_TICK_MS), 0); /* it is gone */
  CHECK_EQ(ledger_flying(ledger, 0, now - LEDGER_FLIGHT_TICK_MS), 1); /* the reader's clock is a little behind */
  ledger_fly(ledger, 2, now);
  CHECK_EQ(ledger_flying(ledger, 0, now), 0);
  CHECK_EQ(ledger_flying(ledger, 1, now), 1);
  ledger_fly(ledger, 0, now);
  CHECK_EQ(ledger_flying(ledger, 1, now), 0);
  /* The time wraps. */
  for (uint64_t at = UINT64_C(65536) * 4 - 40; at < UINT64_C(65536) * 4 + 40; at += 4) {
    ledger_fly(ledger, 1, at);
    CHECK_EQ(ledger_flying(ledger, 0, at + 8), 1);
    CHECK_EQ(ledger_flying(ledger, 0, at + 200), 0);
  }
}

TEST(share_polls_divide_the_time) {
  fixture_create(GIB);
  struct ledger *one = fixture_attach(), *other = fixture_attach();
  uint64_t second = 1000000000;
  ledger_poll(one, 0, 10 * second);
  CHECK_EQ(ledger_poll(other, 0, 10 * second + 300), 300);
  CHECK_EQ(ledger_poll(one, 0, 10 * second + 500), 200);
  CHECK_EQ(ledger_poll(other, 0, 10 * second + 400), 0); /* who is late finds that it was paid */
  CHECK_EQ(ledger_poll(one, 0, 10 * second + 500), 0);
  CHECK_EQ(ledger_poll(one, 0, 100 * second), second); /* however long no process polled */
  CHECK_EQ(ledger_poll(one, 0, 5 * second), 0);        /* the clock began again */
  CHECK_EQ(ledger_poll(one, 0, 5 * second + 9), 9);
}

TEST(share_read_from_outside) {
  struct vc_share_usage found[VC_MAX_GPUS];
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  bucket_spend(ledger_bucket(ledger, 1), 5000000);
  ledger_throttled(ledger, 1, 1234);
  ledger_fly(ledger, 2, os_coarse_ms());
  ledger_waiting(ledger, 1, os_coarse_ms());
  CHECK_EQ(ledger_read_shares(test_path("ledger"), found, VC_MAX_GPUS), 2);
  CHECK_EQ(memcmp(found[1].uuid, gpu_b, 16), 0);
  CHECK_EQ(found[1].spent_us, 5000);
  CHECK_EQ(found[1].throttled_us, 1234);
  CHECK_EQ(found[1].flying, 1);
  CHECK_EQ(found[1].waiting, 1);
  CHECK_EQ(found[0].flying, 0);
  CHECK_EQ(found[0].waiting, 0);
  CHECK_EQ(ledger_read_shares(test_path("ledger"), found, 1), 1);
  CHECK_EQ(ledger_read_shares(test_path("limits"), found, 1), VC_ECORRUPT);
  CHECK_EQ(ledger_read_shares(test_path("none"), found, 1), VC_ENOENT);
}
