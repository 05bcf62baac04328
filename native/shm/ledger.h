/* SPDX-License-Identifier: Apache-2.0 */
/* The process side of a usage ledger: attach, charge, give back, read. Lock-free; theory of operation in
 * ledger_charge.c.
 * Uses nothing of CUDA or NVML: GPUs are columns, found by UUID.
 * Tests: tests/native/test_ledger.c, test_ledger_race.c, test_ledger_kill.c, test_ledger_step.c. */
#ifndef VC_SHM_LEDGER_H
#define VC_SHM_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#include "shm.h"

struct ledger;

/* Bytes that the calling process holds of a column according to its own allocation tables. */
typedef uint64_t (*ledger_usage_fn)(uint32_t column);

/* Where bytes are: a container with a share of host memory has a limit for each, besides the one for both. */
enum ledger_part {
  LEDGER_REAL,    /* in the GPU's own memory; all there is without such a share */
  LEDGER_MANAGED, /* in memory that the driver moves between GPU and host */
};

/* Maps the limits page read-only and the ledger read-write after checking both. Takes no slot: a process that only
 * reads (nvidia-smi) leaves no trace. The result lives until the process ends. WHY (may be NULL) receives one sentence
 * for the user with cause and remedy. */
int ledger_attach(const char *limits_path, const char *ledger_path, struct ledger **out, char *why, size_t why_size);

/* The same with a page that limits_map() mapped, and which then belongs to the ledger; unless there is an error. */
struct limits_page;
int ledger_attach_under(const struct limits_page *limits, const char *ledger_path, struct ledger **out, char *why,
                        size_t why_size);

uint32_t ledger_gpu_count(const struct ledger *ledger);

/* Column of a GPU, or VC_ENOENT when the container was given no share of it. */
int ledger_column(const struct ledger *ledger, const uint8_t uuid[16]);
void ledger_column_uuid(const struct ledger *ledger, uint32_t column, uint8_t uuid[16], uint32_t *flags);

/* Charges BYTES to the calling process (taking a slot on the first charge). VC_ENOMEM: it does not fit, nothing
 * changed. Any other negative status: the ledger cannot be used, nothing changed. Thread-safe, lock-free. */
int ledger_charge(struct ledger *ledger, uint32_t column, uint64_t bytes);

/* Gives BYTES of an earlier charge back; never goes below zero. */
void ledger_uncharge(struct ledger *ledger, uint32_t column, uint64_t bytes);

/* Whether the container's ledger counts host memory at all. Never changes. */
int ledger_is_split(const struct ledger *ledger);

/* The same two for a part. LEDGER_MANAGED without that is VC_ENOMEM. A refusal is counted as one only with COUNTED:
 * a caller that still has another way was not refused. */
int ledger_charge_part(struct ledger *ledger, enum ledger_part part, uint32_t column, uint64_t bytes, int counted);
void ledger_uncharge_part(struct ledger *ledger, enum ledger_part part, uint32_t column, uint64_t bytes);

/* Of the quota so many bytes at most may be in the GPU's own memory, and so many at most may be managed. */
uint64_t ledger_physical(const struct ledger *ledger, uint32_t column);
uint64_t ledger_host_budget(const struct ledger *ledger, uint32_t column);

/* Charges BYTES that are held already, whether they fit or not, and nothing when the process has no slot. */
void ledger_charge_anyway(struct ledger *ledger, uint32_t column, uint64_t bytes);

/* The driver had no memory for an allocation of BYTES (0: unknown) that the ledger had room for: counted for readers. */
void ledger_driver_refused(struct ledger *ledger, uint32_t column, uint64_t bytes);

/* BYTES of what the calling process has charged end by themselves after LEDGER_LINGER_MS. 1: noted, and OUT is the
 * record. 0: there is no place to note it, or no whole 2 MiB; nothing changed. */
enum { LEDGER_LINGER_MS = 3000 };
struct ledger_lingering {
  uint32_t record;
  uint64_t word;
};
int ledger_linger(struct ledger *ledger, uint32_t column, uint64_t bytes, struct ledger_lingering *out);
/* Whether they are still charged. */
int ledger_lingers(const struct ledger *ledger, const struct ledger_lingering *lingering);
/* Ends them now; 1: they were still charged. */
int ledger_linger_end(struct ledger *ledger, const struct ledger_lingering *lingering);
/* Ends what is over, of all processes. Every reading and every refusal begins with it. */
void ledger_lapse(struct ledger *ledger);

