/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of the library. The mounted page wins over everything; only without it is the environment read, and what
 * cannot be understood there is an error, never "unlimited".
 * Uses neither CUDA nor NVML. Tests: tests/native/test_config.c, tests/integration/test_native_config.py. */
#define _GNU_SOURCE
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "directory.h"
#include "head.h"
#include "log.h"
#include "mounts.h"
#include "plain.h"
#include "text.h"

/* No variable can move it. Tests write a name of the same length over it in the built library. */
#define VC_ROOT "/etc/vcuda"

static enum { UNKNOWN, ABSENT, PRESENT } container_page;

/* ABSENT: there is certainly no such file. One that cannot be checked must not mean unlimited. */
static int look_for_container_page(void) {
  static char path[] = VC_ROOT "/limits"; /* a variable: on a page that the loader has brought in anyway */
  int saved = errno;
  int gone = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
  errno = saved;
  return gone ? ABSENT : PRESENT;
}

/* A container is made with its page, so one check is enough; and one that was there once is not forgotten, whatever root
 * directory the process has now. */
static int container_page_exists(void) {
  int known = __atomic_load_n(&container_page, __ATOMIC_RELAXED);
  if (known == UNKNOWN) {
    known = look_for_container_page();
    __atomic_store_n(&container_page, known, __ATOMIC_RELAXED);
  }
  return known == PRESENT;
}

/* A program with raised privileges does not take its limits from the process that started it. */
static const char *variable(const char *name) { return secure_getenv(name); }

static char prefix[] = "VCUDA_";

static int is_name(const char *setting, size_t length, const char *name) {
  return strlen(name) == length && memcmp(setting, name, length) == 0;
}

/* A variable that is named like ours and is none was meant as a limit. Kubernetes makes some for a service that is
 * called vcuda. */
static int is_misspelt(const char *setting) {
  static const char known[][24] = {"VCUDA_MEMORY_LIMIT", "VCUDA_PHYSICAL_LIMIT", "VCUDA_CORES", "VCUDA_DIR",
                                   "VCUDA_QUOTA", "VCUDA_LOG", "VCUDA_REFUSALS"};
  size_t length = strcspn(setting, "=");
  if (strncmp(setting, prefix, sizeof prefix - 1) != 0) return 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (is_name(setting, length, known[i])) return 0;
  const char *service = strstr(setting, "_SERVICE_"), *port = strstr(setting, "_PORT");
  return (service == NULL || service >= setting + length) && (port == NULL || port >= setting + length);
}

/* NULL: none. The environment of a program with raised privileges is ignored. */
static const char *misspelt(void) {
  if (getauxval(AT_SECURE) != 0) return NULL;
  for (char **setting = environ; setting != NULL && *setting != NULL; setting++)
    if (is_misspelt(*setting)) return *setting;
  return NULL;
}

static int environment_limits(void) {
  return variable("VCUDA_MEMORY_LIMIT") != NULL || variable("VCUDA_DIR") != NULL || variable("VCUDA_QUOTA") != NULL ||
         variable("VCUDA_PHYSICAL_LIMIT") != NULL || variable("VCUDA_CORES") != NULL || misspelt() != NULL;
}

int config_is_present(void) {
  return container_page_exists() || environment_limits();
}

/* Most processes have no variable of ours: they are spared what it takes to read one. NULL: cleared before the library
 * was loaded. */
static int has_variables(char *const *environment) {
  while (environment != NULL && *environment != NULL)
    if (plain_same_bytes(*environment++, prefix, sizeof prefix - 1)) return 1;
  return 0;
}

static uint64_t values_now(void) {
  return head_values(variable("VCUDA_MEMORY_LIMIT"), variable("VCUDA_PHYSICAL_LIMIT"), variable("VCUDA_CORES"));
}

static void become_head(char **environment) {
  char base[CONFIG_PATH], name[HEAD_NAME];
  if (variable("VCUDA_MEMORY_LIMIT") == NULL || variable("VCUDA_DIR") != NULL || variable("VCUDA_QUOTA") != NULL) return;
  if (directory_base(variable("XDG_RUNTIME_DIR"), base) < sizeof base && head_name(values_now(), name) == VC_OK)
    head_publish(base, name, environment);
}

int config_at_load(char **environment) {
  if (look_for_container_page() == ABSENT) {
    if (!has_variables(environment) || !environment_limits()) return 0;
    become_head(environment);
    return 1;
  }
  __atomic_store_n(&container_page, PRESENT, __ATOMIC_RELAXED);
  return 1;
}

