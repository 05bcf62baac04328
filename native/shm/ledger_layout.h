/* SPDX-License-Identifier: Apache-2.0 */
/* The usage ledger as bytes: a header page and an array of slots, one per process. Frozen like the limits page. Version
 * 2 is version 1 with a second array behind it, which has for each slot how its bytes are split between the GPU and
 * the host. It is made for containers that may use host memory, and for no others. The slot's two lock bytes lie beyond
 * the data at LEDGER_LOCKS + slot and LEDGER_HOLDS + slot (ledger_hold.h): locks need no bytes there, and no read of
 * the file can meet them. Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger.c. */
#ifndef VC_SHM_LEDGER_LAYOUT_H
#define VC_SHM_LEDGER_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "shm.h"

#define LEDGER_MAGIC "VCUDALED"
#define LEDGER_VERSION 1u
#define LEDGER_VERSION_SPLIT 2u
#define LEDGER_HEADER_BYTES 4096u
#define LEDGER_LOCKS (UINT64_C(1) << 32) /* record locks: the slot's owner */
#define LEDGER_HOLDS (UINT64_C(1) << 33) /* open-file-description locks: the owner lives */

/* Word of a usage cell: 48 bits of bytes under a 16-bit count of changes. Two equal readings therefore mean that
 * nothing happened in between (up to 65536 changes between two loads), which is what makes a sum over several words a
 * true snapshot. Adding or subtracting BYTES with USED_TICK on top changes both in one instruction. */
typedef _Atomic uint64_t used_t;
#define USED_BYTES_MASK ((UINT64_C(1) << 48) - 1)
#define USED_TICK (UINT64_C(1) << 48)

enum { LEDGER_MARKS = 16, LEDGER_LINGERING = 64 };

/* Word of a slot's peak cell: 48 bits of bytes, and above them how much of the used bytes the process has not declared
 * but measured on itself, in whole units. Older readers, which have only the peak, mask those bits away, and older
 * writers leave them zero. Bytes that do not fit into 16 bits of units are not counted. */
#define PEAK_BYTES_MASK USED_BYTES_MASK
#define PEAK_UNDECLARED_SHIFT 48
#define LEDGER_UNDECLARED_MAX (UINT64_C(0xffff) * VC_UNDECLARED_UNIT)

/* A slot's word of work under way: a bit for each column, and above them the time at which the process wrote it, in
 * ticks of 4 ms that wrap. A word older than LEDGER_FLIGHT_MS is of a process that is gone or stopped, or that runs an
 * older library. */
enum { LEDGER_FLIGHT_SHIFT = 16, LEDGER_FLIGHT_TICK_MS = 4, LEDGER_FLIGHT_MS = 60 };

/* A column's compute share, zero in ledgers of versions that have none. */
struct ledger_share {
  struct vc_bucket bucket;
  _Atomic uint64_t polled_ns;    /* up to here the polls of all processes have been charged */
  _Atomic uint64_t throttled_us; /* launches were held so long ever since, all threads added up */
  _Atomic uint64_t waiting_ms;   /* a launch was held at this time */
  uint64_t reserved;
};

/* What the driver refused in a column although the ledger had room, zero in ledgers of versions that have none. */
struct ledger_refusal {
  _Atomic uint64_t count;
  _Atomic uint64_t bytes; /* asked by the last of them; 0: nobody knew */
};

enum { LEDGER_ALLOWANCES = 1 };

struct ledger_slot {
  _Atomic uint32_t generation; /* raised whenever the slot changes hands */
  _Atomic int32_t pid;         /* in the owner's PID namespace; 0: the slot was never used or was given back */
  _Atomic uint64_t hold;       /* 0: the owner holds the slot as long as it lives; else ledger_hold.c */
  _Atomic uint64_t refused;
  char name[16];
  _Atomic uint8_t mark[LEDGER_MARKS]; /* one per thread: not 0 while that thread decides a charge */
  _Atomic uint32_t shared_marks;      /* for the threads beyond those */
  _Atomic uint32_t flight;            /* LEDGER_FLIGHT_SHIFT */
  used_t used[VC_MAX_GPUS]; /* and, from the end, allowances, where there are at most half as many GPUs */
  _Atomic uint64_t peak[VC_MAX_GPUS]; /* and the measured undeclared bytes: PEAK_UNDECLARED_SHIFT */
};

