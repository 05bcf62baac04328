/* SPDX-License-Identifier: Apache-2.0 */
/* The limits page: nothing damaged is ever taken for a limit. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "limits_layout.h"
#include "shm.h"

static const uint8_t id[16] = {1, 2, 3, 4};

static const struct vc_gpu_limit two[2] = {
    {.uuid = {0xaa}, .memory_bytes = 8ull << 30},
    {.uuid = {0xbb}, .memory_bytes = 12ull << 30, .unhooked_bytes = 5, .cores_percent = 30, .flags = VC_GPU_MIG},
};

static void load(const char *path, uint8_t *bytes, size_t size) {
  int fd = open(path, O_RDONLY);
  CHECK(fd >= 0);
  CHECK_EQ(read(fd, bytes, size), size);
  close(fd);
}

static void store(const char *path, const uint8_t *bytes, size_t size) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  CHECK(fd >= 0);
  CHECK_EQ(write(fd, bytes, size), size);
  close(fd);
}

TEST(limits_round_trip) {
  struct vc_limits page;
  CHECK_EQ(limits_create(test_path("limits"), id, two, 2, 0644), VC_OK);
  CHECK_EQ(limits_create(test_path("limits"), id, two, 1, 0644), VC_EEXIST);
  CHECK_EQ(limits_read(test_path("limits"), &page), VC_OK);
  CHECK_EQ(page.version, LIMITS_VERSION);
  CHECK_EQ(page.gpu_count, 2);
  CHECK(memcmp(page.id, id, 16) == 0);
  CHECK_EQ(page.gpu[0].memory_bytes, 8ll << 30);
  CHECK_EQ(page.gpu[1].memory_bytes, 12ll << 30);
  CHECK_EQ(page.gpu[1].unhooked_bytes, 5);
  CHECK_EQ(page.gpu[1].cores_percent, 30);
  CHECK_EQ(page.gpu[1].flags, VC_GPU_MIG);
}

TEST(limits_live_changes) {
  struct vc_limits page;
  const char *path = test_path("limits");
  CHECK_EQ(limits_create(path, id, two, 2, 0644), VC_OK);
  CHECK_EQ(limits_set_memory(path, two[0].uuid, 3ull << 30), VC_OK);
  CHECK_EQ(limits_set_unhooked(path, two[0].uuid, 4096), VC_OK);
  CHECK_EQ(limits_set_cores(path, two[0].uuid, 100), VC_OK);
  CHECK_EQ(limits_read(path, &page), VC_OK);
  CHECK_EQ(page.changes, 3);
  CHECK_EQ(page.gpu[0].memory_bytes, 3ll << 30);
  CHECK_EQ(page.gpu[0].unhooked_bytes, 4096);
  CHECK_EQ(page.gpu[0].cores_percent, 100);
  CHECK_EQ(page.gpu[1].memory_bytes, 12ll << 30);
  const uint8_t unknown[16] = {0xcc};
  CHECK_EQ(limits_set_memory(path, unknown, 1), VC_ENOENT);
  CHECK_EQ(limits_set_memory(path, two[0].uuid, 0), VC_EINVAL);
  CHECK_EQ(limits_set_memory(path, two[0].uuid, UINT64_MAX), VC_EINVAL);
  CHECK_EQ(limits_set_cores(path, two[0].uuid, 101), VC_EINVAL);
  CHECK_EQ(limits_set_memory(test_path("none"), two[0].uuid, 1), VC_ENOENT);
}

/* The words of an agent that knows more: unset in a page that an older one made, and changed like the others. */
TEST(limits_share_words) {
  uint8_t bytes[LIMITS_BYTES];
  struct vc_limits page;
  struct vc_gpu_limit gpus[2] = {two[0], two[1]};
  const char *path = test_path("limits");
  gpus[1].physical_bytes = 8ull << 30;
  gpus[1].compute_policy = VC_COMPUTE_ELASTIC | 7u << VC_COMPUTE_WEIGHT_SHIFT;
  CHECK_EQ(limits_create(path, id, gpus, 2, 0644), VC_OK);
  CHECK_EQ(limits_read(path, &page), VC_OK);
  CHECK_EQ(page.gpu[0].physical_bytes, 0);
  CHECK_EQ(page.gpu[1].physical_bytes, 8ll << 30);
  CHECK_EQ(page.gpu[1].compute_policy, gpus[1].compute_policy);
  load(path, bytes, sizeof bytes);
  const struct limits_share *share = ((const struct limits_page *)(const void *)bytes)->share;
  for (size_t i = 0; i < sizeof *share; i++) CHECK_EQ(((const uint8_t *)share)[i], 0);

  CHECK_EQ(limits_set_physical(path, gpus[0].uuid, 1ull << 30), VC_OK);
  CHECK_EQ(limits_set_compute(path, gpus[0].uuid, VC_COMPUTE_ELASTIC), VC_OK);
  CHECK_EQ(limits_set_allowed(path, gpus[0].uuid, 999), VC_OK);
  CHECK_EQ(limits_set_credit(path, gpus[0].uuid, 123456789), VC_OK);
  CHECK_EQ(limits_set_time_slice(path, gpus[0].uuid, 5), VC_OK);
  CHECK_EQ(limits_read(path, &page), VC_OK);
  CHECK_EQ(page.changes, 5);
  CHECK_EQ(page.gpu[0].physical_bytes, 1ll << 30);
  CHECK_EQ(page.gpu[0].compute_policy, VC_COMPUTE_ELASTIC);
  load(path, bytes, sizeof bytes);
  CHECK_EQ(sealed_or(share->allowed_permille, 1), 999);
  CHECK_EQ(sealed_or(share->credit_us, 1), 123456789);
  CHECK_EQ(sealed_or(share->time_slice, 1), 5);
  CHECK_EQ(sealed_or(share[1].time_slice, 1), 1);

  gpus[0].physical_bytes = gpus[0].memory_bytes + 1;
  CHECK_EQ(limits_create(test_path("other"), id, gpus, 2, 0644), VC_EINVAL);
  CHECK_EQ(limits_set_physical(path, gpus[0].uuid, 0), VC_EINVAL);
  CHECK_EQ(limits_set_allowed(path, gpus[0].uuid, 1001), VC_EINVAL);
  CHECK_EQ(limits_set_compute(path, gpus[0].uuid, VC_COMPUTE_MAX + 1), VC_EINVAL);
  CHECK_EQ(limits_set_credit(path, gpus[0].uuid, UINT64_MAX), VC_EINVAL);
}