static int choose_directory(struct config *out, char *why) {
  const struct directory_names names = {
      .directory = variable("VCUDA_DIR"), .quota = variable("VCUDA_QUOTA"), .runtime = variable("XDG_RUNTIME_DIR")};
  if (names.directory != NULL && names.directory[0] != '/') {
    snprintf(why, CONFIG_WHY, "VCUDA_DIR is \"%.64s\"; give an absolute path", names.directory);
    return VC_EINVAL;
  }
  if (directory_has_head(&names)) out->values = values_now();
  return directory_choose(out, &names, why);
}

int config_tells_refusals(void) {
  const char *text = variable("VCUDA_REFUSALS"), *log = variable("VCUDA_LOG");
  if (log != NULL && strcmp(log, "none") == 0) return 0;
  if (text == NULL || *text == 0 || strcmp(text, "on") == 0) return 1;
  if (strcmp(text, "off") == 0) return 0;
  log_line(LOG_ERROR, "VCUDA_REFUSALS is \"%.32s\", which is neither on nor off; continuing with on", text);
  return 1;
}

static void name_files(struct config *out) {
  text_join(out->limits, sizeof out->limits, out->directory, "/limits", "");
  text_join(out->ledger, sizeof out->ledger, out->directory, "/ledger", "");
}

int config_read(struct config *out, char *why) {
  memset(out, 0, sizeof *out);
  if (container_page_exists()) {
    if (mounts_count_pages(VC_ROOT "/allocations") > 1) {
      snprintf(why, CONFIG_WHY, "this container was given GPU memory twice, by two claims or by requests of one claim that "
               "other containers have apart, and can have one quota; put the requests into one claim, or give them to "
               "different containers");
      return VC_EINVAL;
    }
    out->kind = CONFIG_CONTAINER;
    text_join(out->directory, sizeof out->directory, VC_ROOT, "", "");
    name_files(out);
    return VC_OK;
  }
  const char *wrong = misspelt();
  if (wrong != NULL) {
    size_t length = strcspn(wrong, "=");
    snprintf(why, CONFIG_WHY, "%.*s is no variable of this library, which reads VCUDA_MEMORY_LIMIT, VCUDA_PHYSICAL_LIMIT, "
             "VCUDA_CORES, VCUDA_DIR, VCUDA_QUOTA, VCUDA_LOG and VCUDA_REFUSALS; correct or unset it",
             length < 64 ? (int)length : 64, wrong);
    return VC_EINVAL;
  }
  out->memory_limit = variable("VCUDA_MEMORY_LIMIT");
  out->physical_limit = variable("VCUDA_PHYSICAL_LIMIT");
  out->cores = variable("VCUDA_CORES");
  if (out->memory_limit == NULL && out->physical_limit != NULL) {
    snprintf(why, CONFIG_WHY, "VCUDA_PHYSICAL_LIMIT is set without VCUDA_MEMORY_LIMIT, which it is a part of; set both");
    return VC_EINVAL;
  }
  if (out->memory_limit == NULL && out->cores != NULL) {
    snprintf(why, CONFIG_WHY, "VCUDA_CORES is set without VCUDA_MEMORY_LIMIT; a share of the time goes with one of the "
             "memory, set both");
    return VC_EINVAL;
  }
  if (out->memory_limit == NULL && variable("VCUDA_DIR") == NULL && variable("VCUDA_QUOTA") == NULL) return VC_OK;
  out->kind = CONFIG_DIRECTORY;
  int status = choose_directory(out, why);
  if (status == VC_OK) name_files(out);
  return status;
}

static const char usage[] = "write a size for every GPU (8GiB) or one for each (GPU-<uuid>=8GiB,1=4GiB)";

static const char percent_usage[] = "write a percentage from 1 to 100 for every GPU (30) or one for each (GPU-<uuid>=30,1=50)";

/* A list of sizes or percentages, and the variable that has it. */
struct list {
  const char *variable;
  int alone;   /* there is only one, so it may be bare */
  int percent; /* percentages */
};

static int bad_item(const struct list *list, const char *item, const char *what, char *why) {
  snprintf(why, CONFIG_WHY, "%s: \"%.48s\" %s; %s", list->variable, item, what, list->percent ? percent_usage : usage);
  return VC_EINVAL;
}

static int parse_index(const char *text, uint32_t *out) {
  uint32_t value = 0;
  if (*text == 0 || strlen(text) > 3) return VC_EINVAL;
  for (; *text != 0; text++) {
    if (*text < '0' || *text > '9') return VC_EINVAL;
    value = value * 10 + (uint32_t)(*text - '0');
  }
  *out = value;
  return VC_OK;
}

