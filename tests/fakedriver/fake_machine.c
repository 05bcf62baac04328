/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a machine file (format: README.md) and fills what it leaves out.
 * Must not depend on processes, the shared state or the driver's interfaces.
 * Tests: tests/unit/fakedriver/test_machine_file.py. */
#include "fake_machine.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
  struct fake_machine *machine;
  struct fake_gpu common;        /* "gpu *:" */
  uint32_t given[FAKE_MAX_GPUS]; /* bit per gpu_keys[] entry that "gpu N:" has set */
  int section;                   /* GPU number, SECTION_ALL or SECTION_NONE */
  uint32_t named;                /* "gpus:", or highest "gpu N:" + 1 */
  uint64_t seed;
  struct fake_topology *matrix; /* inside a "topology:" or "pcie:" block */
  struct fake_topology topology, pcie;
  char *error;
};

enum { SECTION_NONE = -2, SECTION_ALL = -1 };

static int parse_scaled(const char *text, const char *const *units, const uint64_t *scales, uint64_t *out) {
  char *end;
  if (!isdigit((unsigned char)*text)) return -1;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  if (errno) return -1;
  for (int i = 0; units[i]; i++) {
    if (strcmp(end, units[i]) != 0) continue;
    if (number > (1ull << 47) / scales[i]) return -1;
    *out = number * scales[i];
    return 0;
  }
  return -1;
}

static int parse_bytes(const char *text, uint64_t *out) {
  static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB", NULL};
  static const uint64_t scales[] = {1, 1ull << 10, 1ull << 20, 1ull << 30, 1ull << 40};
  return parse_scaled(text, units, scales, out);
}

int machine_parse_time(const char *text, uint64_t *ns) {
  static const char *const units[] = {"ns", "us", "ms", "s", NULL};
  static const uint64_t scales[] = {1, 1000, 1000000, 1000000000};
  if (!strcmp(text, "0")) {
    *ns = 0;
    return 0;
  }
  return parse_scaled(text, units, scales, ns);
}

static int parse_number(const char *text, uint64_t least, uint64_t most, uint32_t *out) {
  char *end;
  unsigned long long value = strtoull(text, &end, 10);
  if (!isdigit((unsigned char)*text) || *end || value < least || value > most) return -1;
  *out = (uint32_t)value;
  return 0;
}

static int parse_flag(const char *text, uint32_t *out) {
  if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0) return -1;
  *out = text[0] == 'y';
  return 0;
}

static int parse_uuid(const char *text, uint8_t uuid[16]) {
  if (strncmp(text, "GPU-", 4) != 0 || strlen(text) != 40) return -1;
  int nibbles = 0;
  for (const char *at = text + 4; *at; at++) {
    long position = at - text - 4;
    if (position == 8 || position == 13 || position == 18 || position == 23) {
      if (*at != '-') return -1;
      continue;
    }
    if (!isxdigit((unsigned char)*at)) return -1;
    int digit = isdigit((unsigned char)*at) ? *at - '0' : tolower((unsigned char)*at) - 'a' + 10;
    uint8_t *byte = &uuid[nibbles / 2];
    *byte = (uint8_t)(nibbles % 2 ? *byte | digit : digit << 4);
    nibbles++;
  }
  return nibbles == 32 ? 0 : -1;
}

void machine_uuid_text(const uint8_t uuid[16], char out[41]) {
  char *at = out + sprintf(out, "GPU-");
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
    at += sprintf(at, "%02x", uuid[i]);
  }
}

void machine_gpu_name(const struct fake_machine *machine, const struct fake_gpu *gpu, char out[41]) {
  machine_uuid_text(gpu->uuid, out);
  if (machine->mig) memcpy(out, "MIG", 3);
}

/* --- keys of one GPU -------------------------------------------------------------------------------------------- */

