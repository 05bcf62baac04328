/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger as a process that is attached to it has it in memory, for the other files of the ledger's process side.
 * Uses nothing of CUDA or NVML, and no file outside this folder includes it. Tests: tests/native/test_ledger.c. */
#ifndef VC_SHM_LEDGER_STATE_H
#define VC_SHM_LEDGER_STATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "ledger.h"
#include "ledger_hold.h"
#include "ledger_layout.h"
#include "limits_layout.h"
#include "lock.h"

/* What this process remembers of its allowance on a GPU (ledger_allowance.h), and the terms under which it was
 * taken. */
struct ledger_allowed {
  _Atomic uint64_t bytes; /* 0: none */
  _Atomic uint64_t limit, unhooked;
  _Atomic int renewing; /* by a thread, which alone reads and writes the next */
  uint32_t hold_off;
};

struct ledger {
  const struct limits_page *limits;
  struct ledger_file *file;
  struct ledger_split *split; /* NULL: a file of version 1, where all bytes are the GPU's */
  struct ledger_time_slice *time_slice;   /* likewise */
  uint32_t columns;
  const struct limits_gpu *limit_of[VC_MAX_GPUS]; /* column -> entry of the limits page, by UUID */
  const struct limits_share *share_of[VC_MAX_GPUS];
  size_t mapped; /* bytes */
  int allowances; /* ledger_allowance.h applies */
  _Atomic int32_t slot;       /* ours; -1: none yet */
  _Atomic uint32_t generation; /* of our slot when we took it */
  struct ledger_hold hold;    /* the open file and the lock of our slot; under claiming, like the slot */
  struct long_lock claiming;  /* around slot changes; POSIX locks do not exclude threads of one process */
  _Atomic uint64_t swept_ms;  /* when dead slots were last searched, coarse clock */
  _Atomic uint32_t threads;   /* marks handed out to threads so far */
  struct ledger_allowed allowed[VC_MAX_GPUS];
  ledger_usage_fn usage;
  uint64_t seen_changes, seen_ms; /* of the page, when it last changed: ledger_share.c */
  ledger_usage_fn managed_usage; /* the part of it that may lie on the host */
};

static inline uint64_t used_bytes(uint64_t word) { return word & USED_BYTES_MASK; }

static inline uint64_t ledger_memory(const struct ledger *ledger, uint32_t column) {
  return sealed_value(atomic_load_explicit(&ledger->limit_of[column]->memory_bytes, memory_order_relaxed));
}

static inline uint32_t ledger_slots_in_use(const struct ledger *ledger) {
  uint32_t n = atomic_load_explicit(&ledger->file->high_water, memory_order_seq_cst);
  return n < VC_MAX_SLOTS ? n : VC_MAX_SLOTS; /* the file is the container's: bound its number */
}

#endif