/* Every flipped bit of them is noticed too. */
TEST(limits_share_flipped_bits) {
  uint8_t bytes[LIMITS_BYTES];
  struct vc_limits page;
  const char *path = test_path("limits");
  CHECK_EQ(limits_create(path, id, two, 2, 0644), VC_OK);
  CHECK_EQ(limits_set_physical(path, two[0].uuid, 3ull << 30), VC_OK);
  CHECK_EQ(limits_set_compute(path, two[0].uuid, 0), VC_OK);
  CHECK_EQ(limits_set_allowed(path, two[0].uuid, 1), VC_OK);
  CHECK_EQ(limits_set_credit(path, two[0].uuid, 77), VC_OK);
  CHECK_EQ(limits_set_time_slice(path, two[0].uuid, 2), VC_OK);
  load(path, bytes, sizeof bytes);
  size_t first = offsetof(struct limits_page, share);
  for (size_t bit = first * 8; bit < (first + offsetof(struct limits_share, reserved)) * 8; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    store(path, bytes, sizeof bytes);
    CHECK_EQ(limits_read(path, &page), VC_ECORRUPT);
    bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
  }
}

/* Every single flipped bit of what matters is noticed; only reserved bytes and the change counter may differ. */
TEST(limits_every_flipped_bit) {
  uint8_t bytes[LIMITS_BYTES];
  struct vc_limits page;
  const char *path = test_path("limits");
  int accepted = 0;
  CHECK_EQ(limits_create(path, id, two, 2, 0644), VC_OK);
  load(path, bytes, sizeof bytes);
  for (size_t bit = 0; bit < (64 + 2 * 64) * 8; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    store(path, bytes, sizeof bytes);
    int status = limits_read(path, &page);
    if (status == VC_OK) {
      size_t at = bit / 8;
      int counter = at >= 48 && at < 64;                                   /* changes, reserved1 */
      int reserved = at >= 64 && ((at % 64 >= 20 && at % 64 < 24) || at % 64 >= 48);
      if (!counter && !reserved) fprintf(stderr, "bit %zu of byte %zu went unnoticed\n", bit % 8, at);
      CHECK(counter || reserved);
      accepted++;
    } else {
      CHECK(status == VC_ECORRUPT || status == VC_EVERSION);
    }
    bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
  }
  CHECK(accepted > 0);
}

TEST(limits_every_size) {
  uint8_t bytes[LIMITS_BYTES + 64] = {0};
  struct vc_limits page;
  const char *path = test_path("limits");
  CHECK_EQ(limits_create(path, id, two, 2, 0644), VC_OK);
  load(path, bytes, LIMITS_BYTES);
  for (size_t size = 0; size <= sizeof bytes; size += size < 128 ? 1 : 61) {
    store(path, bytes, size);
    CHECK_EQ(limits_read(path, &page), size == LIMITS_BYTES ? VC_OK : VC_ECORRUPT);
  }
  memset(bytes, 0, sizeof bytes);
  store(path, bytes, LIMITS_BYTES);
  CHECK_EQ(limits_read(path, &page), VC_ECORRUPT);
  memset(bytes, 0xff, sizeof bytes);
  store(path, bytes, LIMITS_BYTES);
  CHECK_EQ(limits_read(path, &page), VC_ECORRUPT);
}

TEST(limits_bad_arguments) {
  struct vc_gpu_limit bad = two[0];
  struct vc_gpu_limit many[VC_MAX_GPUS + 1];
  const char *path = test_path("limits");
  CHECK_EQ(limits_create(path, id, two, 0, 0644), VC_EINVAL);
  bad.memory_bytes = 0;
  CHECK_EQ(limits_create(path, id, &bad, 1, 0644), VC_EINVAL);
  bad.memory_bytes = UINT64_MAX;
  CHECK_EQ(limits_create(path, id, &bad, 1, 0644), VC_EINVAL);
  bad = two[0];
  bad.cores_percent = 101;
  CHECK_EQ(limits_create(path, id, &bad, 1, 0644), VC_EINVAL);
  struct vc_gpu_limit twice[2] = {two[0], two[0]};
  CHECK_EQ(limits_create(path, id, twice, 2, 0644), VC_EINVAL);
  CHECK_EQ(ledger_create(path, id, twice, 2, 0644), VC_EINVAL);
  for (int i = 0; i <= VC_MAX_GPUS; i++) {
    many[i] = two[0];
    many[i].uuid[1] = (uint8_t)i;
  }
  CHECK_EQ(limits_create(path, id, many, VC_MAX_GPUS + 1, 0644), VC_EINVAL);
  CHECK_EQ(limits_create(path, id, many, VC_MAX_GPUS, 0644), VC_OK);
}
