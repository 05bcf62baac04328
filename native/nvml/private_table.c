/* SPDX-License-Identifier: Apache-2.0 */
/* nvidia-smi lists processes through three entries of a table that no header describes. Programs get a copy of the
 * table in which these entries show the container's processes. Word 0 is the table's size in bytes, so that a caller
 * skips what a table does not have. Observed:
 *     branch 470: 1704 bytes, no lists in it (nvidia-smi uses the public functions)
 *     525: 1904, 535: 1960, 550: 2008, 555: 2040 bytes; the lists are words 213, 214 and 215
 *     580: nvidia-smi calls the same words and reads the same rows as from 535 on
 * The table has only grown and no entry has moved, so 525 and all branches from 535 to 580 are taken as known.
 * Of later branches the rows are unknown, and so is what else the table has: nothing can be written into a list of
 * theirs. In a PID namespace of the container's own the kernel leaves other processes out. So there a table that ends
 * behind the lists has these three entries, and a call passes on as it came; but first the driver's public lists of
 * that GPU must show the container's processes alone (driver_list.c), else the call is refused.
 * Everywhere else programs get the table cut off before the lists: nvidia-smi then shows none, and so none of other
 * containers.
 * Charges nothing itself. Tests: tests/integration/test_native_views.py, test_native_nvidia_smi.py, make
 * test-nvidia-smi. */
#include <stdlib.h>
#include <string.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "driver_list.h"
#include "gpu.h"
#include "place.h"
#include "process.h"

enum { WORD_COMPUTE = 213, WORD_GRAPHICS = 214, WORD_MPS = 215, WORDS_AT_MOST = 1024 };
enum { BYTES_BEFORE_LISTS = WORD_COMPUTE * 8, BYTES_WITH_LISTS = (WORD_MPS + 1) * 8, BYTES_525 = 1904 };

static const unsigned char table_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                           0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

/* A row is this, since 535 eight bytes of protected memory, and a name. Newer programs show no row without a name. */
struct row {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
};

enum { LAST_KNOWN = 580 }; /* branch */
enum { NAME_BYTES = 4096, HEAD_525 = sizeof(struct row), HEAD_535 = sizeof(struct row) + 8 };

_Static_assert(HEAD_525 == 24, "as nvidia-smi reads it");

typedef nvmlReturn_t list_function(nvmlDevice_t device, unsigned int *count, char *rows);

/* A list of unknown arguments: as many as x86 passes in registers go through, of which the first is the device. */
typedef nvmlReturn_t any_list_function(nvmlDevice_t device, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d,
                                       uintptr_t e);

union table {
  uint64_t bytes; /* of the table, this word included */
  list_function *word[WORDS_AT_MOST];
  any_list_function *any[WORDS_AT_MOST];
};

static VC_LARGE union table rewritten, cut, passing; /* what programs get */
static const union table *rewritten_from; /* never written twice: programs may be reading it */
static list_function *real_compute, *real_graphics, *real_mps;
static size_t head_bytes;

/* The real function checks the arguments, into the caller's array as it always does; what it put there is wiped. */
static nvmlReturn_t check(list_function *real, nvmlDevice_t device, unsigned int *count, char *rows) {
  unsigned int written = count == NULL ? 0 : *count, room = written;
  if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t result = real(device, &written, rows);
  if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;
  if (rows != NULL) memset(rows, 0, (written < room ? written : room) * (head_bytes + NAME_BYTES));
  return NVML_SUCCESS;
}

static void put_row(char *out, const struct ledger_process *process) {
  struct row row = {.pid = (unsigned int)process->pid,
                    .bytes = process->bytes,
                    .gpu_instance = 0xFFFFFFFF,
                    .compute_instance = 0xFFFFFFFF};
  memset(out, 0, head_bytes + NAME_BYTES);
  memcpy(out, &row, sizeof row);
  process_name(row.pid, out + head_bytes, NAME_BYTES);
}

static nvmlReturn_t list_compute(nvmlDevice_t device, unsigned int *count, char *rows) {
  struct process_list list;
  nvmlReturn_t checked = check(real_compute, device, count, rows);
  if (checked != NVML_SUCCESS) return checked;
  process_list_read(device, &list);
  unsigned int room = rows == NULL ? 0 : *count;
  *count = list.count;
  if (list.count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < list.count; i++) put_row(rows + i * (head_bytes + NAME_BYTES), &list.process[i]);
  return NVML_SUCCESS;
}

