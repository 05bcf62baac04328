/* SPDX-License-Identifier: Apache-2.0 */
/* Stream memory operations, stream attributes and occupancy: small things around launches.
 * Uses no graphs. Tests: tests/unit/fakedriver/test_streams.py. */
#include "fake_code.h"
#include "fake_work.h"

static CUresult reach(CUstream stream, CUdeviceptr address, unsigned bytes, void **memory) {
  CUcontext context;
  TRY(stream_context(stream, &context));
  if (address % bytes || !(*memory = memory_reach(address, bytes))) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned bytes) {
  void *memory;
  TRY(reach(stream, address, bytes, &memory));
  memcpy(memory, &value, bytes);
  return CUDA_SUCCESS;
}

/* A condition that is false when it is reached would block the stream; nothing else runs here that could make it
 * true. */
static CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags, unsigned bytes) {
  void *memory;
  uint64_t seen = 0;
  TRY(reach(stream, address, bytes, &memory));
  memcpy(&seen, memory, bytes);
  int met;
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      met = bytes == 4 ? (int32_t)((uint32_t)seen - (uint32_t)value) >= 0 : (int64_t)(seen - value) >= 0;
      break;
    case CU_STREAM_WAIT_VALUE_EQ:
      met = seen == value;
      break;
    case CU_STREAM_WAIT_VALUE_AND:
      met = (seen & value) != 0;
      break;
    default:
      met = ~(seen | value) != 0;
  }
  return met ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult write_checked(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags, unsigned bytes) {
  return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : write_value(stream, address, value, bytes);
}
#define VALUE_OPERATIONS(bits, suffix) \
  ENTRY_PTSZ(cuStreamWriteValue##bits##suffix, (CUstream s, CUdeviceptr a, cuuint##bits##_t v, unsigned flags), \
             write_checked, (s, a, v, flags, bits / 8)) \
  ENTRY_PTSZ(cuStreamWaitValue##bits##suffix, (CUstream s, CUdeviceptr a, cuuint##bits##_t v, unsigned flags), \
             wait_value, (s, a, v, flags, bits / 8))
VALUE_OPERATIONS(32, )
VALUE_OPERATIONS(32, _v2)
VALUE_OPERATIONS(64, )
VALUE_OPERATIONS(64, _v2)

static CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams *list, unsigned flags) {
  if (!list || !count || count > 256 || flags) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; i++) {
    const CUstreamBatchMemOpParams *p = &list[i];
    switch ((int)p->operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        TRY(wait_value(stream, p->waitValue.address, p->waitValue.value, p->waitValue.flags, 4));
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        TRY(wait_value(stream, p->waitValue.address, p->waitValue.value64, p->waitValue.flags, 8));
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        TRY(write_checked(stream, p->writeValue.address, p->writeValue.value, p->writeValue.flags, 4));
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        TRY(write_checked(stream, p->writeValue.address, p->writeValue.value64, p->writeValue.flags, 8));
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        break;
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}
#define BATCH (CUstream stream, unsigned count, CUstreamBatchMemOpParams *list, unsigned flags)
ENTRY_PTSZ(cuStreamBatchMemOp, BATCH, batch, (stream, count, list, flags))
ENTRY_PTSZ(cuStreamBatchMemOp_v2, BATCH, batch, (stream, count, list, flags))

/* --- attributes of streams -------------------------------------------------------------------------------------- */

static CUresult get_attribute(CUstream stream, CUstreamAttrID id, CUstreamAttrValue *value) {
  CUstream own;
  NONNULL(value);
  TRY(stream_check(stream, &own));
  memset(value, 0, sizeof *value);
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = own ? own->priority : 0;
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamGetAttribute, (CUstream stream, CUstreamAttrID id, CUstreamAttrValue *value), get_attribute,
           (stream, id, value))

static CUresult set_attribute(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value) {
  CUstream own;
  NONNULL(value);
  TRY(stream_check(stream, &own));
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY && own) own->priority = value->priority;
  return CUDA_SUCCESS;
}
ENTRY_PTSZ(cuStreamSetAttribute, (CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value), set_attribute,
           (stream, id, value))

/* --- occupancy -------------------------------------------------------------------------------------------------- */

static CUresult blocks_per_multiprocessor(int *blocks, CUfunction function, int block) {
  NONNULL(blocks);
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  if (block <= 0 || block > 1024) return CUDA_ERROR_INVALID_VALUE;
  *blocks = 2048 / ((block + 31) / 32 * 32);
  if (*blocks > 32) *blocks = 32;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block, size_t shared) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  (void)shared;
  return blocks_per_multiprocessor(blocks, function, block);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block,
                                                              size_t shared, unsigned flags) {
  ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  (void)shared;
  return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : blocks_per_multiprocessor(blocks, function, block);
}

static CUresult best_block(int *grid, int *block, CUfunction function, int limit) {
  CUcontext context;
  if (!grid || !block) return CUDA_ERROR_INVALID_VALUE;
  TRY(context_current(&context));
  if (!handle_valid(&functions, function)) return CUDA_ERROR_INVALID_HANDLE;
  *block = limit > 0 && limit < 1024 ? limit : 1024;
  *grid = 2 * (int)fake_state->machine.gpu[context->gpu].multiprocessors;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
                                          size_t shared, int limit) {
  ENTER(cuOccupancyMaxPotentialBlockSize);
  (void)shared_of, (void)shared;
  return best_block(grid, block, function, limit);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                   CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                   unsigned flags) {
  ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags);
  (void)shared_of, (void)shared;
  return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : best_block(grid, block, function, limit);
}
