/* SPDX-License-Identifier: Apache-2.0 */
/* A limits page and a ledger for tests: two GPUs, and the sums that must hold. */
#ifndef TESTS_NATIVE_LEDGER_FIXTURE_H
#define TESTS_NATIVE_LEDGER_FIXTURE_H

#include "check.h"
#include "ledger.h"
#include "ledger_slots.h"
#include "shm.h"

#define GIB (UINT64_C(1) << 30)

static const uint8_t fixture_id[16] = {7, 7, 7};
static const uint8_t gpu_a[16] = {0xaa}, gpu_b[16] = {0xbb};

/* Creates both files with LIMIT bytes on GPU a and 2 × LIMIT on GPU b. */
static inline void fixture_create(uint64_t limit) {
  struct vc_gpu_limit gpus[2] = {{.memory_bytes = limit}, {.memory_bytes = 2 * limit}};
  memcpy(gpus[0].uuid, gpu_a, 16);
  memcpy(gpus[1].uuid, gpu_b, 16);
  CHECK_EQ(ledger_create(test_path("ledger"), fixture_id, gpus, 2, 0666), 0);
  CHECK_EQ(limits_create(test_path("limits"), fixture_id, gpus, 2, 0644), 0);
}

/* Attachments live until the process ends, by contract; kept here so that a leak checker sees them as reachable. */
static struct ledger *fixture_attached[8];

static inline struct ledger *fixture_attach(void) {
  static unsigned next;
  struct ledger *ledger;
  char why[512] = "";
  int status = ledger_attach(test_path("limits"), test_path("ledger"), &ledger, why, sizeof why);
  if (status != 0) fprintf(stderr, "%s\n", why);
  CHECK_EQ(status, 0);
  fixture_attached[next++ % 8] = ledger;
  return ledger;
}

static inline uint64_t fixture_used(struct ledger *ledger, uint32_t column) {
  uint64_t limit, used;
  ledger_view(ledger, column, &limit, &used);
  return used;
}

/* What the ledger says at this instant, dead or alive, without touching it. */
static inline uint64_t fixture_sum(const struct ledger *ledger, uint32_t column) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < VC_MAX_SLOTS; i++) sum += used_bytes(atomic_load(&ledger->file->slot[i].used[column]));
  return sum;
}

#endif
