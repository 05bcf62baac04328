/* SPDX-License-Identifier: Apache-2.0 */
/* What all processes on the simulated machine share: one mapped file with the machine, the memory of each GPU and one
 * slot per process that uses a GPU.
 * Uses nothing of CUDA or NVML. Tests: tests/unit/fakedriver/test_sharing.py.
 *
 * A slot belongs to the process that holds a POSIX record lock on the slot's byte far beyond the end of the file: the
 * kernel drops the lock when the process dies, however it dies, and tells every process the owner's PID in their own
 * PID namespace. Device memory is accounted per slot; a GPU's sum is a cache that is written under the GPU's lock. A
 * lock whose holder died is taken over and the sum is built again from the slots, so a kill between any two
 * instructions costs nothing. */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include "fake_limits.h"
#include "fake_machine.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
  FAKE_SLOTS = 512,
  FAKE_CALLS = 1024, /* entry points of both libraries together */
  FAKE_FAILURES = 32,
  FAKE_EVENTS = 256, /* ring of XIDs and the like */
  FAKE_LAUNCH_CELLS = 8,
  FAKE_ROUNDS = 1024, /* remembered changes of a GPU's pace */
};

enum fake_kind { FAKE_COMPUTE, FAKE_GRAPHICS, FAKE_MPS }; /* which process list shows a process */

struct fake_slot {
  _Alignas(64) _Atomic uint32_t generation; /* 0: free; else unique to this owner */
  int32_t pid_inside;                       /* as the owner sees itself */
  uint64_t start_time;
  uint32_t kind;
  char name[32];
  _Alignas(64) _Atomic uint64_t used[FAKE_MAX_GPUS];
  _Atomic uint32_t contexts[FAKE_MAX_GPUS];
  _Atomic uint64_t busy_ns[FAKE_MAX_GPUS]; /* of the GPU's time, what this process had */
  _Atomic uint64_t ends[FAKE_MAX_GPUS];    /* when its launched work is done, in the GPU's own time: fake_time.c */
  _Atomic uint64_t managed[FAKE_MAX_GPUS];  /* managed memory, wherever its pages are */
  _Atomic uint64_t resident[FAKE_MAX_GPUS]; /* so much of it on the GPU, and part of USED */
  _Atomic uint64_t moved[FAKE_MAX_GPUS];    /* bytes of pages that its kernels made move */
  struct fake_chain chain;                                  /* the cgroup, and what is above it */
  _Atomic uint64_t counted[FAKE_MAX_GPUS][FAKE_LEVELS];     /* of USED, what counts for its limits: level - 1 */
  _Alignas(64) _Atomic uint64_t launches[FAKE_LAUNCH_CELLS];
  _Alignas(64) _Atomic uint64_t records; /* of events, by threads that have launched */
  _Atomic uint64_t foreign_records;      /* of them, into another stream than the thread's last launch */
};

struct fake_gpu_state {
  _Alignas(64) _Atomic uint64_t used;       /* cache of the sum over all slots; written under LOCK, so on its line */
  _Atomic uint64_t lock;                    /* 0, or generation << 16 | slot + 1 of the holder */
  _Alignas(64) _Atomic uint32_t lost;       /* the GPU fell off the bus */
  /* The GPU's own time: fake_time.c. */
  _Alignas(64) _Atomic uint64_t time_lock; /* 0, or generation << 16 | slot + 1 of the holder */
  uint64_t real_ns, own_ns;                /* CLOCK_MONOTONIC and the own time, at the same instant; 0: not begun */
  uint64_t rounds;
  struct {
    uint64_t real_ns, own_ns;
  } round[FAKE_ROUNDS];
};

struct fake_failure {
  char call[72]; /* empty: free */
  _Atomic uint32_t left;
  int32_t result;
  int32_t pid; /* 0: any process */
  uint32_t generation;
};

/* Memory of several processes: lies in the memory's own file. Changed under the GPU's lock. */
struct fake_share {
  uint64_t payer;              /* generation << 16 | slot + 1; 0: none */
  uint64_t level;              /* of the payer's limits, that it counts at */
  uint64_t holder[FAKE_SLOTS]; /* generation << 32 | references of that process */
  uint8_t rest[4096 - 16];     /* a mapping ends with a page */
};

struct fake_event {
  uint32_t gpu;
  uint64_t type; /* nvmlEventType… bit */
  uint64_t data; /* XID */
};

