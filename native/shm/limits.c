/* SPDX-License-Identifier: Apache-2.0 */
/* Limits page: create, check, read, change live.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_limits.c, tests/unit/vcuda/test_limits.py. */
#include <stddef.h>
#include <string.h>

#include "limits_layout.h"
#include "os.h"
#include "shm.h"
#include "text.h"

_Static_assert(VC_GPU_MIG == 1, "text.c writes the flag as a number");

static uint64_t page_checksum(const struct limits_page *page) {
  uint64_t sum = checksum_add(CHECKSUM_START, page, offsetof(struct limits_page, checksum));
  for (uint32_t i = 0; i < page->gpu_count && i < VC_MAX_GPUS; i++) {
    sum = checksum_add(sum, page->gpu[i].uuid, sizeof page->gpu[i].uuid);
    sum = checksum_add(sum, &page->gpu[i].flags, sizeof page->gpu[i].flags);
  }
  return sum;
}

static int values_are_valid(uint64_t memory, uint64_t unhooked, uint64_t cores) {
  return memory > 0 && memory <= VC_MAX_BYTES && unhooked <= VC_MAX_BYTES && cores <= 100;
}

static int gpu_is_valid(const struct limits_gpu *gpu) {
  uint64_t memory = gpu->memory_bytes, unhooked = gpu->unhooked_bytes, cores = gpu->cores_percent;
  return sealed_is_valid(memory) && sealed_is_valid(unhooked) && sealed_is_valid(cores) &&
         values_are_valid(sealed_value(memory), sealed_value(unhooked), sealed_value(cores));
}

static int word_is_valid(uint64_t word, uint64_t most) {
  return word == 0 || (sealed_is_valid(word) && sealed_value(word) <= most);
}

static int share_is_valid(const struct limits_share *share) {
  return word_is_valid(share->physical_bytes, VC_MAX_BYTES) && word_is_valid(share->compute_policy, VC_COMPUTE_MAX) &&
         word_is_valid(share->allowed_permille, 1000) && word_is_valid(share->credit_us, SEALED_VALUE_MASK) &&
         word_is_valid(share->time_slice, SEALED_VALUE_MASK);
}

int limits_check(const struct limits_page *page) {
  if (memcmp(page->magic, LIMITS_MAGIC, sizeof page->magic) != 0) return VC_ECORRUPT;
  if (page->version != LIMITS_VERSION) return VC_EVERSION;
  if (page->size != LIMITS_BYTES || page->gpu_count == 0 || page->gpu_count > VC_MAX_GPUS) return VC_ECORRUPT;
  if (page->checksum != page_checksum(page)) return VC_ECORRUPT;
  for (uint32_t i = 0; i < page->gpu_count; i++)
    if (!gpu_is_valid(&page->gpu[i]) || !share_is_valid(&page->share[i])) return VC_ECORRUPT;
  return VC_OK;
}

static int map_checked(const char *path, int writable, struct limits_page **out) {
  struct os_file file;
  void *address;
  int status = os_open(path, writable, &file);
  if (status != VC_OK) return status;
  status = file.size == LIMITS_BYTES ? os_map(file.fd, LIMITS_BYTES, writable, &address) : VC_ECORRUPT;
  os_close(file.fd);
  if (status != VC_OK) return status;
  status = limits_check(address);
  if (status != VC_OK)
    os_unmap(address, LIMITS_BYTES);
  else
    *out = address;
  return status;
}

int limits_map(const char *path, const struct limits_page **out) {
  struct limits_page *page;
  int status = map_checked(path, 0, &page);
  if (status == VC_OK) *out = page;
  return status;
}

void limits_unmap(const struct limits_page *page) { os_unmap((void *)(uintptr_t)page, LIMITS_BYTES); }

int limits_gpus_are_valid(const struct vc_gpu_limit *gpus, uint32_t count) {
  if (count == 0 || count > VC_MAX_GPUS) return 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!values_are_valid(gpus[i].memory_bytes, gpus[i].unhooked_bytes, gpus[i].cores_percent)) return 0;
    if (gpus[i].physical_bytes > gpus[i].memory_bytes || gpus[i].compute_policy > VC_COMPUTE_MAX) return 0;
    for (uint32_t k = 0; k < i; k++)
      if (memcmp(gpus[i].uuid, gpus[k].uuid, 16) == 0) return 0;
  }
  return 1;
}

union page_file {
  struct limits_page page;
  uint8_t bytes[LIMITS_BYTES];
};

static int compose(union page_file *file, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count) {
  if (!limits_gpus_are_valid(gpus, count)) return VC_EINVAL;
  memset(file, 0, sizeof *file);
  memcpy(file->page.magic, LIMITS_MAGIC, sizeof file->page.magic);
  file->page.version = LIMITS_VERSION;
  file->page.size = LIMITS_BYTES;
  file->page.gpu_count = count;
  memcpy(file->page.id, id, sizeof file->page.id);
  for (uint32_t i = 0; i < count; i++) {
    struct limits_gpu *gpu = &file->page.gpu[i];
    memcpy(gpu->uuid, gpus[i].uuid, sizeof gpu->uuid);
    gpu->flags = gpus[i].flags;
    gpu->memory_bytes = sealed_make(gpus[i].memory_bytes);
    gpu->unhooked_bytes = sealed_make(gpus[i].unhooked_bytes);
    gpu->cores_percent = sealed_make(gpus[i].cores_percent);
    struct limits_share *share = &file->page.share[i];
    if (gpus[i].physical_bytes != 0) share->physical_bytes = sealed_make(gpus[i].physical_bytes);
    if (gpus[i].compute_policy != 0) share->compute_policy = sealed_make(gpus[i].compute_policy);
  }
  file->page.checksum = page_checksum(&file->page);
  return VC_OK;
}

