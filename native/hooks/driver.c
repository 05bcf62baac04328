/* SPDX-License-Identifier: Apache-2.0 */
/* Finds driver libraries and fills the tables of real functions.
 * Uses no policy. Tests: tests/integration/test_native_lookup.py. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "runtime_state.h"
#include "loader.h"
#include "lock.h"
#include "names.h"
#include "objects.h"
#include "os.h"
#include "plain.h"
#include "pointers.h"

struct member {
  struct symbol name;
  uint32_t offset;
};

#define MEMBER(symbol) {SYMBOL(symbol), offsetof(API, symbol)},
#define HOOK(body, symbol, params, args) MEMBER(symbol)
#define NEED(symbol) MEMBER(symbol)
#define API struct cuda_api
static const struct member cuda_members[] = {
#include "cuda.def"
};
#undef API
#define API struct nvml_api
static const struct member nvml_members[] = {
#include "nvml.def"
};
#undef API
#undef HOOK
#undef NEED

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct {
  const char *soname;
  const struct member *members;
  size_t member_count;
  void *api;
} drivers[DRIVER_KINDS] = {
    [DRIVER_CUDA] = {"libcuda.so.1", cuda_members, COUNT(cuda_members), &real_cuda},
    [DRIVER_NVML] = {"libnvidia-ml.so.1", nvml_members, COUNT(nvml_members), &real_nvml},
};

static _Atomic int known[DRIVER_KINDS];
static _Atomic int missing[DRIVER_KINDS];
static void *handles[DRIVER_KINDS]; /* of the adopted object */
static struct lock lock;

_Static_assert((int)HOOK_CUDA == (int)DRIVER_CUDA && (int)HOOK_NVML == (int)DRIVER_NVML, "one numbering");

/* Keeps the object mapped: programs close libnvidia-ml and open it again, and our pointers must survive that. */
static void *pin(const struct object *object) {
  return loader_ready() ? loader_real.dlopen(object->path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) : NULL;
}

static void publish(enum driver_kind kind, const struct object *object, void *const *functions) {
  for (size_t i = 0; i < drivers[kind].member_count; i++)
    memcpy((char *)drivers[kind].api + drivers[kind].members[i].offset, &functions[i], sizeof functions[i]);
  if (!runtime_is_limited()) return; /* without limits nothing takes anything's place */
  pointers_begin(kind, object->begin);
  names_adopted((enum hook_kind)kind);
  pointers_publish(kind, object->end);
}

/* The first object that is adopted is the driver for good. None is while a forked child could find the lock taken. */
static void adopt(enum driver_kind kind, const struct object *object) {
  void *functions[COUNT(cuda_members) + COUNT(nvml_members)];
  for (size_t i = 0; i < drivers[kind].member_count; i++)
    functions[i] = objects_function(object, symbol_text(drivers[kind].members[i].name));
  void *handle = pin(object);
  uint64_t signals;
  if (!runtime_may_lock()) return;
  runtime_may_be_held();         /* reads a file: not under the lock */
  os_signals_block(&signals); /* a handler that comes here would wait for its own thread */
  lock_take(&lock);
  if (!atomic_load_explicit(&known[kind], memory_order_relaxed)) {
    handles[kind] = handle;
    publish(kind, object, functions);
    atomic_store_explicit(&known[kind], 1, memory_order_release);
  }
  lock_give(&lock);
  os_signals_restore(&signals);
}

static int find_loaded(enum driver_kind kind) {
  struct object object;
  if (!objects_find_soname(drivers[kind].soname, &object)) return 0;
  adopt(kind, &object);
  return atomic_load_explicit(&known[kind], memory_order_acquire);
}

/* The loader's message, in whatever language, ends with what the system says of the last file that it tried. */
static int says_there_is_none(const char *message) {
  const char *reason = strerror(ENOENT);
  size_t length = message != NULL ? strlen(message) : 0, end = strlen(reason);
  return length >= end && strcmp(message + length - end, reason) == 0;
}

/* No lock is held while the loader runs: constructors of the library it loads may call back in, and another thread may
 * be in a constructor of its own, waiting for us. A machine without NVML is asked for it once. A file that is there may
 * fail to load for a moment, by one system call of ten, and a first context is measured but once. */
static int find(enum driver_kind kind) {
  enum { TRIES = 3 };
  if (atomic_load_explicit(&known[kind], memory_order_acquire) || find_loaded(kind)) return 1;
  if (!loader_ready() || atomic_load_explicit(&missing[kind], memory_order_relaxed)) return 0;
  for (int tries = 0; tries < TRIES; tries++) {
    if (loader_real.dlopen(drivers[kind].soname, RTLD_LAZY) != NULL) return find_loaded(kind);
    if (!says_there_is_none(loader_real.dlerror())) continue; /* which also takes a failure that is ours from the program */
    atomic_store_explicit(&missing[kind], kind == DRIVER_NVML, memory_order_relaxed);
    break;
  }
  return 0;
}

int driver_cuda(void) { return find(DRIVER_CUDA); }

int driver_nvml(void) { return find(DRIVER_NVML); }

int driver_nvml_is_known(void) { return atomic_load_explicit(&known[DRIVER_NVML], memory_order_acquire); }

int driver_is_loaded(enum driver_kind kind) {
  struct object object;
  return objects_find_soname(drivers[kind].soname, &object);
}

/* DT_SONAME of whatever ADDRESS lies in, in any namespace; "" when there is none. */
static const char *soname_of(const void *address) {
  Dl_info info;
  struct link_map *map = NULL;
  const char *strings = NULL;
  size_t soname = 0;
  if (!loader_ready() || loader_real.dladdr1 == NULL) return "";
  if (!loader_real.dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) || map == NULL || map->l_ld == NULL) return "";
  for (const ElfW(Dyn) *dynamic = map->l_ld; dynamic->d_tag != DT_NULL; dynamic++) {
    if (dynamic->d_tag == DT_STRTAB) strings = (const char *)dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SONAME) soname = dynamic->d_un.d_val;
  }
  return strings != NULL ? strings + soname : "";
}

enum driver_owner driver_recognise(enum driver_kind kind, const void *address) {
  struct object object;
  if (objects_find_address(address, &object)) {
    if (!plain_same(object.soname, drivers[kind].soname)) return DRIVER_NOT;
    if (!atomic_load_explicit(&known[kind], memory_order_acquire)) adopt(kind, &object);
    return pointers_key(address) != 0 ? DRIVER_ADOPTED : DRIVER_ANOTHER;
  }
  if (!plain_same(soname_of(address), drivers[kind].soname)) return DRIVER_NOT;
  return find(kind) ? DRIVER_ANOTHER : DRIVER_NOT;
}

void *driver_function(enum driver_kind kind, const char *name) {
  return handles[kind] != NULL ? loader_real.dlsym(handles[kind], name) : NULL;
}

void driver_after_fork(void) { lock_give(&lock); }
