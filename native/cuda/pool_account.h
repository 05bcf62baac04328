/* SPDX-License-Identifier: Apache-2.0 */
/* What a memory pool is charged: the larger of what it has reserved and what lives in it.
 *
 * A pool takes memory from the GPU in chunks and gives it back when it is trimmed or something synchronises. How much
 * it holds only the driver can tell, so it is asked after each allocation, and again after a synchronisation when
 * something has been freed. In between the charge may be more than the pool holds, and less only while a call is on its
 * way:
 *   begin    the sum of the live blocks must be charged before the driver is called, rounded up to whole chunks
 *   settle   what the pool really reserved is charged or given back; the caller undoes what does not fit
 * When the driver does not answer, a pool is taken to have grown by whole chunks for each allocation, until it does.
 * A thread that holds a pool's lock never waits for another one's.
 * Uses the driver's attributes of a pool and the ledger, no stream. Tests: tests/integration/test_native_pool.py. */
#ifndef VC_CUDA_POOL_ACCOUNT_H
#define VC_CUDA_POOL_ACCOUNT_H

#include <stdatomic.h>
#include <stdint.h>

#include "ledger.h"
#include "lock.h"
#include "nvidia.h"

enum pool_kind {
  POOL_UNUSED,   /* the place is empty */
  POOL_COUNTED,
  POOL_NO_SHARE, /* on a device of which the container has no share: every allocation is refused */
  POOL_FREE,     /* host memory, or another process pays */
};

/* In which order something is freed, and what was synchronised: a stream of the program's by its handle, which is only
 * compared, since the driver may no longer know it; one that takes over the handle before what was freed has been
 * carried out is taken for it. */
enum {
  LINE_NONE = 0,    /* in no order; or something was synchronised, and there is no telling what */
  LINE_DEFAULT = 1, /* the default stream that the threads of a context share */
  LINE_THREAD = 2,  /* with an address of the thread: its own */
  LINE_CONTEXT = 3, /* a whole context */
  LINE_SEVERAL = 5,
  LINE_MARK = 7,
};
static inline int line_is_of_program(uint64_t line) { return (line & LINE_MARK) == 0; }

/* Guarded by its lock; what is atomic is also read without it. */
struct pool {
  struct long_lock lock;
  _Atomic(CUmemoryPool) handle; /* NULL: destroyed; blocks may live on */
  _Atomic uint64_t charge;      /* in the ledger */
  uint64_t live;                /* blocks in the table, and those on their way */
  uint64_t reserved;            /* as last read */
  uint64_t line;                /* of what was freed asynchronously, and may still be waiting */
  _Atomic uint32_t column; /* and COLUMN_MANAGED, COLUMN_CONVERTED */
  uint32_t in_flight; /* allocations between begin and settle */
  uint16_t growing; /* of those now or before under way: the GPU is not measured until all are settled */
  _Atomic uint8_t kind;
  _Atomic uint8_t dirty;   /* something was freed since the last reading */
  uint8_t in_debt;           /* it holds more than fits */
  uint8_t rigid;           /* the program may want of its blocks what managed memory cannot do: never changes */
  uint8_t unread;          /* RESERVED is the most that it can be */
  uint8_t doubtful;        /* a context of its device has gone, and it could not be asked what that has left */
  uint32_t birth;          /* serial number of its entry: tells it from another one in the same place */
  uint64_t step;           /* chunk as far as was seen; 0: nothing yet */
  struct ledger_lingering lingering; /* destroyed, and all blocks freed: how its charge ends by itself */
  uint64_t since_ms;                 /* and when that was */
  uint64_t allowed;                  /* what it was charged before it was owing */
} __attribute__((aligned(64)));

/* Whether it is charged to a column. */
int pool_counts(const struct pool *pool, uint32_t column);

/* Some pool is dirty: what a synchronising call reads. */
extern _Atomic int pool_any_dirty __attribute__((visibility("hidden")));

/* An allocation of BYTES. CUDA_ERROR_OUT_OF_MEMORY: it does not fit as things are; nothing happened. */
CUresult pool_begin(struct pool *pool, uint64_t bytes);

/* After the driver succeeded. CUDA_ERROR_OUT_OF_MEMORY: the pool has grown by more than fits; the caller makes room and
 * asks pool_correct(), or frees the block and calls pool_released(). */
CUresult pool_settle(struct pool *pool, uint64_t bytes);
CUresult pool_correct(struct pool *pool);

/* It did not fit and cannot be freed either: what the pool holds is charged all the same. */
void pool_charge_anyway(struct pool *pool);

/* After the driver refused what was begun. */
void pool_cancel(struct pool *pool, uint64_t bytes);

/* A block was freed; LINE: in which stream's order. */
void pool_released(struct pool *pool, uint64_t bytes, uint64_t line);

/* Reads what the pool holds and gives back what it no longer does. 1: it was charged more before. */
int pool_reread(struct pool *pool);

/* The same after a synchronisation of LINE. Any may have let something be carried out; that of a destroyed pool's line,
 * or of everything that there is, has. */
int pool_reread_after(struct pool *pool, uint64_t line);

/* The driver gives back what the pool does not need. */
void pool_trim(struct pool *pool);

/* 1: the pool holds more than fits, because an allocation that had to be undone made it grow. It gives nothing until
 * that fits or is given back. */
int pool_is_in_debt(struct pool *pool);

/* A context of the pool's device is gone, and perhaps the pool's blocks. 1: everything in it; the caller forgets them.
 * When the driver does not answer, everything stays charged, and the pool is doubtful: the caller asks again later. */
int pool_was_emptied(struct pool *pool);

/* The driver destroyed the pool, which was trimmed and read before: what lives in it, or waits for its stream, stays
 * charged until it is freed, and that is known to have been carried out or was some seconds ago. How much it is cannot
 * be asked any more, and not every program synchronises in a way that tells. */
void pool_destroyed(struct pool *pool);

/* 1: the pool holds more than its live blocks explain, although it was trimmed: frees are waiting in some stream. */
int pool_waits(struct pool *pool);

void pool_mark_dirty(struct pool *pool);

#endif