static int set_model(struct fake_gpu *g, const char *v) {
  if (strlen(v) >= sizeof g->model) return -1;
  memset(g->model, 0, sizeof g->model);
  memcpy(g->model, v, strlen(v));
  return 0;
}
static int set_memory(struct fake_gpu *g, const char *v) {
  return parse_bytes(v, &g->memory_bytes) || !g->memory_bytes;
}
static int set_reserved(struct fake_gpu *g, const char *v) { return parse_bytes(v, &g->reserved_bytes); }
static int set_uuid(struct fake_gpu *g, const char *v) { return parse_uuid(v, g->uuid); }
static int set_numa(struct fake_gpu *g, const char *v) {
  uint32_t node;
  if (parse_number(v, 0, 1023, &node)) return -1;
  g->numa = (int32_t)node;
  return 0;
}
static int set_pci(struct fake_gpu *g, const char *v) {
  int end = 0;
  return sscanf(v, "%8x:%2x:%2x.0%n", &g->pci_domain, &g->pci_bus, &g->pci_device, &end) != 3 || v[end] ? -1 : 0;
}
static int set_minor(struct fake_gpu *g, const char *v) { return parse_number(v, 0, 255, &g->minor); }
static int set_capability(struct fake_gpu *g, const char *v) {
  int end = 0;
  return sscanf(v, "%2u.%1u%n", &g->major_capability, &g->minor_capability, &end) != 2 || v[end] ? -1 : 0;
}
static int set_multiprocessors(struct fake_gpu *g, const char *v) {
  return parse_number(v, 1, 1024, &g->multiprocessors);
}
static int set_cpus(struct fake_gpu *g, const char *v) { return machine_parse_cpus(v, g->cpus); }

static const struct gpu_key {
  const char *name;
  int (*set)(struct fake_gpu *gpu, const char *value);
  const char *expected;
} gpu_keys[] = {
    {"model", set_model, "a name of at most 63 characters"},
    {"memory", set_memory, "a size such as 24GiB, above 0"},
    {"reserved", set_reserved, "a size such as 512MiB"},
    {"uuid", set_uuid, "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"},
    {"numa", set_numa, "a NUMA node such as 0"},
    {"pci", set_pci, "an address such as 00000000:3b:00.0"},
    {"minor", set_minor, "0 to 255"},
    {"capability", set_capability, "a compute capability such as 9.0"},
    {"multiprocessors", set_multiprocessors, "1 to 1024"},
    {"cpus", set_cpus, "a CPU list such as 0-31,64-95 (of CPUs 0-255)"},
};
enum { GPU_KEYS = sizeof gpu_keys / sizeof *gpu_keys };

/* --- keys of the machine ---------------------------------------------------------------------------------------- */

static int set_driver_version(struct reader *r, const char *v) {
  if (!isdigit((unsigned char)*v) || strlen(v) >= sizeof r->machine->driver_version) return -1;
  strcpy(r->machine->driver_version, v);
  return 0;
}
static int set_cuda_version(struct reader *r, const char *v) {
  return parse_number(v, 10000, 99990, &r->machine->cuda_version);
}
static int set_gpus(struct reader *r, const char *v) { return parse_number(v, 1, FAKE_MAX_GPUS, &r->named); }
static int set_nvswitch(struct reader *r, const char *v) { return parse_flag(v, &r->machine->nvswitch); }
static int set_counters(struct reader *r, const char *v) { return parse_flag(v, &r->machine->counters); }
static int set_accounting(struct reader *r, const char *v) { return parse_flag(v, &r->machine->accounting); }
static int set_confidential(struct reader *r, const char *v) { return parse_flag(v, &r->machine->confidential); }
static int set_mig(struct reader *r, const char *v) { return parse_flag(v, &r->machine->mig); }
static int set_persistence(struct reader *r, const char *v) { return parse_flag(v, &r->machine->persistence); }
/* The place of V among NAMES. */
static int parse_choice(const char *v, const char *const *names, uint32_t *out) {
  for (uint32_t i = 0; names[i]; i++) {
    if (strcmp(v, names[i]) != 0) continue;
    *out = i;
    return 0;
  }
  return -1;
}
static int set_limits(struct reader *r, const char *v) {
  static const char *const names[] = {"none", "off", "misc", "dmem", NULL};
  return parse_choice(v, names, &r->machine->memory_limits);
}
static int set_below(struct reader *r, const char *v) {
  static const char *const names[] = {"backend", "refused", "taken", NULL};
  return parse_choice(v, names, &r->machine->memory_limits_below);
}
static int set_shown(struct reader *r, const char *v) {
  static const char *const names[] = {"own", "tightest", "no", NULL};
  return parse_choice(v, names, &r->machine->memory_limits_shown);
}
static int set_overcount(struct reader *r, const char *v) {
  return parse_number(v, 0, 100, &r->machine->memory_limits_overcount);
}
static int set_reuse(struct reader *r, const char *v) { return parse_flag(v, &r->machine->memory_limits_reuse); }
static int set_controller(struct reader *r, const char *v) {
  return parse_flag(v, &r->machine->memory_limits_controller);
}
static int set_earlier(struct reader *r, const char *v) { return parse_flag(v, &r->machine->memory_limits_earlier); }
static int set_total(struct reader *r, const char *v) { return parse_flag(v, &r->machine->memory_limits_total); }
static int set_invisible(struct reader *r, const char *v) {
  static const char *const names[] = {"zero", "left_out", "listed", NULL};
  return parse_choice(v, names, &r->machine->invisible);
}
static int set_private_head(struct reader *r, const char *v) {
  return parse_number(v, 24, 4096, &r->machine->private_head);
}
static int set_context(struct reader *r, const char *v) { return parse_bytes(v, &r->machine->context_bytes); }
static int set_module(struct reader *r, const char *v) { return parse_bytes(v, &r->machine->module_bytes); }
static int set_granularity(struct reader *r, const char *v) {
  return parse_bytes(v, &r->machine->granularity) || !r->machine->granularity;
}
static int set_pool(struct reader *r, const char *v) {
  return parse_bytes(v, &r->machine->pool_granularity) || !r->machine->pool_granularity;
}
static int set_launch(struct reader *r, const char *v) { return machine_parse_time(v, &r->machine->launch_ns); }
static int set_paging(struct reader *r, const char *v) { return machine_parse_time(v, &r->machine->paging_ns); }
static int set_managed(struct reader *r, const char *v) { return parse_flag(v, &r->machine->managed_access); }
static int set_latency(struct reader *r, const char *v) {
  if (strlen(v) >= sizeof r->machine->latency) return -1;
  strcpy(r->machine->latency, v);
  return 0;
}
static int set_seed(struct reader *r, const char *v) {
  uint32_t seed;
  if (parse_number(v, 0, UINT32_MAX, &seed)) return -1;
  r->seed = seed;
  return 0;
}