struct ledger_file {
  char magic[8];
  uint32_t version;
  uint32_t size; /* of the whole file */
  uint32_t gpu_count;
  uint32_t slot_count;
  uint8_t id[16];
  uint8_t uuid[VC_MAX_GPUS][16];
  uint64_t checksum;            /* of all above */
  _Atomic uint32_t high_water;  /* slots at and above this index were never used */
  _Atomic uint32_t lingering_high; /* records at and above this index were never used */
  uint32_t features; /* LEDGER_ALLOWANCES: written when the file is made, for libraries that all have them */
  uint8_t reserved1[4];
  _Atomic uint64_t peak[VC_MAX_GPUS];
  _Atomic uint64_t lingering[LEDGER_LINGERING]; /* charges that end by themselves: ledger_linger.c */
  struct ledger_share share[VC_MAX_GPUS];
  struct ledger_refusal refusal[VC_MAX_GPUS];
  uint8_t reserved2[LEDGER_HEADER_BYTES - 448 - 8 * LEDGER_LINGERING - (8 + 64 + 16) * VC_MAX_GPUS];
  _Atomic uint64_t context_cost[VC_MAX_GPUS]; /* what a context takes, and where that was found: ledger_learned.c */
  struct ledger_slot slot[VC_MAX_SLOTS];
};

/* How a slot's bytes are split, in words like its own. Each of the two is a ledger by itself, with a limit of its own:
 * a difference of sums that are read one after the other would be no certain number. */
struct ledger_split {
  used_t real[VC_MAX_GPUS];    /* in the GPU's own memory */
  used_t managed[VC_MAX_GPUS]; /* may lie on the host */
  _Atomic uint32_t busy;       /* threads that wait for work under way */
  _Atomic uint32_t asked_ms;   /* a thread asked whether its work is done, and it was not; 0: none did */
  uint64_t reserved[7];
};

/* A column's part in the time slices of its GPU. */
struct ledger_time_slice {
  _Atomic uint64_t progress;   /* pieces of work submitted ever since */
  _Atomic uint64_t held_us;    /* threads were held so long ever since, all added up */
  _Atomic uint64_t waiting_ms; /* one was held at this time */
  uint64_t reserved[5];
};

struct ledger_file_split {
  struct ledger_file file;
  struct ledger_split split[VC_MAX_SLOTS];
  struct ledger_time_slice time_slice[VC_MAX_GPUS];
};

_Static_assert(sizeof(struct ledger_split) == 320, "a word per GPU and part, and a cache line");
_Static_assert(sizeof(struct ledger_time_slice) == 64, "columns share no cache line");
_Static_assert(offsetof(struct ledger_file_split, split) == sizeof(struct ledger_file), "behind what version 1 has");
_Static_assert(sizeof(struct ledger_file_split) < LEDGER_LOCKS, "lock bytes lie beyond this too");
_Static_assert(sizeof(struct ledger_slot) == 320 && sizeof(struct ledger_slot) % 64 == 0, "slots share no cache line");
_Static_assert(sizeof(struct ledger_share) == 64, "columns share no cache line");
_Static_assert(offsetof(struct ledger_file, share) == 960, "where old ledgers have zeros, on a cache line");
_Static_assert(offsetof(struct ledger_file, refusal) == 1984, "behind them, where old ledgers have zeros");
_Static_assert(offsetof(struct ledger_slot, mark) % 8 == 0 && LEDGER_MARKS % 8 == 0, "marks can be read as words");
_Static_assert(offsetof(struct ledger_slot, used) == 64, "identity and usage are on different lines");
_Static_assert(offsetof(struct ledger_file, slot) == LEDGER_HEADER_BYTES, "slots begin on a page");
_Static_assert(sizeof(struct ledger_file) < LEDGER_LOCKS, "lock bytes lie beyond the data");
_Static_assert(VC_MAX_BYTES <= USED_BYTES_MASK / 2, "a limit plus a request fits a word");

/* The bytes in a word of context_cost: from the top 32 bits of namespace, one that marks a valid word, 7 unused, 24 of
 * grains. 0: it is none. */
enum { LEARNED_NAMESPACE_SHIFT = 32, LEARNED_GRAIN = 256 };
#define LEARNED (UINT64_C(1) << 31)
#define LEARNED_GRAINS_MASK ((UINT64_C(1) << 24) - 1)
static inline uint64_t ledger_learned_bytes(uint64_t word) {
  return (word & LEARNED) != 0 ? (word & LEARNED_GRAINS_MASK) * LEARNED_GRAIN : 0;
}

/* Bytes of a file of VERSION; 0: no such version. */
uint64_t ledger_size(uint32_t version);

/* Checks the constant part of a header; its file may be larger than the size in it, never smaller: SIZE bytes. */
int ledger_check(const struct ledger_file *file, uint64_t size);
uint64_t ledger_checksum(const struct ledger_file *file);

#endif
