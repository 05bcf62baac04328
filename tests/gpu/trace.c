/* SPDX-License-Identifier: Apache-2.0 */
/* Counts every call of the driver, by any way a program or NVIDIA's runtime finds it: dlsym by handle, cuGetProcAddress,
 * and the private tables of cuGetExportTable. A preload in front of everything else; each function that is handed out
 * becomes a thunk that counts and jumps on, whatever its parameters are. x86-64 only.
 *
 * gigaslice_trace_take() writes what was called since it was last asked, one "COUNT NAME FILE" a line: the name that the
 * driver exports, or "table UUID[WORD]", and the file that the function is in (the library's, where that took its place).
 * Tests: tests/unit/gpu/test_rehearsal.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THUNKS = 2048, NAME = 80, TABLES = 16, TABLE_WORDS = 512 };

uint64_t trace_counts[THUNKS] __attribute__((visibility("hidden")));
void *trace_targets[THUNKS] __attribute__((visibility("hidden")));
extern char trace_thunks[] __attribute__((visibility("hidden")));

__asm__(".text\n.balign 16\n.hidden trace_thunks\n.globl trace_thunks\ntrace_thunks:\n"
        ".set trace_i, 0\n.rept 2048\n"
        "lock incq trace_counts + 8 * trace_i(%rip)\n"
        "jmp *trace_targets + 8 * trace_i(%rip)\n"
        ".balign 16\n.set trace_i, trace_i + 1\n.endr\n");

static char names[THUNKS][NAME], files[THUNKS][NAME];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  unsigned char id[16];
  void *word[TABLE_WORDS];
} tables[TABLES];
static int table_count;

typedef void *lookup(void *handle, const char *name);
typedef int resolve(const char *name, void **out, int version, uint64_t flags);
typedef int resolve_v2(const char *name, void **out, int version, uint64_t flags, void *status);
typedef int give_table(const void **table, const void *id);

static resolve *real_resolve;
static resolve_v2 *real_resolve_v2;
static give_table *real_table;

static lookup *next_dlsym(void) {
  static lookup *found;
  if (found == NULL) *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return found;
}

/* The thunk of TARGET. WANTED: what it is called when the driver exports no name for it. */
static void *thunk(void *target, const char *wanted) {
  Dl_info info = {.dli_fname = "?"};
  if (target == NULL) return NULL;
  if ((char *)target >= trace_thunks && (char *)target < trace_thunks + 16 * THUNKS) return target;
  int known = dladdr(target, &info);
  const char *file = known && strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
  const char *name = known && info.dli_sname != NULL && info.dli_saddr == target ? info.dli_sname : wanted;
  void *made = target;
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < used && trace_targets[i] != target) i++;
  if (i < THUNKS) {
    if (i == used) {
      used++;
      trace_targets[i] = target;
      snprintf(names[i], NAME, "%s", name);
      snprintf(files[i], NAME, "%s", file);
    }
    made = trace_thunks + 16 * i;
  }
  pthread_mutex_unlock(&lock);
  return made;
}

static void *in_place_of(const char *name, void *found);

static int traced_resolve(const char *name, void **out, int version, uint64_t flags) {
  int code = real_resolve(name, out, version, flags);
  if (code == 0 && out != NULL && *out != NULL && name != NULL) *out = in_place_of(name, *out);
  return code;
}

static int traced_resolve_v2(const char *name, void **out, int version, uint64_t flags, void *status) {
  int code = real_resolve_v2(name, out, version, flags, status);
  if (code == 0 && out != NULL && *out != NULL && name != NULL) *out = in_place_of(name, *out);
  return code;
}

/* A copy whose functions count. Word 0 is the size in bytes; what is no function of a loaded file stays as it is. */
static void **copy_of(void *const *table, const unsigned char *id) {
  uint64_t words = (uint64_t)(uintptr_t)table[0] / sizeof(void *);
  char name[NAME];
  Dl_info info;
  if (words < 2 || words > TABLE_WORDS || table_count == TABLES) return NULL;
  memcpy(tables[table_count].id, id, 16);
  void **copy = tables[table_count++].word;
  copy[0] = table[0];
  for (uint64_t i = 1; i < words; i++) {
    snprintf(name, sizeof name, "table %02x%02x%02x%02x[%d]", id[0], id[1], id[2], id[3], (int)i);
    copy[i] = table[i] != NULL && dladdr(table[i], &info) ? thunk(table[i], name) : table[i];
  }
  return copy;
}

static int traced_table(const void **table, const void *id) {
  int code = real_table(table, id);
  const char *wanted = getenv("GIGASLICE_TRACE_TABLES"); /* a runtime that looks its tables over may not like copies */
  if (code != 0 || table == NULL || *table == NULL || id == NULL || (wanted != NULL && wanted[0] == '0')) return code;
  void **copy = NULL;
  for (int i = 0; i < table_count; i++)
    if (memcmp(tables[i].id, id, 16) == 0) copy = tables[i].word;
  if (copy == NULL) copy = copy_of(*table, id);
  if (copy != NULL) *table = copy;
  return code;
}

static void *in_place_of(const char *name, void *found) {
  if (strcmp(name, "cuGetProcAddress_v2") == 0) {
    *(void **)&real_resolve_v2 = found;
    return (void *)traced_resolve_v2;
  }
  if (strcmp(name, "cuGetProcAddress") == 0) {
    /* The name without a version means the first or the second, by the version asked for: both begin alike. */
    Dl_info info;
    if (dladdr(found, &info) && info.dli_sname != NULL && strcmp(info.dli_sname, "cuGetProcAddress_v2") == 0)
      return in_place_of("cuGetProcAddress_v2", found);
    *(void **)&real_resolve = found;
    return (void *)traced_resolve;
  }
  if (strcmp(name, "cuGetExportTable") == 0) {
    *(void **)&real_table = found;
    return (void *)traced_table;
  }
  return thunk(found, name);
}

/* A capital after "cu": the driver's. Scopes that depend on the caller are jumped to, so that it stays the caller. */
__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
  lookup *next = next_dlsym();
  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' ||
      name[2] > 'Z')
    return next(handle, name);
  void *found = next(handle, name);
  return found != NULL ? in_place_of(name, found) : NULL;
}

/* Bytes written, or needed when that is more than SIZE. */
__attribute__((visibility("default"))) long gigaslice_trace_take(char *out, long size) {
  long length = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < used; i++) {
    uint64_t count = __atomic_exchange_n(&trace_counts[i], 0, __ATOMIC_RELAXED);
    char line[3 * NAME];
    if (count == 0) continue;
    int bytes = snprintf(line, sizeof line, "%llu\t%s\t%s\n", (unsigned long long)count, names[i], files[i]);
    if (length + bytes < size) memcpy(out + length, line, (size_t)bytes);
    length += bytes;
  }
  if (length < size) out[length] = 0;
  pthread_mutex_unlock(&lock);
  return length;
}