static const struct machine_key {
  const char *name;
  int (*set)(struct reader *reader, const char *value);
  const char *expected;
} machine_keys[] = {
    {"driver_version", set_driver_version, "a version such as 550.163.01"},
    {"cuda_version", set_cuda_version, "1000 * major + 10 * minor, such as 12040"},
    {"gpus", set_gpus, "1 to 16"},
    {"nvswitch", set_nvswitch, "yes or no"},
    {"counters", set_counters, "yes or no"},
    {"accounting", set_accounting, "yes or no"},
    {"confidential", set_confidential, "yes or no"},
    {"mig", set_mig, "yes or no"},
    {"persistence", set_persistence, "yes or no"},
    {"memory_limits", set_limits, "none, off, misc or dmem"},
    {"memory_limits_overcount", set_overcount, "per cent, 0 to 100"},
    {"memory_limits_reuse", set_reuse, "yes or no"},
    {"memory_limits_controller", set_controller, "yes or no"},
    {"memory_limits_earlier", set_earlier, "yes or no"},
    {"memory_limits_below", set_below, "backend, refused or taken"},
    {"memory_limits_shown", set_shown, "own, tightest or no"},
    {"memory_limits_total", set_total, "yes or no"},
    {"invisible_processes", set_invisible, "zero, left_out or listed"},
    {"private_head", set_private_head, "24 to 4096"},
    {"context_memory", set_context, "a size such as 256MiB"},
    {"module_memory", set_module, "a size such as 4MiB"},
    {"granularity", set_granularity, "a size such as 512 or 2MiB, above 0"},
    {"pool_granularity", set_pool, "a size such as 32MiB, above 0"},
    {"launch", set_launch, "a time such as 5us"},
    {"paging", set_paging, "a time such as 40us"},
    {"managed_access", set_managed, "yes or no"},
    {"latency", set_latency, "calls and times such as cuMemAlloc_v2=3us, *=0"},
    {"seed", set_seed, "a number; it chooses the UUIDs"},
};
enum { MACHINE_KEYS = sizeof machine_keys / sizeof *machine_keys };

/* --- lines ------------------------------------------------------------------------------------------------------ */

static char *trim(char *text) {
  while (isspace((unsigned char)*text)) text++;
  char *end = text + strlen(text);
  while (end > text && isspace((unsigned char)end[-1])) *--end = '\0';
  return text;
}

static int section_line(struct reader *r, const char *which) {
  uint32_t number;
  if (!strcmp(which, "*")) {
    r->section = SECTION_ALL;
    return 0;
  }
  if (parse_number(which, 0, FAKE_MAX_GPUS - 1, &number)) {
    snprintf(r->error, FAKE_TEXT, "\"gpu %s:\" is neither gpu 0: to gpu %d: nor gpu *:", which, FAKE_MAX_GPUS - 1);
    return -1;
  }
  r->section = (int)number;
  if (r->named <= number) r->named = number + 1;
  return 0;
}

