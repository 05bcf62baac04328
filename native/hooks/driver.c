/* Finds driver libraries and fills the tables of real functions.
 * Knows no policy. Tests: tests/integration/test_native_lookup.py. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "objects.h"
#include "loader.h"
#include "lock.h"

struct cuda_api real_cuda;
struct nvml_api real_nvml;

struct member {
  const char *name;
  size_t offset;
};

#define HOOK(body, symbol, params, args) {#symbol, offsetof(API, symbol)},
#define NEED(symbol) {#symbol, offsetof(API, symbol)},
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
static struct lock lock;

/* Keeps the object mapped: programs close libnvidia-ml and open it again, and our pointers must survive that. */
static void pin(const struct object *object) {
  if (loader_ready()) loader_real.dlopen(object->path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static int adopt_object(enum driver_kind kind, const struct object *object) {
  void *functions[COUNT(cuda_members) + COUNT(nvml_members)];
  for (size_t i = 0; i < drivers[kind].member_count; i++)
    functions[i] = objects_function(object, drivers[kind].members[i].name);
  pin(object);
  lock_take(&lock);
  if (!atomic_load_explicit(&known[kind], memory_order_relaxed)) {
    for (size_t i = 0; i < drivers[kind].member_count; i++)
      memcpy((char *)drivers[kind].api + drivers[kind].members[i].offset, &functions[i], sizeof functions[i]);
    atomic_store_explicit(&known[kind], 1, memory_order_release);
  }
  lock_give(&lock);
  return 1;
}

/* No lock is held while the loader runs: constructors of the library it loads may call back in. */
static int find(enum driver_kind kind) {
  struct object object;
  if (atomic_load_explicit(&known[kind], memory_order_acquire)) return 1;
  if (objects_find_soname(drivers[kind].soname, &object)) return adopt_object(kind, &object);
  if (!loader_ready() || loader_real.dlopen(drivers[kind].soname, RTLD_LAZY) == NULL) {
    if (loader_ready()) loader_real.dlerror(); /* the failure is ours, not the program's */
    return 0;
  }
  return objects_find_soname(drivers[kind].soname, &object) && adopt_object(kind, &object);
}

int driver_cuda(void) { return find(DRIVER_CUDA); }

int driver_nvml(void) { return find(DRIVER_NVML); }

int driver_is_loaded(enum driver_kind kind) {
  struct object object;
  return objects_find_soname(drivers[kind].soname, &object);
}

int driver_adopt(enum driver_kind kind, void *address) {
  struct object object;
  if (!objects_find_address(address, &object) || strcmp(object.soname, drivers[kind].soname) != 0) return 0;
  return atomic_load_explicit(&known[kind], memory_order_acquire) || adopt_object(kind, &object);
}

void driver_after_fork(void) { lock_give(&lock); }