static nvmlReturn_t list_nothing(list_function *real, nvmlDevice_t device, unsigned int *count, char *rows) {
  nvmlReturn_t checked = check(real, device, count, rows);
  if (checked == NVML_SUCCESS) *count = 0;
  return checked;
}

static nvmlReturn_t list_graphics(nvmlDevice_t device, unsigned int *count, char *rows) {
  return list_nothing(real_graphics, device, count, rows);
}

static nvmlReturn_t list_mps(nvmlDevice_t device, unsigned int *count, char *rows) {
  return list_nothing(real_mps, device, count, rows);
}

static any_list_function *passed_compute, *passed_graphics, *passed_mps;

/* This error alone ends `nvidia-smi pmon`, which asks again without end after others (525 to 555 were tried). All else
 * of nvidia-smi shows no processes after any. */
#define PASS(name, passed)                                                                                        \
  static nvmlReturn_t name(nvmlDevice_t device, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e) { \
    return driver_list_is_own(device) ? passed(device, a, b, c, d, e) : NVML_ERROR_NO_PERMISSION;                 \
  }
PASS(pass_compute, passed_compute)
PASS(pass_graphics, passed_graphics)
PASS(pass_mps, passed_mps)

/* 580 of 580.65.06; 0: NVML does not say (it is not initialised). */
static long driver_branch(void) {
  char version[80];
  if (real_nvml.nvmlSystemGetDriverVersion == NULL) return 0;
  if (real_nvml.nvmlSystemGetDriverVersion(version, sizeof version) != NVML_SUCCESS) return 0;
  return strtol(version, NULL, 10);
}

/* Bytes of a row before its name; 0: this branch is not known. */
static size_t head_of(long branch) {
  if (branch == 525) return HEAD_525;
  return branch >= 535 && branch <= LAST_KNOWN ? HEAD_535 : 0;
}

static int has_lists(const union table *table) {
  return table->bytes >= BYTES_525 && table->bytes <= sizeof *table && table->word[WORD_COMPUTE] != NULL &&
         table->word[WORD_GRAPHICS] != NULL && table->word[WORD_MPS] != NULL;
}

static const union table *rewrite(const union table *table, size_t head) {
  if (rewritten_from == table) return &rewritten;
  memcpy(&rewritten, table, table->bytes);
  head_bytes = head;
  real_compute = table->word[WORD_COMPUTE];
  real_graphics = table->word[WORD_GRAPHICS];
  real_mps = table->word[WORD_MPS];
  rewritten.word[WORD_COMPUTE] = list_compute;
  rewritten.word[WORD_GRAPHICS] = list_graphics;
  rewritten.word[WORD_MPS] = list_mps;
  rewritten_from = table;
  return &rewritten;
}

static const union table *cut_off(const union table *table) {
  memcpy(&cut, table, BYTES_BEFORE_LISTS);
  cut.bytes = BYTES_BEFORE_LISTS;
  return &cut;
}

/* The same table each time, so that one which programs read already keeps its words. */
static const union table *pass_lists(const union table *table) {
  memcpy(&passing, table, BYTES_BEFORE_LISTS);
  passed_compute = table->any[WORD_COMPUTE];
  passed_graphics = table->any[WORD_GRAPHICS];
  passed_mps = table->any[WORD_MPS];
  passing.any[WORD_COMPUTE] = pass_compute;
  passing.any[WORD_GRAPHICS] = pass_graphics;
  passing.any[WORD_MPS] = pass_mps;
  passing.bytes = BYTES_WITH_LISTS;
  return &passing;
}

nvmlReturn_t vc_nvmlInternalGetExportTable(const void **table, const void *id) {
  nvmlReturn_t result = real_nvml.nvmlInternalGetExportTable(table, id);
  if (result != NVML_SUCCESS || table == NULL || *table == NULL || id == NULL) return result;
  if (memcmp(id, table_id, sizeof table_id) != 0) return result;
  const union table *driver = *table;
  if (driver->bytes <= BYTES_BEFORE_LISTS) return result;
  long branch = has_lists(driver) ? driver_branch() : 0;
  size_t head = head_of(branch);
  int passes = branch > LAST_KNOWN && pid_namespace_is_the_containers();
  lock_take(&gpu_lock);
  *table = head != 0 ? rewrite(driver, head) : passes ? pass_lists(driver) : cut_off(driver);
  lock_give(&gpu_lock);
  return result;
}
