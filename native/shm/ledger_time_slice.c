/* SPDX-License-Identifier: Apache-2.0 */
/* Time slices of a GPU: their state in the page, what the processes write of themselves, and how the agent reads that.
 * Clock: CLOCK_MONOTONIC, which processes in containers share with the host (one in a time namespace of its own sees
 * every slice as over, and goes on).
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger_split.c, tests/unit/vcuda/test_time_slices.py. */
#include <stddef.h>
#include <stdlib.h>

#include "ledger_state.h"
#include "os.h"

/* A waiting thread writes the time again and again, and may be without a processor for a while; likewise one that
 * polls. */
enum { WAITING_MS = 500, ASKING_MS = 100 };

uint64_t time_slice_now_ms(void) { return os_coarse_ms(); }

int ledger_time_slice(const struct ledger *ledger, uint32_t column) {
  uint64_t word = atomic_load_explicit(&ledger->share_of[column]->time_slice, memory_order_relaxed);
  if (ledger->split == NULL || word == 0 || !sealed_is_valid(word)) return VC_TIME_SLICE_FREE;
  uint64_t value = sealed_value(word);
  int state = (int)(value & 3);
  uint64_t end = value >> VC_TIME_SLICE_SHIFT, now = os_coarse_ms();
  return now < end && end - now <= VC_TIME_SLICE_LONGEST_MS ? state : VC_TIME_SLICE_FREE;
}

void ledger_time_slice_progress(struct ledger *ledger, uint32_t column) {
  atomic_fetch_add_explicit(&ledger->time_slice[column].progress, 1, memory_order_relaxed);
}

void ledger_time_slice_waiting(struct ledger *ledger, uint32_t column) {
  atomic_store_explicit(&ledger->time_slice[column].waiting_ms, os_coarse_ms(), memory_order_relaxed);
}

void ledger_time_slice_held(struct ledger *ledger, uint32_t column, uint64_t microseconds) {
  atomic_fetch_add_explicit(&ledger->time_slice[column].held_us, microseconds, memory_order_relaxed);
}

/* In the own slot alone. What goes wrong when the slot changes hands in between is a count that is too small, never
 * negative: it is the slot's own and is cleared with it. */
void ledger_time_slice_busy(struct ledger *ledger, int more) {
  int32_t own = atomic_load_explicit(&ledger->slot, memory_order_relaxed);
  if (own < 0) return;
  _Atomic uint32_t *busy = &ledger->split[own].busy;
  if (more)
    atomic_fetch_add_explicit(busy, 1, memory_order_relaxed);
  else if (atomic_load_explicit(busy, memory_order_relaxed) != 0)
    atomic_fetch_sub_explicit(busy, 1, memory_order_relaxed);
}

void ledger_time_slice_queried(struct ledger *ledger) {
  int32_t own = atomic_load_explicit(&ledger->slot, memory_order_relaxed);
  if (own < 0) return;
  uint32_t now = (uint32_t)os_coarse_ms();
  atomic_store_explicit(&ledger->split[own].asked_ms, now != 0 ? now : 1, memory_order_relaxed);
}

static int is_busy(const struct ledger_split *split) {
  if (split->busy != 0) return 1;
  return split->asked_ms != 0 && (uint32_t)os_coarse_ms() - split->asked_ms <= ASKING_MS;
}

static void add_slot(const struct ledger_split *split, struct vc_time_slice_usage *out, uint32_t count) {
  uint32_t busy = (uint32_t)is_busy(split);
  for (uint32_t c = 0; c < count; c++) {
    out[c].managed += split->managed[c] & USED_BYTES_MASK;
    out[c].real += split->real[c] & USED_BYTES_MASK;
    out[c].busy += busy;
    out[c].alive++;
  }
}

static int read_slots(const struct os_file *file, uint32_t used, struct vc_time_slice_usage *out, uint32_t count) {
  int32_t pid;
  for (uint32_t i = 0; i < used; i++) {
    struct ledger_split split;
    if (os_lock_owner(file->fd, LEDGER_LOCKS + i, &pid) == 0 && ledger_is_held(file->fd, i) == 0) continue;
    int status = os_read_from(file, &split, sizeof split, offsetof(struct ledger_file_split, split) + i * sizeof split);
    if (status != VC_OK) return status;
    add_slot(&split, out, count);
  }
  return VC_OK;
}

static int read_time_slices(const struct os_file *file, struct ledger_file *header, struct vc_time_slice_usage *out,
                            uint32_t max) {
  struct ledger_time_slice time_slice[VC_MAX_GPUS];
  if (file->size < sizeof *header) return VC_ECORRUPT;
  int status = os_read_from(file, header, LEDGER_HEADER_BYTES, 0);
  if (status == VC_OK) status = ledger_check(header, file->size);
  if (status != VC_OK || header->version != LEDGER_VERSION_SPLIT) return status;
  status = os_read_from(file, time_slice, sizeof time_slice, offsetof(struct ledger_file_split, time_slice));
  if (status != VC_OK) return status;
  uint32_t count = header->gpu_count < max ? header->gpu_count : max;
  for (uint32_t c = 0; c < count; c++) {
    uint32_t waiting = os_coarse_ms() - time_slice[c].waiting_ms <= WAITING_MS;
    out[c] = (struct vc_time_slice_usage){
        .progress = time_slice[c].progress, .held_us = time_slice[c].held_us, .waiting = waiting};
  }
  uint32_t used = header->high_water < VC_MAX_SLOTS ? header->high_water : VC_MAX_SLOTS;
  status = read_slots(file, used, out, count);
  return status == VC_OK ? (int)count : status;
}

static int read_time_slices_of(const char *path, int now, struct vc_time_slice_usage *out, uint32_t max) {
  struct os_file file;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  file.now = now;
  struct ledger_file *header = calloc(1, sizeof *header); /* its slots stay untouched */
  status = header != NULL ? read_time_slices(&file, header, out, max) : VC_EIO;
  free(header);
  os_close(file.fd);
  return status;
}

int ledger_read_time_slices(const char *path, struct vc_time_slice_usage *out, uint32_t max) {
  return read_time_slices_of(path, 0, out, max);
}

int ledger_read_time_slices_now(const char *path, struct vc_time_slice_usage *out, uint32_t max) {
  return read_time_slices_of(path, 1, out, max);
}
