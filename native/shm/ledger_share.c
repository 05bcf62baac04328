/* SPDX-License-Identifier: Apache-2.0 */
/* The compute share's side of page and ledger: what a container may use now, its bucket, and which of its processes
 * have work under way. A process writes that into a word of its slot, with the time, so the word of a killed process
 * goes out of date.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_share.c, tests/integration/test_native_share.py. */
#include <stddef.h>
#include <string.h>

#include "ledger_slots.h"
#include "os.h"

enum { WHOLE = 1000, STALE_PAGE_MS = 2000, LONGEST_POLL_NS = 1000000000, WAITING_MS = 100 };

static const struct limits_share *share_of(const struct ledger *ledger, uint32_t column) {
  return &ledger->limits->share[ledger->limit_of[column] - ledger->limits->gpu];
}

/* An arbiter that lends writes the page again and again; what a dead one has lent is worth nothing. Threads that come
 * here at once store the same. */
static int page_is_alive(struct ledger *ledger, uint64_t now_ms) {
  uint64_t changes = atomic_load_explicit(&ledger->limits->changes, memory_order_relaxed);
  if (changes != __atomic_load_n(&ledger->seen_changes, __ATOMIC_RELAXED)) {
    __atomic_store_n(&ledger->seen_changes, changes, __ATOMIC_RELAXED);
    __atomic_store_n(&ledger->seen_ms, now_ms, __ATOMIC_RELAXED);
  }
  return now_ms - __atomic_load_n(&ledger->seen_ms, __ATOMIC_RELAXED) < STALE_PAGE_MS;
}

uint32_t ledger_cores(const struct ledger *ledger, uint32_t column) {
  return (uint32_t)sealed_value(atomic_load_explicit(&ledger->limit_of[column]->cores_percent, memory_order_relaxed));
}

uint32_t ledger_permille(struct ledger *ledger, uint32_t column, uint64_t now_ms) {
  uint32_t cores = ledger_cores(ledger, column);
  uint64_t allowed = sealed_or(atomic_load_explicit(&share_of(ledger, column)->allowed_permille, memory_order_relaxed), 0);
  if (cores == 0 || cores > 100) return WHOLE;
  if (allowed == 0 || allowed > WHOLE || !page_is_alive(ledger, now_ms)) return cores * (WHOLE / 100);
  return (uint32_t)allowed;
}

struct vc_bucket *ledger_bucket(struct ledger *ledger, uint32_t column) { return &ledger->file->share[column].bucket; }

uint64_t ledger_credit(const struct ledger *ledger, uint32_t column) {
  return sealed_or(atomic_load_explicit(&share_of(ledger, column)->credit_us, memory_order_relaxed), 0);
}

static uint32_t tick_of(uint64_t now_ms) { return (uint32_t)(now_ms / LEDGER_FLIGHT_TICK_MS) & 0xffff; }

static int flies(uint32_t word, uint32_t column, uint64_t now_ms) {
  uint32_t age = (tick_of(now_ms) - (word >> LEDGER_FLIGHT_SHIFT)) & 0xffff;
  /* A reader's clock may be a tick behind. */
  return (word >> column & 1) && (age <= LEDGER_FLIGHT_MS / LEDGER_FLIGHT_TICK_MS || age == 0xffff);
}

void ledger_fly(struct ledger *ledger, uint32_t bits, uint64_t now_ms) {
  if (bits != 0 && ledger_own_slot(ledger) != VC_OK) return;
  int32_t own = atomic_load(&ledger->slot);
  if (own < 0) return;
  atomic_store(&ledger->file->slot[own].flight, bits | tick_of(now_ms) << LEDGER_FLIGHT_SHIFT);
}

static uint32_t count_flying(const struct ledger_slot *slots, uint32_t count, uint32_t column, uint64_t now_ms) {
  uint32_t flying = 0;
  for (uint32_t i = 0; i < count; i++)
    flying += (uint32_t)flies(atomic_load_explicit(&slots[i].flight, memory_order_relaxed), column, now_ms);
  return flying;
}

uint32_t ledger_flying(const struct ledger *ledger, uint32_t column, uint64_t now_ms) {
  return count_flying(ledger->file->slot, ledger_slots_in_use(ledger), column, now_ms);
}