/* What the calling process has charged. STATE differs whenever anything was charged or given back in between. */
struct ledger_holding {
  uint64_t bytes;
  uint64_t state;
};

/* VC_ENOENT: the process has no slot (any more). */
int ledger_holding(const struct ledger *ledger, uint32_t column, struct ledger_holding *out);

/* Notes in the slot how much of the process's charge was measured and not declared, for readers of the ledger. */
void ledger_note_undeclared(struct ledger *ledger, uint32_t column, uint64_t bytes);

/* What an agent has measured beyond the charges of all processes and published in the limits page. */
uint64_t ledger_unhooked(const struct ledger *ledger, uint32_t column);

/* What the container sees of a GPU: its limit, and what all its processes use (never more than 2^48 - 1). */
void ledger_view(struct ledger *ledger, uint32_t column, uint64_t *limit, uint64_t *used);

/* Bytes that a context takes of a GPU, as a process of the container found out that is listed by NVML under its own
 * PID. 1: known. */
int ledger_learned_context(struct ledger *ledger, uint32_t column, uint64_t *bytes);
/* Whether such a process lives, or lived, in the calling one's PID namespace, so that NVML lists this one likewise. */
int ledger_learned_here(struct ledger *ledger);
/* Publishes it for the others. BYTES: a multiple of 256, at most 4 GiB; else nothing happens. */
void ledger_learn_context(struct ledger *ledger, uint32_t column, uint64_t bytes);

/* Percent of the GPU's time that the container may use; 0: no limit. */
uint32_t ledger_cores(const struct ledger *ledger, uint32_t column);

/* Permille of the GPU's time that the container may use now; 1000: no limit. What was lent counts only while an agent
 * keeps writing the page. NOW_MS: os_coarse_ms(). */
uint32_t ledger_permille(struct ledger *ledger, uint32_t column, uint64_t now_ms);
/* The container's bucket of GPU time in a column, and the credit that the page gives it. */
struct vc_bucket *ledger_bucket(struct ledger *ledger, uint32_t column);
uint64_t ledger_credit(const struct ledger *ledger, uint32_t column);

/* The calling process has work under way in the columns of BITS. */
void ledger_fly(struct ledger *ledger, uint32_t bits, uint64_t now_ms);
/* Processes of the container that have. */
uint32_t ledger_flying(const struct ledger *ledger, uint32_t column, uint64_t now_ms);
/* Nanoseconds since the last poll of any process of the container, which now is this one; at most a second. */
uint64_t ledger_poll(struct ledger *ledger, uint32_t column, uint64_t now_ns);
/* A launch is held; and how long it was in the end. */
void ledger_waiting(struct ledger *ledger, uint32_t column, uint64_t now_ms);
void ledger_throttled(struct ledger *ledger, uint32_t column, uint64_t microseconds);

/* The state of the time slice in a column of a container with host memory: VC_TIME_SLICE_FREE also without one, and
 * when a slice is over. */
int ledger_time_slice(const struct ledger *ledger, uint32_t column);
/* A piece of work is submitted. A thread is held back, and was for so long. It waits for work under way, or no more. */
void ledger_time_slice_progress(struct ledger *ledger, uint32_t column);
void ledger_time_slice_waiting(struct ledger *ledger, uint32_t column);
void ledger_time_slice_held(struct ledger *ledger, uint32_t column, uint64_t microseconds);
void ledger_time_slice_busy(struct ledger *ledger, int more);
/* A thread asked whether its work is done, and it is not. */
void ledger_time_slice_queried(struct ledger *ledger);

struct ledger_process {
  int32_t pid; /* in the caller's PID namespace */
  uint64_t bytes;
};

/* Live processes that hold memory of the GPU: writes at most MAX, returns how many there are. */
int ledger_processes(struct ledger *ledger, uint32_t column, struct ledger_process *out, uint32_t max);

/* Whether a live process of the quota has this PID in the caller's namespace, whatever memory it holds. */
int ledger_has_process(struct ledger *ledger, int32_t pid);

/* Sets the functions that give what the process really holds. They are called only when the process lost its slot (it
 * unmapped what holds it, and another process reclaimed the slot) and registers again. MANAGED_USAGE, the part of it
 * that is managed, is called only where the ledger is split. */
void ledger_set_usage(struct ledger *ledger, ledger_usage_fn usage, ledger_usage_fn managed_usage);

/* In the child after fork(): the parent's slot is not ours. Async-signal-safe. */
void ledger_after_fork(struct ledger *ledger);

#endif