static int gpu_line(struct reader *r, int key, const char *value) {
  if (r->section == SECTION_NONE) {
    snprintf(r->error, FAKE_TEXT, "\"%s\" belongs below a line gpu <n>: or gpu *:", gpu_keys[key].name);
    return -1;
  }
  struct fake_gpu *gpu = r->section == SECTION_ALL ? &r->common : &r->machine->gpu[r->section];
  if (gpu_keys[key].set(gpu, value)) {
    snprintf(r->error, FAKE_TEXT, "%s: \"%s\" is not %s", gpu_keys[key].name, value, gpu_keys[key].expected);
    return -1;
  }
  if (r->section >= 0) r->given[r->section] |= 1u << key;
  return 0;
}

static int key_line(struct reader *r, const char *key, const char *value) {
  for (int i = 0; i < GPU_KEYS; i++)
    if (!strcmp(key, gpu_keys[i].name)) return gpu_line(r, i, value);
  for (int i = 0; i < MACHINE_KEYS; i++) {
    if (strcmp(key, machine_keys[i].name) != 0) continue;
    if (!machine_keys[i].set(r, value)) return 0;
    snprintf(r->error, FAKE_TEXT, "%s: \"%s\" is not %s", key, value, machine_keys[i].expected);
    return -1;
  }
  snprintf(r->error, FAKE_TEXT, "unknown key \"%s\" (README.md of the simulated driver lists the keys)", key);
  return -1;
}

static int read_line(struct reader *r, char *line) {
  if (r->matrix) {
    if (strcmp(trim(line), "end") != 0) return topology_line(r->matrix, line, r->error);
    r->matrix = NULL;
    return 0;
  }
  char *comment = strchr(line, '#');
  if (comment) *comment = '\0';
  line = trim(line);
  if (!*line) return 0;
  char *colon = strchr(line, ':');
  if (!colon) {
    snprintf(r->error, FAKE_TEXT, "\"%.60s\" is not \"key: value\"", line);
    return -1;
  }
  *colon = '\0';
  char *key = trim(line), *value = trim(colon + 1);
  if (!strcmp(key, "topology") || !strcmp(key, "pcie")) {
    r->matrix = key[0] == 't' ? &r->topology : &r->pcie;
    r->matrix->pcie = key[0] == 'p';
    return 0;
  }
  if (!strncmp(key, "gpu ", 4) && !*value) return section_line(r, trim(key + 4));
  return key_line(r, key, value);
}

/* --- what the file leaves out ----------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) { /* splitmix64 */
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

static void fill_gpu(struct reader *r, uint32_t index) {
  struct fake_gpu *gpu = &r->machine->gpu[index], own = *gpu;
  *gpu = r->common;
  gpu->gpu_numa = -1;
  gpu->minor = index;
  gpu->pci_bus = 0x10 + 8 * index;
  uint64_t high = mix(r->seed * 2 + 1 + ((uint64_t)index << 40)), low = mix(high);
  memcpy(gpu->uuid, &high, 8);
  memcpy(gpu->uuid + 8, &low, 8);
  gpu->uuid[6] = (uint8_t)((gpu->uuid[6] & 0x0f) | 0x40); /* a random UUID by its bits, as real ones are */
  gpu->uuid[8] = (uint8_t)((gpu->uuid[8] & 0x3f) | 0x80);
#define TAKE(key, field) \
  for (int k = 0; k < GPU_KEYS; k++) \
    if (!strcmp(gpu_keys[k].name, key) && (r->given[index] >> k & 1)) memcpy(&gpu->field, &own.field, sizeof own.field)
  TAKE("model", model);
  TAKE("memory", memory_bytes);
  TAKE("reserved", reserved_bytes);
  TAKE("uuid", uuid);
  TAKE("numa", numa);
  TAKE("pci", pci_domain);
  TAKE("pci", pci_bus);
  TAKE("pci", pci_device);
  TAKE("minor", minor);
  TAKE("capability", major_capability);
  TAKE("capability", minor_capability);
  TAKE("multiprocessors", multiprocessors);
  TAKE("cpus", cpus);
#undef TAKE
}