static int bad_size(const struct list *list, const char *item, const char *size, char *why) {
  snprintf(why, CONFIG_WHY, "%s: \"%.48s\" is not a size; %s", list->variable, item, size_usage(size));
  return VC_EINVAL;
}

/* ITEM is a private copy. */
static int parse_item(const struct list *list, char *item, struct request *out, char *why) {
  char *equals = strchr(item, '=');
  const char *size = equals != NULL ? equals + 1 : item;
  if (equals == NULL && !list->alone) return bad_item(list, item, "names no GPU", why);
  if (list->percent) {
    if (parse_index(size, &out->cores) != VC_OK || out->cores < 1 || out->cores > 100)
      return bad_item(list, item, "is no such percentage", why);
  } else if (size_parse(size, &out->bytes) != VC_OK)
    return bad_size(list, item, size, why);
  out->kind = REQUEST_EVERY_GPU;
  if (equals == NULL) return VC_OK;
  *equals = 0;
  out->kind = REQUEST_UUID;
  if (uuid_parse(item, out->uuid, &out->flags) == VC_OK) return VC_OK;
  out->kind = REQUEST_INDEX;
  if (parse_index(item, &out->index) == VC_OK) return VC_OK;
  return bad_item(list, item, "is neither a GPU's UUID nor its index", why);
}

static int same_gpu(const struct request *a, const struct request *b) {
  if (a->kind != b->kind) return 0;
  return a->kind == REQUEST_INDEX ? a->index == b->index : memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0;
}

static int add_request(const struct list *list, struct requests *out, char *item, char *why) {
  if (out->count == VC_MAX_GPUS) return bad_item(list, item, "is one GPU more than the 16 that are supported", why);
  struct request *request = &out->request[out->count];
  memset(request, 0, sizeof *request);
  int status = parse_item(list, item, request, why);
  if (status != VC_OK) return status;
  for (uint32_t i = 0; i < out->count; i++)
    if (same_gpu(request, &out->request[i])) return bad_item(list, item, "is named twice", why);
  out->count++;
  return VC_OK;
}

static int parse_list(const char *variable_name, int percent, const char *text, struct requests *out, char *why) {
  char copy[VC_MAX_GPUS * 96];
  size_t length = strlen(text);
  const struct list list = {variable_name, strchr(text, ',') == NULL, percent};
  memset(out, 0, sizeof *out);
  if (length == 0) return bad_item(&list, text, "is empty", why);
  if (length >= sizeof copy) return bad_item(&list, text, "… is too long", why);
  memcpy(copy, text, length + 1);
  for (char *item = copy, *next; item != NULL; item = next) {
    next = strchr(item, ',');
    if (next != NULL) *next++ = 0;
    int status = add_request(&list, out, item, why);
    if (status != VC_OK) return status;
  }
  return VC_OK;
}

int config_parse_memory(const char *text, struct requests *out, char *why) {
  return parse_list("VCUDA_MEMORY_LIMIT", 0, text, out, why);
}

static struct request *find_request(struct requests *requests, const struct request *like) {
  for (uint32_t i = 0; i < requests->count; i++)
    if (same_gpu(&requests->request[i], like)) return &requests->request[i];
  return NULL;
}

typedef int give_part(struct request *request, const struct request *part, char *why);

static int give_cores(struct request *request, const struct request *part, char *why) {
  (void)why;
  request->cores = part->cores;
  return VC_OK;
}

static int give_physical(struct request *request, const struct request *part, char *why) {
  uint64_t bytes = part->bytes;
  char text[TEXT_SIZE], whole[TEXT_SIZE];
  if (bytes > request->bytes) {
    snprintf(why, CONFIG_WHY, "VCUDA_PHYSICAL_LIMIT gives %s of %s; it is the part of VCUDA_MEMORY_LIMIT that may be in the "
             "GPU's own memory, write less", text_exact(bytes, text), text_exact(request->bytes, whole));
    return VC_EINVAL;
  }
  request->physical = bytes;
  return VC_OK;
}

