/* SPDX-License-Identifier: Apache-2.0 */
/* What dlsym and dlvsym answer. The real function is always asked first, through the program's own handle, so that a
 * handle without the symbol stays without it.
 *
 * With a handle of the program's, the caller does not matter to the C library: resolve_by_handle() calls the real
 * function and takes the address it gave. In a driver that is known, the address alone says which hook takes its place;
 * that costs two nanoseconds and no reading of the name. RTLD_NEXT and RTLD_DEFAULT depend on the caller: there the
 * name decides first, and the result is a function for the stub in lookup.S to jump to, or the value to return.
 * Uses no policy and no driver function. Tests: tests/integration/test_native_lookup.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#include "driver.h"
#include "objects.h"
#include "runtime_state.h"
#include "loader.h"
#include "names.h"
#include "pointers.h"
#include "rebind.h"

/* Returned in two registers on both architectures. */
struct route {
  void *next;
  void *value;
};

void *resolve_by_handle(void *handle, const char *name);
void *resolve_version_by_handle(void *handle, const char *name, const char *version_text);
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
  if (VC_LIKELY(found == names_real(hook))) return 1;
  return hook->kind != HOOK_LOADER && driver_recognise(driver_of(hook), found) != DRIVER_NOT;
}

/* FOUND is a library's own variable of this name, and no function. */
static int is_variable(const struct hook *hook, const void *found) {
  struct object object;
  return found != NULL && objects_find_address(found, &object) && objects_variable(&object, names_text(hook)) == found;
}

/* The function in a library that was loaded together with the calling object; NULL: there is none but ours. */
static void *came_with(const struct hook *hook, const void *caller) {
  struct object object;
  if (!objects_find_address(caller, &object) || object.path[0] == 0) return NULL;
  void *handle = loader_real.dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == NULL) return NULL;
  void *found = loader_real.dlsym(handle, names_text(hook));
  loader_real.dlclose(handle);
  return found != names_wrapper(hook) ? found : NULL;
}

/* By kind: the driver has been found behind us in the global scope. It stays there: it is never unloaded. */
static _Atomic int behind_us[DRIVER_KINDS];

static void *ask_behind_us(const struct hook *hook, const struct lookup *lookup) {
  void *next = ask(lookup, RTLD_NEXT);
  if (next != NULL && lookup->version == NULL && hook->kind != HOOK_LOADER && next == names_real(hook))
    atomic_store_explicit(&behind_us[driver_of(hook)], 1, memory_order_relaxed);
  return next;
}

/* Our own export was found. What would the program have found without us? RTLD_DEFAULT also
 * searches the libraries that the caller's own object came with. */
static void *find_behind_us(const struct hook *hook, const struct lookup *lookup, const void *caller) {
  if (lookup->version == NULL && hook->kind != HOOK_LOADER && names_real(hook) != NULL &&
      atomic_load_explicit(&behind_us[driver_of(hook)], memory_order_relaxed))
    return names_real(hook);
  void *next = ask_behind_us(hook, lookup);
  if (next != NULL) return next;
  if (lookup->handle != RTLD_DEFAULT || hook->kind == HOOK_LOADER || !driver_is_loaded(driver_of(hook))) return NULL;
  next = came_with(hook, caller);
  if (is_variable(hook, next)) return next;
  if (next == NULL || !(driver_of(hook) == DRIVER_CUDA ? driver_cuda() : driver_nvml())) {
    ask(lookup, RTLD_NEXT); /* for its dlerror() */
    return NULL;
  }
  loader_real.dlerror(); /* what failed above is not the program's failure */
  return names_real(hook);
}

/* A library that defines the function itself and looks the next one up is a link of a chain and needs what is behind
 * it. Any other caller only needs the function. */
static int is_link_of_chain(const struct hook *hook, const void *caller) {
  struct object object;
  return objects_find_address(caller, &object) && objects_function(&object, names_text(hook)) != NULL;
}

static struct route decide_next(const struct hook *hook, const struct lookup *lookup, const void *caller, void *real) {
  const struct route pass = {real, NULL};
  int we_are_next = objects_next_is(caller, names_wrapper(hook), names_text(hook));
  if (!we_are_next && (!runtime_is_limited() || is_link_of_chain(hook, caller))) return pass;
  void *next = ask(lookup, RTLD_NEXT); /* behind us */
  if (next != NULL && runtime_is_limited() && is_real(hook, next)) return (struct route){NULL, names_place(hook)};
  return we_are_next ? (struct route){NULL, next} : pass;
}