int limits_create(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count,
                  uint32_t mode) {
  union page_file file;
  int status = compose(&file, id, gpus, count);
  return status == VC_OK ? os_publish(path, &file, sizeof file, sizeof file, mode) : status;
}

int limits_reserve(const char *path, uint32_t mode) { return os_reserve(path, LIMITS_BYTES, mode); }

int limits_fill(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count) {
  union page_file file;
  int status = compose(&file, id, gpus, count);
  return status == VC_OK ? os_fill(path, &file, sizeof file, sizeof file) : status;
}

int limits_read(const char *path, struct vc_limits *out) {
  struct limits_page page;
  struct os_file file;
  int status = os_open(path, 0, &file);
  if (status != VC_OK) return status;
  status = file.size == LIMITS_BYTES ? os_read_all(file.fd, &page, sizeof page, 0) : VC_ECORRUPT;
  os_close(file.fd);
  if (status == VC_OK) status = limits_check(&page);
  if (status != VC_OK) return status;
  memset(out, 0, sizeof *out);
  out->version = page.version;
  out->gpu_count = page.gpu_count;
  memcpy(out->id, page.id, sizeof out->id);
  out->changes = page.changes;
  for (uint32_t i = 0; i < page.gpu_count; i++) {
    memcpy(out->gpu[i].uuid, page.gpu[i].uuid, sizeof out->gpu[i].uuid);
    out->gpu[i].flags = page.gpu[i].flags;
    out->gpu[i].memory_bytes = sealed_value(page.gpu[i].memory_bytes);
    out->gpu[i].unhooked_bytes = sealed_value(page.gpu[i].unhooked_bytes);
    out->gpu[i].cores_percent = (uint32_t)sealed_value(page.gpu[i].cores_percent);
    out->gpu[i].physical_bytes = sealed_or(page.share[i].physical_bytes, 0);
    out->gpu[i].compute_policy = (uint32_t)sealed_or(page.share[i].compute_policy, 0);
    out->gpu[i].allowed_permille = (uint32_t)sealed_or(page.share[i].allowed_permille, 0);
    out->gpu[i].credit_us = sealed_or(page.share[i].credit_us, 0);
  }
  return VC_OK;
}

/* Stores VALUE in the word that lies FIELD bytes into GPU 0's entry, STRIDE apart from one GPU's to the next. */
static int change_at(const char *path, const uint8_t uuid[16], size_t field, size_t stride, uint64_t value) {
  struct limits_page *page;
  int status = map_checked(path, 1, &page);
  if (status != VC_OK) return status;
  status = VC_ENOENT;
  for (uint32_t i = 0; status == VC_ENOENT && i < page->gpu_count; i++) {
    if (memcmp(page->gpu[i].uuid, uuid, 16) != 0) continue;
    sealed_t *word = (sealed_t *)(void *)((char *)page + field + i * stride);
    atomic_store_explicit(word, sealed_make(value), memory_order_release);
    atomic_fetch_add_explicit(&page->changes, 1, memory_order_release);
    status = VC_OK;
  }
  limits_unmap(page);
  return status;
}

static int change(const char *path, const uint8_t uuid[16], size_t field, uint64_t value) {
  return change_at(path, uuid, offsetof(struct limits_page, gpu) + field, sizeof(struct limits_gpu), value);
}

static int change_share(const char *path, const uint8_t uuid[16], size_t field, uint64_t value) {
  return change_at(path, uuid, offsetof(struct limits_page, share) + field, sizeof(struct limits_share), value);
}

int limits_set_memory(const char *path, const uint8_t uuid[16], uint64_t bytes) {
  if (bytes == 0 || bytes > VC_MAX_BYTES) return VC_EINVAL;
  return change(path, uuid, offsetof(struct limits_gpu, memory_bytes), bytes);
}

int limits_set_unhooked(const char *path, const uint8_t uuid[16], uint64_t bytes) {
  if (bytes > VC_MAX_BYTES) return VC_EINVAL;
  return change(path, uuid, offsetof(struct limits_gpu, unhooked_bytes), bytes);
}

int limits_set_cores(const char *path, const uint8_t uuid[16], uint32_t percent) {
  if (percent > 100) return VC_EINVAL;
  return change(path, uuid, offsetof(struct limits_gpu, cores_percent), percent);
}

int limits_set_physical(const char *path, const uint8_t uuid[16], uint64_t bytes) {
  if (bytes == 0 || bytes > VC_MAX_BYTES) return VC_EINVAL;
  return change_share(path, uuid, offsetof(struct limits_share, physical_bytes), bytes);
}

int limits_set_compute(const char *path, const uint8_t uuid[16], uint32_t policy) {
  if (policy > VC_COMPUTE_MAX) return VC_EINVAL;
  return change_share(path, uuid, offsetof(struct limits_share, compute_policy), policy);
}

int limits_set_allowed(const char *path, const uint8_t uuid[16], uint32_t permille) {
  if (permille > 1000) return VC_EINVAL;
  return change_share(path, uuid, offsetof(struct limits_share, allowed_permille), permille);
}

int limits_set_credit(const char *path, const uint8_t uuid[16], uint64_t microseconds) {
  if (microseconds > SEALED_VALUE_MASK) return VC_EINVAL;
  return change_share(path, uuid, offsetof(struct limits_share, credit_us), microseconds);
}

int limits_set_time_slice(const char *path, const uint8_t uuid[16], uint64_t time_slice) {
  if (time_slice > SEALED_VALUE_MASK) return VC_EINVAL;
  return change_share(path, uuid, offsetof(struct limits_share, time_slice), time_slice);
}
