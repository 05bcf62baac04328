/* SPDX-License-Identifier: Apache-2.0 */
/* The private table through which nvidia-smi lists processes; native/nvml/private_table.c tells what is known of it.
 * Must not depend on how memory is allocated. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 300, WORD_CAN_LIST = 72, WORD_COMPUTE = 213, WORD_GRAPHICS = 214, WORD_MPS = 215 };

/* Rows of branch 525 lack the bytes of protected memory before the name. */
enum { NAME_BYTES = 4096, HEAD_525 = sizeof(nvmlProcessInfo_v2_t), HEAD = sizeof(nvmlProcessDetail_v1_t) };
_Static_assert(HEAD_525 == 24 && HEAD == 32, "as nvidia-smi reads them");

static long branch(void) { return strtol(fake_state->machine.driver_version, NULL, 10); }

static size_t head(void) {
  if (fake_state->machine.private_head) return fake_state->machine.private_head;
  return branch() < 535 ? HEAD_525 : HEAD;
}

static void private_process(void *info, const struct nvml_process *process) {
  nvmlProcessInfo_v2_t row = {.pid = (unsigned)process->pid,
                              .usedGpuMemory = process->used,
                              .gpuInstanceId = 0xffffffff,
                              .computeInstanceId = 0xffffffff};
  memset(info, 0, head() + NAME_BYTES);
  memcpy(info, &row, sizeof row);
  nvml_process_name(row.pid, (char *)info + head(), NAME_BYTES);
}

#define PRIVATE_LIST(name, kind) \
  static nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *rows) { \
    return nvml_answer_list(device, kind, count, rows, head() + NAME_BYTES, private_process); \
  }
PRIVATE_LIST(private_compute, FAKE_COMPUTE)
PRIVATE_LIST(private_graphics, FAKE_GRAPHICS)
PRIVATE_LIST(private_mps, FAKE_MPS)

static nvmlReturn_t private_unknown(void) { return NVML_ERROR_NOT_SUPPORTED; }

/* Without it `nvidia-smi pmon` leaves a GPU out. */
static nvmlReturn_t private_can_list(nvmlDevice_t device, unsigned *out) {
  TRY(nvml_check(device));
  *out = 1;
  return NVML_SUCCESS;
}

/* Sizes seen in the real libraries; what lies between 555 and 580 is made up, as is anything newer. */
static uint64_t table_bytes(void) {
  static const struct {
    long branch;
    uint64_t bytes;
  } sizes[] = {{556, 2104}, {555, 2040}, {550, 2008}, {535, 1960}, {525, 1904}, {0, 1704}};
  unsigned i = 0;
  while (branch() < sizes[i].branch) i++;
  return sizes[i].bytes;
}

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id) {
  ENTER(nvmlInternalGetExportTable);
  static const uint8_t known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                    0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  static union {
    uint64_t bytes; /* of the table, this word included */
    void *word[WORDS];
  } private_table;
  if (!table || !id) return NVML_ERROR_INVALID_ARGUMENT;
  if (memcmp(id, known, sizeof known) != 0) return NVML_ERROR_NOT_FOUND;
  for (unsigned i = 0; i < WORDS; i++) private_table.word[i] = (void *)private_unknown;
  private_table.word[WORD_CAN_LIST] = (void *)private_can_list;
  private_table.word[WORD_COMPUTE] = (void *)private_compute;
  private_table.word[WORD_GRAPHICS] = (void *)private_graphics;
  private_table.word[WORD_MPS] = (void *)private_mps;
  private_table.bytes = table_bytes();
  *table = &private_table;
  return NVML_SUCCESS;
}
