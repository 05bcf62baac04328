/* What dlsym and dlvsym answer. The real function is always asked first, through the program's own handle, so that a
 * handle without the symbol stays without it; then the name decides. The result is a function for the stub in
 * lookup.S to jump to, or the value to return.
 * Knows no policy and no driver function. Tests: tests/integration/test_native_lookup.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "driver.h"
#include "objects.h"
#include "guest.h"
#include "loader.h"
#include "names.h"

/* Returned in two registers on both architectures. */
struct route {
  void *next;
  void *value;
};

struct route resolve_dlsym(void *handle, const char *name, const void *caller);
struct route resolve_dlvsym(void *handle, const char *name, const void *version_text, const void *caller);

struct lookup {
  void *handle;
  const char *name;
  const char *version; /* NULL: dlsym */
};

static void *ask(const struct lookup *lookup, void *handle) {
  return lookup->version != NULL ? loader_real.dlvsym(handle, lookup->name, lookup->version)
                                 : loader_real.dlsym(handle, lookup->name);
}

static enum driver_kind driver_of(const struct hook *hook) {
  return hook->kind == HOOK_CUDA ? DRIVER_CUDA : DRIVER_NVML;
}

static int is_real(const struct hook *hook, void *found) {
  if (VC_LIKELY(found == *hook->real)) return 1;
  return hook->kind != HOOK_LOADER && driver_adopt(driver_of(hook), found);
}

/* Whether the object that asks was loaded together with a library that has the function. */
static int came_with(const struct hook *hook, const void *caller) {
  struct object object;
  if (!objects_find_address(caller, &object) || object.path[0] == 0) return 0;
  void *handle = loader_real.dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == NULL) return 0;
  void *found = loader_real.dlsym(handle, hook->name);
  loader_real.dlclose(handle);
  return found != NULL && found != hook->wrapper;
}

/* Our own export was found, which says nothing: what would the program have found without us? RTLD_DEFAULT also
 * searches the libraries that the caller's own object came with. */
static void *find_behind_us(const struct hook *hook, const struct lookup *lookup, const void *caller) {
  void *next = ask(lookup, RTLD_NEXT);
  if (next != NULL) return next;
  if (lookup->handle != RTLD_DEFAULT || hook->kind == HOOK_LOADER || !driver_is_loaded(driver_of(hook))) return NULL;
  if (!came_with(hook, caller) || !(driver_of(hook) == DRIVER_CUDA ? driver_cuda() : driver_nvml())) {
    ask(lookup, RTLD_NEXT); /* for its dlerror() */
    return NULL;
  }
  loader_real.dlerror(); /* what failed above is not the program's failure */
  return *hook->real;
}

/* A library that defines the function itself and asks for the next one is a link of a chain and wants what is behind
 * it. Anybody else only wants the function. */
static int is_link_of_chain(const struct hook *hook, const void *caller) {
  struct object object;
  return objects_find_address(caller, &object) && objects_function(&object, hook->name) != NULL;
}

static struct route decide_next(const struct hook *hook, const struct lookup *lookup, const void *caller, void *real) {
  const struct route pass = {real, NULL};
  int we_are_next = objects_next_is(caller, hook->wrapper, hook->name);
  if (!we_are_next && (!guest_is_wanted() || is_link_of_chain(hook, caller))) return pass;
  void *next = ask(lookup, RTLD_NEXT); /* behind us */
  if (next != NULL && guest_is_wanted() && is_real(hook, next)) return (struct route){NULL, hook->wrapper};
  return we_are_next ? (struct route){NULL, next} : pass;
}

static struct route decide(const struct lookup *lookup, const void *caller, void *real) {
  const struct route pass = {real, NULL};
  const struct hook *hook = names_find(lookup->name);
  if (VC_LIKELY(hook == NULL)) return pass;
  if (lookup->handle == RTLD_NEXT) return decide_next(hook, lookup, caller, real);
  void *found = ask(lookup, lookup->handle);
  int ours = found == hook->wrapper;
  if (ours) found = find_behind_us(hook, lookup, caller);
  if (found != NULL && guest_is_wanted() && (ours || is_real(hook, found))) found = hook->wrapper;
  return (struct route){NULL, found};
}

struct route resolve_dlsym(void *handle, const char *name, const void *caller) {
  const struct lookup lookup = {handle, name, NULL};
  if (!loader_ready()) return (struct route){NULL, NULL};
  return decide(&lookup, caller, (void *)loader_real.dlsym);
}

struct route resolve_dlvsym(void *handle, const char *name, const void *version_text, const void *caller) {
  const struct lookup lookup = {handle, name, version_text};
  if (!loader_ready()) return (struct route){NULL, NULL};
  return decide(&lookup, caller, (void *)loader_real.dlvsym);
}