struct fake_state {
  char magic[16];
  uint64_t machine_hash;
  uint64_t size;
  struct fake_machine machine;
  _Atomic uint32_t armed; /* a call has to check more: counters, failures */
  _Atomic uint32_t counting;
  _Atomic uint32_t generations;
  _Atomic uint32_t slot_high; /* slots at and above are free */
  struct fake_gpu_state gpu[FAKE_MAX_GPUS];
  struct fake_failure failure[FAKE_FAILURES];
  _Atomic uint64_t event_count;
  struct fake_event event[FAKE_EVENTS];
  _Atomic uint64_t calls[FAKE_CALLS];
  /* Held by the owner of the slot as long as it lives; the kernel marks it when the owner dies. It only hints that a
   * reading the record locks is worth its system calls. */
  pthread_mutex_t alive[FAKE_SLOTS];
  struct fake_group group[FAKE_GROUPS]; /* cgroups, under the table lock */
  struct fake_slot slot[FAKE_SLOTS];
};

/* The state of this process: attached once, kept until exit (closing its descriptor would drop the record lock). */
extern struct fake_state *fake_state;

/* Attaches to FAKEDRIVER_STATE, creating it from FAKEDRIVER_MACHINE. 0, or -1 with one line printed to stderr. */
int state_attach(void);
/* Takes a slot for this process. -1: none is free. After a fork the child has none. */
int state_claim_slot(void);
/* Slot of this process or NULL. */
struct fake_slot *state_own_slot(void);

/* One round of waiting for a lock that is held for nanoseconds: the holder may also have lost its processor. */
static inline void state_spin(unsigned spins) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (spins % 16 == 15) sched_yield();
}

/* Takes BYTES of GPU's memory for this process (needs a slot). -1: not enough, even after dead processes' memory
 * came back, or more than a limit allows. LEVEL: what it counts for, and goes back with it; NULL: for no limit. */
int state_charge(unsigned gpu, uint64_t bytes, unsigned *level);
void state_uncharge(unsigned gpu, uint64_t bytes, unsigned level);

/* The same for memory that is taken and given back in pieces of other sizes. */
int state_charge_bill(unsigned gpu, uint64_t bytes, struct fake_bill *bill);
void state_uncharge_bill(unsigned gpu, uint64_t bytes, struct fake_bill *bill);

/* Managed memory takes what the GPU has left and makes room for other memory. */
void state_charge_managed(unsigned gpu, uint64_t bytes);
void state_uncharge_managed(unsigned gpu, uint64_t bytes);
/* All managed memory of this process comes to the GPU, as far as there is room beside what cannot move. Returns how
 * many bytes move, in both directions together. */
uint64_t state_touch_managed(unsigned gpu);
/* The same of BYTES, for a prefetch. */
uint64_t state_fetch_managed(unsigned gpu, uint64_t bytes);

/* One reference more of this process to shared memory of BYTES. PAYS: it has charged them, at
 * LEVEL; else they are charged to it if no living process pays. -1: no room. */
int state_share_join(struct fake_share *share, unsigned gpu, uint64_t bytes, int pays, unsigned level);
/* One less. The charge goes with the payer's last, or to another process that still refers to the memory. */
void state_share_leave(struct fake_share *share, unsigned gpu, uint64_t bytes);

/* Gives back what dead processes held. */
void state_reap(void);
/* Owner's PID in the caller's namespace; 0: invisible there; -1: dead. */
pid_t state_slot_pid(unsigned slot);

/* The slot table and the groups are changed by one thread of one process at a time. */
void state_table_lock(void);
void state_table_unlock(void);
/* Stops all charges on a GPU, for a process without a slot. Under the table lock. */
void state_gpu_lock(unsigned gpu);
void state_gpu_unlock(unsigned gpu);

/* Takes LOCK for this process, also from a holder that died. */
void state_lock(_Atomic uint64_t *lock);

void state_raise_event(unsigned gpu, uint64_t type, uint64_t data);
uint64_t state_now_ns(void); /* CLOCK_MONOTONIC */

/* Adds an injected failure of CALL / removes all and everything else that was injected. */
int state_add_failure(const char *call, int result, uint32_t count, pid_t pid);
void state_reset_control(void);
void state_rearm(void);

/* The same when the kernel marked a death; a few loads otherwise. */
static inline void state_reap_if_hinted(void) {
  unsigned high = atomic_load_explicit(&fake_state->slot_high, memory_order_relaxed);
  for (unsigned i = 0; i < high; i++) {
    /* The futex word is the first of glibc's pthread_mutex_t; bit 30 is FUTEX_OWNER_DIED. It also appears when only
     * the thread that claimed the slot has ended: then the record lock decides, each time. */
    const volatile uint32_t *word = (const volatile uint32_t *)&fake_state->alive[i];
    if (__builtin_expect(*word >> 30 & 1, 0)) {
      state_reap();
      return;
    }
  }
}

#endif
