/* SPDX-License-Identifier: Apache-2.0 */
/* Advice for managed memory, checked and forgotten, and prefetches and discards, also in batches: prefetches move pages.
 * Must not depend on how memory is laid out. Tests: tests/integration/test_native_oversub.py. */
#include "fake_work.h"

enum { PREFETCH = 3 }; /* pages that are fetched at once come so much faster than those that kernels wait for */

static CUresult managed(CUdeviceptr address, size_t bytes) {
  CUdeviceptr base;
  const struct block *block = arena_find(address, &base);
  if (!block || block->kind != BLOCK_MANAGED || !bytes || bytes > block->size - (address - base))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static CUresult check_device(int device) {
  return device == CU_DEVICE_CPU || device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
static CUresult check_location(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? check_device(location.id) : CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  ENTER(cuMemAdvise);
  (void)advice;
  TRY(managed(address, bytes));
  return check_device(device);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  ENTER(cuMemAdvise_v2);
  (void)advice;
  TRY(managed(address, bytes));
  return check_location(location);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, int device, CUstream stream) {
  CUstream own;
  TRY(stream_check(stream, &own));
  TRY(managed(address, bytes));
  TRY(check_device(device));
  if (device == CU_DEVICE_CPU) return CUDA_SUCCESS;
  CUcontext context;
  TRY(stream_context(stream, &context));
  uint64_t moved = state_fetch_managed(device_gpu[device], bytes) >> 20, each = fake_state->machine.paging_ns;
  if (moved && each) work_launch(context, stream, moved * each / PREFETCH);
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuMemPrefetchAsync, (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream), prefetch,
           (address, bytes, device, stream))

static CUresult prefetch_to(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                            CUstream stream) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  TRY(check_location(location));
  return prefetch(address, bytes, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU, stream);
}
ENTRY_PTSZ(cuMemPrefetchAsync_v2,
           (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream), prefetch_to,
           (address, bytes, location, flags, stream))

/* --- batches ---------------------------------------------------------------------------------------------------- */

struct ranges {
  CUdeviceptr *address;
  size_t *bytes, count;
};

struct places {
  CUmemLocation *location;
  size_t *first, number; /* the range with which each one's begin */
};

static CUresult check_ranges(const struct ranges *r, unsigned long long flags, CUstream stream) {
  if (!r->address || !r->bytes || !r->count || flags || !stream) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < r->count; i++) TRY(managed(r->address[i], r->bytes[i]));
  return CUDA_SUCCESS;
}

static CUresult check_places(const struct places *p, size_t count) {
  if (!p->location || !p->first || !p->number || p->number > count || p->first[0] != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < p->number; i++)
    if (p->first[i] >= count || (i && p->first[i] <= p->first[i - 1])) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static CUresult prefetch_all(struct ranges r, struct places p, unsigned long long flags, CUstream stream) {
  TRY(check_ranges(&r, flags, stream));
  TRY(check_places(&p, r.count));
  for (size_t i = 0, at = 0; i < r.count; i++) {
    if (at + 1 < p.number && p.first[at + 1] == i) at++;
    TRY(prefetch_to(r.address[i], r.bytes[i], p.location[at], 0, stream));
  }
  return CUDA_SUCCESS;
}

/* What is read of a discarded range may be anything: here it is zero. Its pages stay where they are. */
static CUresult discard_all(struct ranges r, unsigned long long flags, CUstream stream) {
  CUcontext context;
  TRY(check_ranges(&r, flags, stream));
  TRY(stream_context(stream, &context));
  for (size_t i = 0; i < r.count; i++) memset((void *)r.address[i], 0, r.bytes[i]);
  return CUDA_SUCCESS;
}

static CUresult discard_and_prefetch_all(struct ranges r, struct places p, unsigned long long flags, CUstream stream) {
  TRY(check_places(&p, r.count));
  TRY(discard_all(r, flags, stream));
  return prefetch_all(r, p, flags, stream);
}

#define PLACES \
  (CUdeviceptr *address, size_t *bytes, size_t count, CUmemLocation *location, size_t *first, size_t number, \
   unsigned long long flags, CUstream stream)
#define AS_RANGES ((struct ranges){address, bytes, count})
#define AS_PLACES ((struct places){location, first, number})
ENTRY_PTSZ(cuMemPrefetchBatchAsync, PLACES, prefetch_all, (AS_RANGES, AS_PLACES, flags, stream))
ENTRY_PTSZ(cuMemDiscardAndPrefetchBatchAsync, PLACES, discard_and_prefetch_all, (AS_RANGES, AS_PLACES, flags, stream))
ENTRY_PTSZ(cuMemDiscardBatchAsync,
           (CUdeviceptr *address, size_t *bytes, size_t count, unsigned long long flags, CUstream stream), discard_all,
           (AS_RANGES, flags, stream))

/* --- attachment and attributes ---------------------------------------------------------------------------------- */

static CUresult attach(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  CUstream own;
  TRY(stream_check(stream, &own));
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  return managed(address, bytes ? bytes : 1);
}
ENTRY_PTSZ(cuStreamAttachMemAsync, (CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags), attach,
           (stream, address, bytes, flags))

static CUresult range_attribute(void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address,
                                size_t bytes) {
  if (!data || size % 4 || !size) return CUDA_ERROR_INVALID_VALUE;
  TRY(managed(address, bytes));
  int none = attribute == CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ? 0 : CU_DEVICE_INVALID;
  for (size_t i = 0; i < size / 4; i++) ((int *)data)[i] = none;
  return CUDA_SUCCESS;
}
ENTRY(cuMemRangeGetAttribute,
      (void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address, size_t bytes), range_attribute,
      (data, size, attribute, address, bytes))

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes, size_t count,
                                 CUdeviceptr address, size_t bytes) {
  ENTER(cuMemRangeGetAttributes);
  if (!data || !sizes || !attributes || !count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) TRY(range_attribute(data[i], sizes[i], attributes[i], address, bytes));
  return CUDA_SUCCESS;
}
