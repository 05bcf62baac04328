/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes name a quota's directory, by what /proc shows of them.
 *
 * In the midst of execve(2) a process has memory, and neither arguments nor an environment yet. The arguments come
 * first, so an environment that is still empty after them is. A process whose program takes long to be loaded may be
 * the one: it counts, and the next to ask looks again.
 * Tests: tests/native/test_quota.c, tests/unit/vcuda/test_quotas.py. */
#include <string.h>

#include "os.h"
#include "quota.h"
#include "text.h"
#include "tree.h"

/* Longer than a program usually takes to be loaded; on a busy machine one takes longer. Who sweeps leaves the directory to
 * the next one then. Who wants to make a quota anew would be refused CUDA, and waits: less than others for the lock. */
enum { EXEC_MS = 100, EXEC_BUSY_MS = 3000 };
enum { PATH = 512, MOST_UNSURE = 64, POLL_US = 2000 };

struct search {
  const char *proc, *directory;
  const char *quota; /* the name that VCUDA_QUOTA has; NULL: it has none */
  int mapped;        /* processes name it by what they have mapped, too */
  char ledger[PATH]; /* how the kernel shows that, or the end of it */
  const struct quota_values *ours;
  int32_t self, *pid;
  uint32_t unsure;
  struct {
    int32_t pid;
    int loaded; /* it has its arguments: its environment is read once more */
  } process[MOST_UNSURE];
};

const char *quota_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

