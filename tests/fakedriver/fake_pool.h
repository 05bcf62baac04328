/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools as the parts of the simulated driver that deal with them share them.
 * Tests: tests/unit/fakedriver/test_pools.py. */
#ifndef FAKE_POOL_H
#define FAKE_POOL_H

#include "fake_work.h"

enum pool_kind { POOL_DEVICE, POOL_MANAGED, POOL_HOST }; /* host memory is not counted */
enum { POOL_PENDING = 14 };

/* Freed on a stream whose work up to there ends at UNTIL. */
struct pending {
  const void *stream;
  uint64_t until, bytes;
};

struct CUmemPoolHandle_st {
  struct handle handle;
  unsigned gpu;
  enum pool_kind kind;
  uint8_t is_default, imported, destroyed; /* destroyed: something lives in it or is pending */
  unsigned handle_types;
  uint64_t used, used_high, reserved, reserved_high, threshold;
  uint64_t most; /* maxSize, 0: none */
  int reuse[3];
  uint64_t pending_bytes;
  struct pending pending[POOL_PENDING];
  struct fake_bill bill; /* for RESERVED */
  uint64_t padding[5];
};

int pool_valid(CUmemoryPool pool);
unsigned pool_index(CUmemoryPool pool);
CUmemoryPool pool_make(unsigned gpu, enum pool_kind kind); /* NULL: too many */
/* *PLACE, made when it is asked for the first time. */
CUresult pool_made_once(CUmemoryPool *place, unsigned gpu, enum pool_kind kind, CUmemoryPool *out);
CUresult pool_default(CUdevice device, CUmemoryPool *out);
CUresult pool_current(CUdevice device, CUmemoryPool *out);
void pool_make_current(CUdevice device, CUmemoryPool pool);
void pool_trim(CUmemoryPool pool, uint64_t keep);
void pool_destroy(CUmemoryPool pool);

#endif
