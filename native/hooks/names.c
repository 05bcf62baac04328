/* SPDX-License-Identifier: Apache-2.0 */
/* The lists as a lookup table: open addressing over a hash of a name's length and last eight characters.
 * Uses no policy. Tests: tests/integration/test_native_lookup.py. */
#define _GNU_SOURCE
#include "names.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "runtime_state.h"
#include "loader.h"
#include "place.h"
#include "plain.h"
#include "pointers.h"

#define ENTRY(symbol, kind, shared, table) \
  {SYMBOL(symbol), offsetof(struct table, symbol) / sizeof(void *), kind, shared},

enum { IS_LIMITED, IS_RELEASE = IS_LIMITED, IS_RESOLVE = IS_LIMITED, IS_SHARED };

static const struct hook hooks[] = {
#define NEED(symbol)
#define HOOK(body, symbol, params, args) ENTRY(symbol, HOOK_CUDA, IS_##body, cuda_api)
#include "cuda.def"
#undef HOOK
#define HOOK(body, symbol, params, args) ENTRY(symbol, HOOK_NVML, 0, nvml_api)
#include "nvml.def"
#undef HOOK
    ENTRY(dlsym, HOOK_LOADER, 0, loader)
    ENTRY(dlvsym, HOOK_LOADER, 0, loader)
};

/* In the order of the hooks: the one table that has to be relocated. */
static void *const wrappers[] = {
#define HOOK(body, symbol, params, args) (void *)symbol,
#include "cuda.def"
#include "nvml.def"
#undef HOOK
#undef NEED
    (void *)dlsym,
    (void *)dlvsym,
};

enum { HOOKS = sizeof hooks / sizeof *hooks, SHORTEST = 5, LONGEST = 64, SLOT_BITS = 10, SLOTS = 1 << SLOT_BITS };

_Static_assert(HOOKS * 2 < SLOTS, "the table stays half empty, so misses end quickly");
_Static_assert(HOOKS * 3 < POINTER_SLOTS * 2, "and that of the drivers' functions never more than two thirds full");

_Static_assert(sizeof wrappers / sizeof *wrappers == HOOKS, "one wrapper each");

static VC_LARGE _Atomic char firsts[HOOKS]; /* few programs ask RTLD_DEFAULT */
static _Atomic uint16_t slots[SLOTS]; /* 1 + index into hooks, 0: empty */
static _Atomic int built;

static unsigned int slot_of(const char *name, size_t length) {
  uint64_t tail;
  uint32_t ends[2];
  if (length >= sizeof tail) {
    memcpy(&tail, name + length - sizeof tail, sizeof tail);
  } else {
    memcpy(&ends[0], name, sizeof ends[0]);
    memcpy(&ends[1], name + length - sizeof ends[1], sizeof ends[1]);
    memcpy(&tail, ends, sizeof tail);
  }
  return (unsigned int)(((tail ^ (uint64_t)length << 32) * UINT64_C(0x9e3779b97f4a7c15)) >>
                        (64 - SLOT_BITS));
}

static const struct hook *hook_in(unsigned int slot) {
  unsigned int number = atomic_load_explicit(&slots[slot], memory_order_relaxed);
  return number != 0 ? &hooks[number - 1] : NULL;
}

/* Without a lock, which a fork in another thread would leave taken in a child for which no handler is registered yet.
 * Threads that come together write the same: a thread that enters a hook has entered those before it, so that up to its
 * place it finds no other free one, and there nothing or the hook itself. */
static void build(void) {
  for (unsigned int i = 0; i < HOOKS; i++) {
    unsigned int slot = slot_of(symbol_text(hooks[i].name), hooks[i].name.length);
    const struct hook *there;
    while ((there = hook_in(slot)) != NULL && there != &hooks[i]) slot = (slot + 1) % SLOTS;
    atomic_store_explicit(&slots[slot], (uint16_t)(i + 1), memory_order_relaxed);
  }
  atomic_store_explicit(&built, 1, memory_order_release);
}

static int is_capital(char letter) { return letter >= 'A' && letter <= 'Z'; }

int names_owner(const char *name) {
  if (name[0] == 'c' && name[1] == 'u' && is_capital(name[2])) return HOOK_CUDA;
  if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l') return HOOK_NVML;
  return name[0] == 'd' && name[1] == 'l' ? HOOK_LOADER : -1;
}

static int is_named(const struct hook *hook, const char *name, size_t length) {
  return hook->name.length == length && plain_same_bytes(symbol_text(hook->name), name, length);
}

const struct hook *names_find(const char *name) {
  if (names_owner(name) < 0) return NULL;
  size_t length = plain_length(name);
  if (length < SHORTEST || length > LONGEST) return NULL;
  if (!atomic_load_explicit(&built, memory_order_acquire)) build();
  const struct hook *hook;
  for (unsigned int slot = slot_of(name, length); (hook = hook_in(slot)) != NULL; slot = (slot + 1) % SLOTS)
    if (is_named(hook, name, length)) return hook;
  return NULL;
}

const char *names_text(const struct hook *hook) { return symbol_text(hook->name); }

void *names_wrapper(const struct hook *hook) { return wrappers[hook - hooks]; }

_Atomic char *names_first(const struct hook *hook) { return &firsts[hook - hooks]; }

void *names_real(const struct hook *hook) {
  const void *table = hook->kind == HOOK_CUDA ? (const void *)&real_cuda
                      : hook->kind == HOOK_NVML ? (const void *)&real_nvml
                                                : (const void *)&loader_real;
  return ((void *const *)table)[hook->word];
}

void *names_place(const struct hook *hook) {
  void *real = hook->shared ? names_real(hook) : NULL;
  return real != NULL && !runtime_may_be_held() ? real : names_wrapper(hook);
}

void names_adopted(enum hook_kind kind) {
  const int held = runtime_may_be_held();
  for (unsigned int i = 0; i < HOOKS; i++)
    if (hooks[i].kind == kind && (held || !hooks[i].shared)) pointers_put(kind, names_real(&hooks[i]), names_wrapper(&hooks[i]));
}