uint64_t ledger_poll(struct ledger *ledger, uint32_t column, uint64_t now_ns) {
  _Atomic uint64_t *polled = &ledger->file->share[column].polled_ns;
  uint64_t last = atomic_load(polled);
  if (last > now_ns && last - now_ns < LONGEST_POLL_NS) return 0; /* another process polled a moment later */
  if (!atomic_compare_exchange_strong(polled, &last, now_ns)) return 0;
  if (last > now_ns) return 0; /* the clock began again */
  return now_ns - last < LONGEST_POLL_NS ? now_ns - last : LONGEST_POLL_NS;
}

void ledger_waiting(struct ledger *ledger, uint32_t column, uint64_t now_ms) {
  atomic_store_explicit(&ledger->file->share[column].waiting_ms, now_ms, memory_order_relaxed);
}

void ledger_throttled(struct ledger *ledger, uint32_t column, uint64_t microseconds) {
  atomic_fetch_add_explicit(&ledger->file->share[column].throttled_us, microseconds, memory_order_relaxed);
}

/* Slots are read a few at a time, those that were ever used: the file is not ours to map. */
static int read_flying(const struct os_file *file, const struct ledger_file *header, struct vc_share_usage *out, uint32_t count) {
  struct ledger_slot slots[16];
  uint32_t used = header->high_water < VC_MAX_SLOTS ? header->high_water : VC_MAX_SLOTS;
  uint32_t most = sizeof slots / sizeof *slots;
  uint64_t now_ms = os_coarse_ms();
  for (uint32_t first = 0; first < used; first += most) {
    uint32_t some = used - first < most ? used - first : most;
    uint64_t at = offsetof(struct ledger_file, slot) + first * sizeof *slots;
    int status = os_read_from(file, slots, some * sizeof *slots, at);
    if (status != VC_OK) return status;
    for (uint32_t c = 0; c < count; c++) out[c].flying += count_flying(slots, some, c, now_ms);
  }
  return VC_OK;
}

/* HEADER has room for no slots: not to be seen through by the compiler, which takes that for a mistake. */
static __attribute__((noinline)) int read_shares(const struct os_file *file, struct ledger_file *header,
                                                 struct vc_share_usage *out, uint32_t max) {
  if (file->size < sizeof *header) return VC_ECORRUPT;
  int status = os_read_from(file, header, LEDGER_HEADER_BYTES, 0);
  if (status == VC_OK) status = ledger_check(header, file->size);
  if (status != VC_OK) return status;
  uint32_t count = header->gpu_count < max ? header->gpu_count : max;
  for (uint32_t c = 0; c < count; c++) {
    const struct ledger_share *share = &header->share[c];
    uint32_t waiting = os_coarse_ms() - share->waiting_ms <= WAITING_MS;
    out[c] = (struct vc_share_usage){
        .spent_us = share->bucket.spent_ns / 1000, .throttled_us = share->throttled_us, .waiting = waiting};
    memcpy(out[c].uuid, header->uuid[c], sizeof out[c].uuid);
  }
  status = read_flying(file, header, out, count);
  return status == VC_OK ? (int)count : status;
}

static int read_file(const struct os_file *file, struct vc_share_usage *out, uint32_t max) {
  _Alignas(64) uint8_t header[LEDGER_HEADER_BYTES];
  return read_shares(file, (struct ledger_file *)(void *)header, out, max);
}

static int read_shares_of(const char *path, int now, struct vc_share_usage *out, uint32_t max) {
  struct os_file file;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  file.now = now;
  status = read_file(&file, out, max);
  os_close(file.fd);
  return status;
}

int ledger_read_shares(const char *path, struct vc_share_usage *out, uint32_t max) {
  return read_shares_of(path, 0, out, max);
}

int ledger_read_shares_now(const char *path, struct vc_share_usage *out, uint32_t max) {
  return read_shares_of(path, 1, out, max);
}

int ledger_open_shares(const char *path) {
  struct os_file file;
  int status = os_open(path, 0, &file);
  return status == VC_OK ? file.fd : status;
}

/* That a file has become shorter is found out by reading it. */
int ledger_read_open_shares(int fd, struct vc_share_usage *out, uint32_t max) {
  const struct os_file file = {.fd = fd, .now = 1, .size = UINT64_MAX};
  return read_file(&file, out, max);
}

void ledger_close(int fd) { os_close(fd); }