/* What a second variable says goes to the GPUs that VCUDA_MEMORY_LIMIT names. */
static int give_parts(const char *variable_name, const struct requests *parts, give_part *give,
                      struct requests *inout, char *why) {
  int status = VC_OK;
  if (parts->request[0].kind == REQUEST_EVERY_GPU) {
    for (uint32_t i = 0; i < inout->count && status == VC_OK; i++)
      status = give(&inout->request[i], &parts->request[0], why);
    return status;
  }
  for (uint32_t i = 0; i < parts->count && status == VC_OK; i++) {
    struct request *request = find_request(inout, &parts->request[i]);
    if (request == NULL) {
      snprintf(why, CONFIG_WHY, "%s names a GPU that VCUDA_MEMORY_LIMIT does not name, or names otherwise; name each in "
               "both, by UUID or by index", variable_name);
      return VC_EINVAL;
    }
    status = give(request, &parts->request[i], why);
  }
  return status;
}

int config_parse_physical(const char *text, struct requests *inout, char *why) {
  struct requests parts;
  int status = parse_list("VCUDA_PHYSICAL_LIMIT", 0, text, &parts, why);
  return status == VC_OK ? give_parts("VCUDA_PHYSICAL_LIMIT", &parts, give_physical, inout, why) : status;
}

int config_parse_cores(const char *text, struct requests *inout, char *why) {
  struct requests parts;
  int status = parse_list("VCUDA_CORES", 1, text, &parts, why);
  return status == VC_OK ? give_parts("VCUDA_CORES", &parts, give_cores, inout, why) : status;
}

int config_needs_gpus(const struct requests *requests) {
  for (uint32_t i = 0; i < requests->count; i++)
    if (requests->request[i].kind == REQUEST_INDEX) return 1;
  return 0;
}

static int resolve_every(const struct request *request, const uint8_t (*gpus)[VC_UUID_BYTES], uint32_t gpu_count,
                       struct vc_gpu_limit *out, char *why) {
  if (gpu_count > VC_MAX_GPUS) {
    snprintf(why, CONFIG_WHY, "this machine has %u GPUs and a directory holds %d; name some: GPU-<uuid>=8GiB,1=4GiB",
             gpu_count, VC_MAX_GPUS);
    return VC_EINVAL;
  }
  for (uint32_t i = 0; i < gpu_count; i++) {
    out[i] = (struct vc_gpu_limit){.memory_bytes = request->bytes, .physical_bytes = request->physical,
                                   .cores_percent = request->cores};
    memcpy(out[i].uuid, gpus[i], VC_UUID_BYTES);
  }
  return (int)gpu_count;
}

static int find_gpu(const uint8_t (*gpus)[VC_UUID_BYTES], uint32_t gpu_count, const uint8_t uuid[VC_UUID_BYTES]) {
  for (uint32_t i = 0; i < gpu_count; i++)
    if (memcmp(gpus[i], uuid, VC_UUID_BYTES) == 0) return (int)i;
  return -1;
}

static int resolve_one(const struct request *request, const uint8_t (*gpus)[VC_UUID_BYTES], uint32_t gpu_count,
                     struct vc_gpu_limit *out, char *why) {
  char text[48] = "";
  *out = (struct vc_gpu_limit){.memory_bytes = request->bytes,
                               .physical_bytes = request->physical,
                               .cores_percent = request->cores,
                               .flags = request->flags};
  memcpy(out->uuid, request->uuid, VC_UUID_BYTES);
  if (request->kind == REQUEST_INDEX && request->index >= gpu_count) {
    snprintf(why, CONFIG_WHY, "VCUDA_MEMORY_LIMIT names GPU %u, but this machine has %u; count from 0 or use UUIDs",
             request->index, gpu_count);
    return VC_EINVAL;
  }
  if (request->kind == REQUEST_INDEX) memcpy(out->uuid, gpus[request->index], VC_UUID_BYTES);
  /* MIG instances are not listed as GPUs; a UUID that no GPU has never matches. */
  if (request->kind != REQUEST_UUID || (request->flags & VC_GPU_MIG) || gpu_count == 0) return VC_OK;
  if (find_gpu(gpus, gpu_count, request->uuid) >= 0) return VC_OK;
  uuid_format(request->uuid, request->flags, text, sizeof text);
  snprintf(why, CONFIG_WHY, "VCUDA_MEMORY_LIMIT names %s, which this machine does not have; nvidia-smi -L lists them",
           text);
  return VC_EINVAL;
}

