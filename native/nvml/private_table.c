/* Real nvidia-smi lists processes through three slots of a table that no header describes. Programs get a copy of the
 * table in which these slots show the container's processes. Seen on drivers 535 (1960 bytes) and 550, 555 (2008
 * bytes); a table of another size or id is passed through untouched, because slot numbers are no interface.
 * Knows no accounting. Tests: tests/integration/test_native_nvml.py. */
#include <stdatomic.h>
#include <string.h>

#include "nvml_bodies.h"
#include "driver.h"
#include "gpu.h"
#include "process.h"

enum { SIZE_535 = 1960, SIZE_550 = 2008, SLOT_COMPUTE = 213, SLOT_GRAPHICS = 214, SLOT_MPS = 215 };

static const unsigned char table_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                           0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

struct private_process {
  unsigned int pid;
  unsigned long long bytes;
  char rest[4112];
};

_Static_assert(sizeof(struct private_process) == 4128, "the stride that nvidia-smi uses");

typedef nvmlReturn_t list_function(nvmlDevice_t device, unsigned int *count, struct private_process *infos);

union table {
  uint64_t words[SIZE_550 / 8];
  struct {
    uint64_t size;
    list_function *slot[SIZE_550 / 8 - 1];
  } typed;
};

static union table copy;
static list_function *real_compute, *real_graphics, *real_mps;
static const void *copied; /* the driver's table that COPY was made from */

/* The real function checks the device; its list is not shown. */
static nvmlReturn_t check(list_function *real, nvmlDevice_t device, unsigned int *count) {
  unsigned int number = 0;
  if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t checked = real(device, &number, NULL);
  return checked == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : checked;
}

static nvmlReturn_t list_compute(nvmlDevice_t device, unsigned int *count, struct private_process *infos) {
  struct process_list list;
  nvmlReturn_t checked = check(real_compute, device, count);
  if (checked != NVML_SUCCESS) return checked;
  process_list_read(device, &list);
  unsigned int room = infos == NULL ? 0 : *count;
  *count = list.count;
  if (list.count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < list.count; i++) {
    memset(&infos[i], 0, sizeof infos[i]);
    infos[i].pid = (unsigned int)list.process[i].pid;
    infos[i].bytes = list.process[i].bytes;
  }
  return NVML_SUCCESS;
}

static nvmlReturn_t list_nothing(list_function *real, nvmlDevice_t device, unsigned int *count) {
  nvmlReturn_t checked = check(real, device, count);
  if (checked == NVML_SUCCESS) *count = 0;
  return checked;
}

static nvmlReturn_t list_graphics(nvmlDevice_t device, unsigned int *count, struct private_process *infos) {
  (void)infos;
  return list_nothing(real_graphics, device, count);
}

static nvmlReturn_t list_mps(nvmlDevice_t device, unsigned int *count, struct private_process *infos) {
  (void)infos;
  return list_nothing(real_mps, device, count);
}

static int make_copy(const union table *table) {
  uint64_t size = table->words[0];
  if (size != SIZE_535 && size != SIZE_550) return 0;
  memcpy(&copy, table, size);
  real_compute = table->typed.slot[SLOT_COMPUTE];
  real_graphics = table->typed.slot[SLOT_GRAPHICS];
  real_mps = table->typed.slot[SLOT_MPS];
  if (real_compute == NULL || real_graphics == NULL || real_mps == NULL) return 0;
  copy.typed.slot[SLOT_COMPUTE] = list_compute;
  copy.typed.slot[SLOT_GRAPHICS] = list_graphics;
  copy.typed.slot[SLOT_MPS] = list_mps;
  copied = table;
  return 1;
}

nvmlReturn_t vc_nvmlInternalGetExportTable(const void **table, const void *id) {
  nvmlReturn_t result = real_nvml.nvmlInternalGetExportTable(table, id);
  if (result != NVML_SUCCESS || table == NULL || *table == NULL || id == NULL) return result;
  if (memcmp(id, table_id, sizeof table_id) != 0) return result;
  lock_take(&gpu_lock);
  if (copied == *table || make_copy(*table)) *table = &copy;
  lock_give(&gpu_lock);
  return result;
}
