/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of every size and driver version in the place of NVML's private one: what programs get is the driver's table,
 * or one that shows only the container's processes, or of a later branch passes what it is given to the driver as long
 * as it may, and nothing beyond a table's end or a caller's array is touched.
 * Subjects: native/nvml/private_table.c; its neighbours are stand-ins. The input: 2 bytes driver branch, 2 bytes size
 * of the table, 1 byte of flags (1..4: a list is NULL; 8: no version; 16: a namespace of the container's own; 32: the
 * driver lists strangers), 1 byte number of processes, 1 byte room in the caller's array,
 * 1 byte what the real list answers. */
#include "../../native/nvml/private_table.c"

#include <stdio.h>

#include "fuzz.h"

struct nvml_api real_nvml;
struct lock gpu_lock;

static struct {
  uint64_t *table;
  unsigned int branch, processes, real_result;
  int namespace_is_own, list_is_own;
} world;

static nvmlReturn_t get_table(const void **table, const void *id) {
  (void)id;
  *table = world.table;
  return NVML_SUCCESS;
}

static nvmlReturn_t get_version(char *version, unsigned int length) {
  snprintf(version, length, "%u.65.06", world.branch);
  return world.branch == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

void process_list_read(nvmlDevice_t device, struct process_list *out) {
  (void)device;
  out->count = world.processes;
  for (uint32_t i = 0; i < out->count; i++) out->process[i] = (struct ledger_process){.pid = (int)i + 1, .bytes = 7};
}

size_t process_name(unsigned int pid, char *out, size_t size) {
  return (size_t)snprintf(out, size, "program-%u", pid);
}

int pid_namespace_is_the_containers(void) { return world.namespace_is_own; }
int driver_list_is_own(nvmlDevice_t device) { return device == (nvmlDevice_t)1 && world.list_is_own; }

/* As the driver: writes only into the room that it was told of, and says how many there are on the whole machine. */
static nvmlReturn_t real_list(nvmlDevice_t device, unsigned int *count, char *rows) {
  (void)device;
  unsigned int room = *count, there = 5, row = (unsigned int)(head_bytes + NAME_BYTES);
  if (world.real_result > 2) return NVML_ERROR_GPU_IS_LOST;
  *count = there;
  if (rows == NULL || there > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  memset(rows, 'x', there * row);
  return NVML_SUCCESS;
}

static void call_lists(const union table *table, unsigned int room) {
  size_t row = head_bytes + NAME_BYTES;
  char *rows = malloc(room * row + 1); /* exactly as large: the sanitizer sees the rest */
  REQUIRE(rows != NULL);
  for (int word = WORD_COMPUTE; word <= WORD_MPS; word++) {
    unsigned int count = room, expected = word == WORD_COMPUTE ? world.processes : 0;
    memset(rows, 0, room * row + 1);
    nvmlReturn_t result = table->word[word]((nvmlDevice_t)1, &count, rows);
    if (world.real_result > 2) {
      REQUIRE(result == NVML_ERROR_GPU_IS_LOST);
      continue;
    }
    REQUIRE(count == expected);
    REQUIRE(result == (expected > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS));
    for (size_t i = 0; i < room * row; i++) REQUIRE(rows[i] != 'x'); /* no other container's processes */
    if (result == NVML_SUCCESS && expected > 0) REQUIRE(((struct row *)(void *)rows)->pid == 1);
    REQUIRE(table->word[word]((nvmlDevice_t)1, NULL, rows) == NVML_ERROR_INVALID_ARGUMENT);
  }
  free(rows);
}

/* Whatever a list of a later branch takes, it is called with that or not at all. */
static nvmlReturn_t later_list(nvmlDevice_t device, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e) {
  REQUIRE(device == (nvmlDevice_t)1 && world.list_is_own);
  REQUIRE(a == 2 && b == 3 && c == 4 && d == 5 && e == 6);
  return NVML_ERROR_GPU_IS_LOST;
}

static void pass_through_lists(const union table *table) {
  REQUIRE(table->bytes == BYTES_WITH_LISTS && world.namespace_is_own && world.branch > LAST_KNOWN);
  for (int word = WORD_COMPUTE; word <= WORD_MPS; word++) {
    nvmlReturn_t result = table->any[word]((nvmlDevice_t)1, 2, 3, 4, 5, 6);
    REQUIRE(result == (world.list_is_own ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_NO_PERMISSION));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 8) return 0;
  size_t words = (data[2] | (size_t)data[3] << 8) % (WORDS_AT_MOST + 40);
  if (words == 0) words = 1;
  world.branch = data[0] | (unsigned)data[1] << 8;
  world.processes = data[5] % 64;
  world.real_result = data[7] % 4;
  world.namespace_is_own = (data[4] & 16) != 0;
  world.list_is_own = (data[4] & 32) == 0;
  world.table = calloc(words, 8);
  REQUIRE(world.table != NULL);
  world.table[0] = words * 8;
  for (int i = 0; i < 3; i++)
    if (WORD_COMPUTE + (size_t)i < words && (data[4] & 7) != i + 1)
      world.table[WORD_COMPUTE + i] =
          world.branch > LAST_KNOWN ? (uint64_t)(uintptr_t)later_list : (uint64_t)(uintptr_t)real_list;
  real_nvml.nvmlInternalGetExportTable = get_table;
  real_nvml.nvmlSystemGetDriverVersion = data[4] & 8 ? NULL : get_version;
  rewritten_from = NULL; /* every input is another process's first call */
  const void *got = NULL;
  REQUIRE(vc_nvmlInternalGetExportTable(&got, table_id) == NVML_SUCCESS);
  const union table *table = got;
  if (table == &rewritten) {
    REQUIRE(table->bytes == words * 8 && head_bytes != 0);
    call_lists(table, data[6] % 16);
  } else if (table == &passing) {
    pass_through_lists(table);
  } else if (words * 8 > BYTES_BEFORE_LISTS) {
    REQUIRE(table->bytes <= BYTES_BEFORE_LISTS); /* the lists are not reachable */
  } else {
    REQUIRE(got == world.table);
  }
  const uint8_t other_id[16] = {1};
  REQUIRE(vc_nvmlInternalGetExportTable(&got, other_id) == NVML_SUCCESS && got == world.table);
  free(world.table);
  return 0;
}
