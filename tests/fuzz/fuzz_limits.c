/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a limits page: refused, or a page whose every number is within bounds. The first byte: bit 0 makes the
 * checksum and the magic right, so that what lies behind them is reached; bit 1 leaves the file at its own size instead
 * of a page's. Subject: native/shm/limits.c. */
#define _GNU_SOURCE
#include "shm.h"
#include "fuzz.h"
#include "limits_layout.h"
#include "memory_file.h"

union page {
  uint8_t bytes[LIMITS_BYTES];
  struct limits_page page;
};

/* limits.c, page_checksum() */
static uint64_t checksum(const struct limits_page *page) {
  uint64_t sum = checksum_add(CHECKSUM_START, page, offsetof(struct limits_page, checksum));
  for (uint32_t i = 0; i < page->gpu_count && i < VC_MAX_GPUS; i++) {
    sum = checksum_add(sum, page->gpu[i].uuid, sizeof page->gpu[i].uuid);
    sum = checksum_add(sum, &page->gpu[i].flags, sizeof page->gpu[i].flags);
  }
  return sum;
}

static void mend(struct limits_page *page) {
  memcpy(page->magic, LIMITS_MAGIC, sizeof page->magic);
  page->version = LIMITS_VERSION;
  page->size = LIMITS_BYTES;
  page->checksum = checksum(page);
}

static void must_be_usable(const char *path, const struct vc_limits *page) {
  struct vc_limits again;
  REQUIRE(page->gpu_count > 0 && page->gpu_count <= VC_MAX_GPUS);
  for (uint32_t i = 0; i < page->gpu_count; i++) {
    REQUIRE(page->gpu[i].memory_bytes > 0 && page->gpu[i].memory_bytes <= VC_MAX_BYTES);
    REQUIRE(page->gpu[i].unhooked_bytes <= VC_MAX_BYTES && page->gpu[i].cores_percent <= 100);
  }
  REQUIRE(limits_set_memory(path, page->gpu[0].uuid, 12345) == VC_OK);
  REQUIRE(limits_set_unhooked(path, page->gpu[0].uuid, 0) == VC_OK);
  REQUIRE(limits_set_cores(path, page->gpu[0].uuid, 101) == VC_EINVAL);
  REQUIRE(limits_set_memory(path, page->gpu[0].uuid, 0) == VC_EINVAL);
  REQUIRE(limits_read(path, &again) == VC_OK);
  REQUIRE(again.gpu[0].memory_bytes == 12345 && again.gpu[0].unhooked_bytes == 0);
  REQUIRE(again.changes == page->changes + 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  union page page = {{0}};
  struct memory_file file;
  struct vc_limits limits;
  if (size == 0) return 0;
  size_t length = size - 1 < LIMITS_BYTES ? size - 1 : LIMITS_BYTES;
  memcpy(page.bytes, data + 1, length);
  if (data[0] & 1) mend(&page.page);
  size_t total = data[0] & 2 ? length : LIMITS_BYTES;
  memory_file_make(&file, page.bytes, total, total);
  int status = limits_read(file.path, &limits);
  REQUIRE(status == VC_OK || status == VC_ECORRUPT || status == VC_EVERSION);
  if (status == VC_OK) must_be_usable(file.path, &limits);
  close(file.fd);
  return 0;
}