/* A function that the program found outside of the adopted driver, in a process with limits. */
static void *replace(const struct hook *hook, const char *name, void *found) {
  int owner = names_owner(name);
  if (owner == HOOK_LOADER) return hook != NULL && found == names_real(hook) ? names_place(hook) : found;
  switch (driver_recognise((enum driver_kind)owner, found)) {
    case DRIVER_ADOPTED:
      return hook != NULL ? names_place(hook) : found;
    case DRIVER_ANOTHER: /* handles of one driver mean nothing to another: all calls go to one */
      return hook != NULL ? names_place(hook) : driver_function((enum driver_kind)owner, name);
    default:
      return found;
  }
}

static void *choose(const struct hook *hook, const struct lookup *lookup, const void *caller, void *found) {
  int ours = hook != NULL && found == names_wrapper(hook);
  if (ours) found = find_behind_us(hook, lookup, caller);
  if (found == NULL || !runtime_is_limited()) return found;
  if (!ours) return replace(hook, lookup->name, found);
  return found == names_real(hook) || !is_variable(hook, found) ? names_place(hook) : found;
}

/* In the global scope objects come in the order of loading and new ones come last. So once our wrapper was found first
 * and the driver, which stays loaded, behind it, no later search can end differently; it need only not leave the error
 * of an earlier one behind. */
static int is_settled(const struct hook *hook, const struct lookup *lookup) {
  if (lookup->handle != RTLD_DEFAULT || lookup->version != NULL) return 0;
  if (!atomic_load_explicit(names_first(hook), memory_order_relaxed)) return 0;
  loader_real.dlerror();
  return 1;
}

static void *find_default(const struct hook *hook, const struct lookup *lookup, const void *caller) {
  void *found = choose(hook, lookup, caller, ask(lookup, lookup->handle));
  if (found == names_place(hook) && lookup->handle == RTLD_DEFAULT && lookup->version == NULL &&
      hook->kind != HOOK_LOADER && names_real(hook) != NULL &&
      atomic_load_explicit(&behind_us[driver_of(hook)], memory_order_relaxed))
    atomic_store_explicit(names_first(hook), 1, memory_order_relaxed);
  return found;
}

static struct route decide(const struct lookup *lookup, const void *caller, void *real) {
  const struct hook *hook = names_find(lookup->name);
  if (hook == NULL) return (struct route){real, NULL};
  if (hook->kind != HOOK_LOADER) rebind(caller);
  if (lookup->handle == RTLD_NEXT) return decide_next(hook, lookup, caller, real);
  if (is_settled(hook, lookup)) return (struct route){NULL, names_place(hook)};
  return (struct route){NULL, find_default(hook, lookup, caller)};
}

static __attribute__((noinline)) void *choose_by_name(void *handle, const char *name, const char *version_text,
                                                    void *found, const void *caller) {
  const struct lookup lookup = {handle, name, version_text};
  if (found == NULL || names_owner(name) < 0) return found;
  if (names_owner(name) != HOOK_LOADER) rebind(caller);
  return choose(names_find(name), &lookup, NULL, found);
}

void *resolve_by_handle(void *handle, const char *name) {
  if (loader_real.dlsym == NULL && !loader_ready()) return NULL;
  void *found = loader_real.dlsym(handle, name);
  uint32_t key = pointers_key(found);
  if (!VC_LIKELY(key != 0)) return choose_by_name(handle, name, NULL, found, __builtin_return_address(0));
  rebind(__builtin_return_address(0));
  return pointers_at(key, found);
}

void *resolve_version_by_handle(void *handle, const char *name, const char *version_text) {
  if (loader_real.dlvsym == NULL && !loader_ready()) return NULL;
  void *found = loader_real.dlvsym(handle, name, version_text);
  uint32_t key = pointers_key(found);
  if (!VC_LIKELY(key != 0)) return choose_by_name(handle, name, version_text, found, __builtin_return_address(0));
  rebind(__builtin_return_address(0));
  return pointers_at(key, found);
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