static int finish(struct reader *r) {
  struct fake_machine *m = r->machine;
  char inner[FAKE_TEXT];
  uint32_t matrix = 0;
  for (int c = 0; c < r->topology.columns; c++) matrix += r->topology.column_gpu[c] >= 0;
  if (r->named == 0) r->named = matrix;
  if (r->named == 0) {
    snprintf(r->error, FAKE_TEXT, "no GPU: write gpus: <n>, gpu <n>: sections or a topology: block");
    return -1;
  }
  for (uint32_t i = 0; i < r->named; i++) fill_gpu(r, i);
  m->gpu_count = r->named;
  if (r->topology.columns && topology_end(&r->topology, m, inner)) {
    snprintf(r->error, FAKE_TEXT, "topology: %.200s", inner);
    return -1;
  }
  if (r->pcie.columns && topology_end(&r->pcie, m, inner)) {
    snprintf(r->error, FAKE_TEXT, "pcie: %.200s", inner);
    return -1;
  }
  for (uint32_t a = 0; a < m->gpu_count; a++) {
    uint32_t links = 0;
    for (uint32_t b = 0; b < m->gpu_count; b++) {
      links += m->links[a][b];
      if (a != b && m->level[a][b] == FAKE_LEVEL_SELF)
        m->level[a][b] = m->gpu[a].numa == m->gpu[b].numa ? FAKE_LEVEL_NODE : FAKE_LEVEL_SYS;
      int same = a != b && (!memcmp(m->gpu[a].uuid, m->gpu[b].uuid, 16) ||
                            (m->gpu[a].pci_domain == m->gpu[b].pci_domain && m->gpu[a].pci_bus == m->gpu[b].pci_bus &&
                             m->gpu[a].pci_device == m->gpu[b].pci_device));
      if (same) {
        snprintf(r->error, FAKE_TEXT, "gpu %u and gpu %u have the same uuid or PCI address", a, b);
        return -1;
      }
    }
    if (!m->nvswitch && links > FAKE_MAX_LINKS) {
      snprintf(r->error, FAKE_TEXT, "gpu %u has %u NVLinks, %d is the most; with switches write nvswitch: yes", a,
               links, FAKE_MAX_LINKS);
      return -1;
    }
    if (m->gpu[a].reserved_bytes >= m->gpu[a].memory_bytes) {
      snprintf(r->error, FAKE_TEXT, "gpu %u: reserved memory must be less than its memory", a);
      return -1;
    }
  }
  return 0;
}

static void defaults(struct reader *r) {
  struct fake_machine *m = r->machine;
  memset(m, 0, sizeof *m);
  strcpy(m->driver_version, "550.163.01");
  m->cuda_version = 12040;
  m->context_bytes = 256ull << 20;
  m->granularity = 1;
  m->managed_access = 1;
  m->persistence = 1;
  m->memory_limits_controller = 1;
  m->pool_granularity = 32ull << 20;
  strcpy(r->common.model, "NVIDIA L4");
  r->common.memory_bytes = 24ull << 30;
  r->common.numa = -1;
  r->common.major_capability = 8;
  r->common.minor_capability = 9;
  r->common.multiprocessors = 58;
}

int machine_load(const char *path, struct fake_machine *machine, uint64_t *hash, char error[FAKE_TEXT]) {
  struct reader *r = calloc(1, sizeof *r);
  FILE *file = r ? fopen(path, "re") : NULL;
  if (!file) {
    snprintf(error, FAKE_TEXT, "machine file %.150s: %s", path, strerror(errno));
    free(r);
    return -1;
  }
  char line[2048], inner[FAKE_TEXT] = "";
  int number = 0, failed = 0;
  uint64_t sum = 0xcbf29ce484222325ull;
  r->machine = machine;
  r->section = SECTION_NONE;
  r->error = inner;
  defaults(r);
  while (!failed && fgets(line, sizeof line, file)) {
    number++;
    for (const char *at = line; *at; at++) sum = (sum ^ (uint8_t)*at) * 0x100000001b3ull;
    if (!strchr(line, '\n') && strlen(line) + 1 == sizeof line) {
      snprintf(inner, sizeof inner, "the line is longer than %zu characters", sizeof line - 2);
      failed = 1;
    } else {
      failed = read_line(r, line);
    }
  }
  if (!failed && ferror(file)) {
    snprintf(error, FAKE_TEXT, "machine file %.150s: %s", path, strerror(errno));
    failed = -1;
  } else if (failed || finish(r)) {
    snprintf(error, FAKE_TEXT, "machine file %.80s line %d: %.140s", path, number, inner);
    failed = -1;
  }
  fclose(file);
  free(r);
  *hash = sum ? sum : 1;
  return failed ? -1 : 0;
}