int config_resolve(const struct requests *requests, const uint8_t (*gpus)[VC_UUID_BYTES], uint32_t gpu_count,
                 struct vc_gpu_limit out[VC_MAX_GPUS], char *why) {
  const struct request *first = &requests->request[0];
  if (first->kind == REQUEST_EVERY_GPU) return resolve_every(first, gpus, gpu_count, out, why);
  for (uint32_t i = 0; i < requests->count; i++) {
    int status = resolve_one(&requests->request[i], gpus, gpu_count, &out[i], why);
    if (status != VC_OK) return status;
    for (uint32_t k = 0; k < i; k++) {
      if (memcmp(out[k].uuid, out[i].uuid, VC_UUID_BYTES) != 0) continue;
      snprintf(why, CONFIG_WHY, "VCUDA_MEMORY_LIMIT names one GPU twice, by index and by UUID; remove one of them");
      return VC_EINVAL;
    }
  }
  return (int)requests->count;
}

/* Whose page it is, and what the user can do, for the sentence. */
struct page_place {
  const char *place, *remedy;
};

static int disagree(const char *variable_name, const char *asked, const char *found, const struct vc_gpu_limit *gpu,
                    const struct page_place *page, char *why) {
  char text[48] = "";
  uuid_format(gpu->uuid, gpu->flags, text, sizeof text);
  snprintf(why, CONFIG_WHY, "%s gives %s %s, but %s gives it %s; unset %s to join, or %s", variable_name, text, asked,
           page->place, found, variable_name, page->remedy);
  return VC_EINVAL;
}

static int sizes_disagree(const char *variable_name, uint64_t asked, uint64_t found, const struct vc_gpu_limit *gpu,
                          const struct page_place *page, char *why) {
  char asked_text[TEXT_SIZE], found_text[TEXT_SIZE];
  return disagree(variable_name, text_exact(asked, asked_text), text_exact(found, found_text), gpu, page, why);
}

static int shares_disagree(uint32_t asked, uint32_t found, const struct vc_gpu_limit *gpu, const struct page_place *page,
                           char *why) {
  static const char unit[] = " per cent of its time";
  char number[TEXT_NUMBER], asked_text[64], found_text[64];
  text_join(asked_text, sizeof asked_text, text_number(asked, number), unit, "");
  text_join(found_text, sizeof found_text, text_number(found, number), "", "");
  return disagree("VCUDA_CORES", asked_text, found_text, gpu, page, why);
}

static uint64_t bytes_in_page(const struct vc_limits *page, const uint8_t uuid[VC_UUID_BYTES]) {
  for (uint32_t i = 0; i < page->gpu_count; i++)
    if (memcmp(page->gpu[i].uuid, uuid, VC_UUID_BYTES) == 0) return page->gpu[i].memory_bytes;
  return 0;
}

static struct vc_gpu_limit find_entry(const struct vc_gpu_limit *entry, int count, const uint8_t uuid[VC_UUID_BYTES]) {
  for (int i = 0; i < count; i++)
    if (memcmp(entry[i].uuid, uuid, VC_UUID_BYTES) == 0) return entry[i];
  return (struct vc_gpu_limit){.memory_bytes = 0};
}

int config_compare(const struct requests *requests, const uint8_t (*gpus)[VC_UUID_BYTES], uint32_t gpu_count,
                   const struct vc_limits *page, const char *place, const char *remedy, char *why) {
  const struct page_place where = {place, remedy};
  struct vc_gpu_limit entry[VC_MAX_GPUS];
  const struct request *first = &requests->request[0];
  int every = first->kind == REQUEST_EVERY_GPU, count = 0;
  if (!every) count = config_resolve(requests, gpus, gpu_count, entry, why);
  if (count < 0) return count;
  for (uint32_t i = 0; i < page->gpu_count; i++) {
    const struct vc_gpu_limit *found = &page->gpu[i];
    struct vc_gpu_limit asked = {
        .memory_bytes = first->bytes, .physical_bytes = first->physical, .cores_percent = first->cores};
    if (!every) asked = find_entry(entry, count, found->uuid);
    if (asked.memory_bytes != found->memory_bytes)
      return sizes_disagree("VCUDA_MEMORY_LIMIT", asked.memory_bytes, found->memory_bytes, found, &where, why);
    if (asked.physical_bytes != found->physical_bytes)
      return sizes_disagree("VCUDA_PHYSICAL_LIMIT", asked.physical_bytes, found->physical_bytes, found, &where, why);
    if (asked.cores_percent != found->cores_percent)
      return shares_disagree(asked.cores_percent, found->cores_percent, found, &where, why);
  }
  for (int i = 0; i < count; i++)
    if (bytes_in_page(page, entry[i].uuid) == 0)
      return sizes_disagree("VCUDA_MEMORY_LIMIT", entry[i].memory_bytes, 0, &entry[i], &where, why);
  return VC_OK;
}