static const char *value_of(const char *entry, const char *name) {
  size_t length = strlen(name);
  return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

static int same(const char *a, const char *b) { return a != NULL && b != NULL && strcmp(a, b) == 0; }

/* What an environment has of the quota. */
struct environment {
  const struct search *search;
  int named, by_name, in_base;
  uint32_t agreeing, given; /* of the three values */
};

/* Whether quotas by name lie in this one's base for a program with this XDG_RUNTIME_DIR. */
static int is_runtime_of(const char *runtime, const char *directory) {
  size_t length = strlen(runtime);
  return strncmp(directory, runtime, length) == 0 &&
         strncmp(directory + length, "/vcuda/" QUOTA_NAMED, sizeof "/vcuda/" QUOTA_NAMED - 1) == 0;
}

static int look_at_entry(const char *entry, void *context) {
  struct environment *environment = context;
  const struct search *search = environment->search;
  const char *runtime = value_of(entry, "XDG_RUNTIME_DIR");
  if (runtime != NULL) environment->in_base |= is_runtime_of(runtime, search->directory);
  static const char *const names[] = {"VCUDA_MEMORY_LIMIT", "VCUDA_PHYSICAL_LIMIT", "VCUDA_CORES"};
  if (strncmp(entry, "VCUDA_", 6) != 0) return 0;
  if (same(value_of(entry, "VCUDA_DIR"), search->directory)) environment->named = 1;
  if (same(value_of(entry, "VCUDA_QUOTA"), search->quota)) environment->by_name = 1;
  if (search->ours == NULL) return 0;
  const char *const ours[] = {search->ours->memory, search->ours->physical, search->ours->cores};
  for (int i = 0; i < 3; i++) {
    const char *value = value_of(entry, names[i]);
    if (value == NULL) continue;
    environment->given++;
    environment->agreeing += (uint32_t)same(value, ours[i]);
  }
  return 0;
}

static uint32_t values_given(const struct quota_values *values) {
  return (uint32_t)((values->memory != NULL) + (values->physical != NULL) + (values->cores != NULL));
}

static void path_of(const struct search *search, int32_t pid, const char *file, char out[PATH]) {
  char number[TEXT_NUMBER], folder[PATH];
  text_join(folder, sizeof folder, search->proc, "/", text_number((uint32_t)pid, number));
  text_join(out, PATH, folder, "/", file);
}

enum naming { NAMES_NOT, NAMES, EMPTY };

static enum naming by_environment(const struct search *search, int32_t pid) {
  static const char temporary[] = "/tmp/vcuda-"; /* used with XDG_RUNTIME_DIR too, where that is of no use */
  struct environment environment = {.search = search,
                                    .in_base = strncmp(search->directory, temporary, sizeof temporary - 1) == 0};
  char path[PATH];
  size_t bytes;
  path_of(search, pid, "environ", path);
  if (tree_texts(path, 0, look_at_entry, &environment, &bytes) != VC_OK) return NAMES_NOT;
  if (bytes == 0) return EMPTY;
  if (environment.named) return NAMES;
  if (!environment.by_name || !environment.in_base) return NAMES_NOT;
  if (search->ours == NULL) return NAMES;
  uint32_t ours = values_given(search->ours);
  return environment.given == ours && environment.agreeing == ours ? NAMES_NOT : NAMES;
}

static int ends_with(const char *text, const char *end) {
  size_t length = strlen(text), size = strlen(end);
  return length >= size && strcmp(text + length - size, end) == 0;
}

/* Who has attached has the ledger mapped; the page alone may be that of a process which only looked whether it has
 * shares. */
static int look_at_mapping(const char *line, void *context) {
  const struct search *search = context;
  const char *path = strchr(line, '/');
  return path != NULL && ends_with(path, search->ledger);
}

/* The kernel shows a path without the links that led to it. A head's name is the only one of its kind; one that a user
 * chose may be in other bases, too. */
static void find_ledger(struct search *search) {
  char real[PATH];
  int named = search->quota != NULL && tree_real_path(search->directory, real, sizeof real) == VC_OK;
  if (named)
    text_join(search->ledger, sizeof search->ledger, real, "/ledger", "");
  else
    text_join(search->ledger, sizeof search->ledger, "/", quota_base_name(search->directory), "/ledger");
}

static int by_mapping(const struct search *search, int32_t pid) {
  char path[PATH];
  size_t bytes;
  if (!search->mapped) return 0;
  path_of(search, pid, "maps", path);
  return tree_texts(path, '\n', look_at_mapping, (void *)(uintptr_t)search, &bytes) == 1;
}

/* Neither a thread of the kernel nor a zombie. */
static int has_memory(const struct search *search, int32_t pid) {
  char path[PATH], text[8];
  path_of(search, pid, "statm", path);
  return tree_read(path, 0, text, sizeof text) > 0 && strncmp(text, "0 ", 2) != 0;
}

/* At least an empty one comes with each program. */
static int has_arguments(const struct search *search, int32_t pid) {
  char path[PATH], text[2];
  path_of(search, pid, "cmdline", path);
  return tree_read(path, 0, text, sizeof text) > 0;
}

static int32_t number_of(const char *text) {
  int64_t number = 0;
  for (const char *digit = text; *digit != 0; digit++) {
    if (*digit < '0' || *digit > '9' || number > INT32_MAX / 10) return 0;
    number = number * 10 + (*digit - '0');
  }
  return number <= INT32_MAX ? (int32_t)number : 0;
}

static int found(const struct search *search, int32_t pid) {
  if (search->pid != NULL) *search->pid = pid;
  return 1;
}

static int look_at_process(const char *name, void *context) {
  struct search *search = context;
  int32_t pid = number_of(name);
  if (pid == 0 || pid == search->self) return 0;
  enum naming naming = by_environment(search, pid);
  if (naming == NAMES || by_mapping(search, pid)) return found(search, pid);
  if (naming != EMPTY || !has_memory(search, pid)) return 0;
  if (search->unsure == MOST_UNSURE) return found(search, pid);
  search->process[search->unsure].loaded = 0;
  search->process[search->unsure++].pid = pid;
  return 0;
}

/* Once more those whose environment was empty; those that are still unsure remain. */
static int look_again(struct search *search) {
  uint32_t unsure = 0;
  for (uint32_t i = 0; i < search->unsure; i++) {
    int32_t pid = search->process[i].pid;
    enum naming naming = by_environment(search, pid);
    if (naming == NAMES) return found(search, pid);
    if (naming == EMPTY && !search->process[i].loaded && has_memory(search, pid))
      search->process[unsure++].pid = pid;
  }
  search->unsure = unsure;
  return 0;
}

static int look(struct search *search) {
  if (tree_names(search->proc, look_at_process, search) != 0) return 1; /* also where nothing is to be seen */
  uint64_t end = os_now_ns() + (uint64_t)(search->ours != NULL ? EXEC_BUSY_MS : EXEC_MS) * 1000000;
  while (search->unsure != 0) {
    if (os_now_ns() > end) return found(search, search->process[0].pid);
    for (uint32_t i = 0; i < search->unsure; i++)
      search->process[i].loaded = has_arguments(search, search->process[i].pid);
    os_sleep_us(POLL_US);
    if (look_again(search)) return 1;
  }
  return 0;
}

static int begins_with(const char *text, const char *begin) { return strncmp(text, begin, strlen(begin)) == 0; }

int quota_named_by(const char *proc, const char *directory, const struct quota_values *ours, int32_t *pid) {
  const char *name = quota_base_name(directory);
  int named = begins_with(name, QUOTA_NAMED);
  struct search search = {.proc = proc,
                          .directory = directory,
                          .quota = named ? name + sizeof QUOTA_NAMED - 1 : NULL,
                          .mapped = named || begins_with(name, QUOTA_HEAD),
                          .ours = ours,
                          .self = ours != NULL ? os_pid() : 0,
                          .pid = pid};
  find_ledger(&search);
  return look(&search);
}

int quota_is_named(const char *proc, const char *directory) { return quota_named_by(proc, directory, NULL, NULL); }
