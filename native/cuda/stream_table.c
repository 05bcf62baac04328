/* SPDX-License-Identifier: Apache-2.0 */
/* Where stream states lie: shelves of open addressing, each four times as large as the one before, opened when a stream
 * finds its neighbourhood full in all that are there. The first is part of the library; the others come from mmap and
 * stay until the process ends, since a launching thread holds no lock. Keys lie by themselves: a search in a full shelf
 * reads two or three lines of the cache. A stream keeps its state until it ends
 * (docs/adr/0044-a-stream-keeps-its-state.md).
 * Uses no driver. Tests: tests/native/test_stream_state.c. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "place.h"
#include "stream_state_priv.h"

enum { PROBES = 16, FIRST_BITS = 8, STEP_BITS = 2, SHELVES = 5 };

/* A place that was never used ends every search: a search that came before would have taken it. */
enum { KEY_NEVER = 0, KEY_FREE = 2 };

struct shelf {
  _Atomic uintptr_t *keys;
  struct stream_state *states;
  unsigned int bits;
};

VC_LARGE static _Atomic uintptr_t first_keys[1 << FIRST_BITS];
VC_LARGE static struct stream_state first_states[1 << FIRST_BITS];
static _Atomic(void *) more[SHELVES - 1];
struct lock stream_table_lock;

static size_t places(unsigned int bits) { return (size_t)1 << bits; }

static size_t bytes_of(unsigned int bits) { return places(bits) * (sizeof(uintptr_t) + sizeof(struct stream_state)); }

static unsigned int bits_of(unsigned int number) { return FIRST_BITS + STEP_BITS * number; }

static int is_there(unsigned int number, struct shelf *out) {
  *out = (struct shelf){first_keys, first_states, FIRST_BITS};
  if (number == 0) return 1;
  void *memory = number < SHELVES ? atomic_load_explicit(&more[number - 1], memory_order_acquire) : NULL;
  out->bits = bits_of(number);
  out->keys = memory;
  out->states = (struct stream_state *)((char *)memory + places(out->bits) * sizeof(uintptr_t));
  return memory != NULL;
}

static size_t place_of(uintptr_t key, unsigned int bits) {
  return (size_t)(((uint64_t)key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - bits));
}

/* 1: *OUT is the answer, NULL when the key is nowhere; 0: it may be in a larger shelf. */
static inline int find_in(const struct shelf *shelf, uintptr_t key, CUcontext context, struct stream_state **out) {
  size_t place = place_of(key, shelf->bits), mask = places(shelf->bits) - 1;
  *out = NULL;
  for (unsigned int i = 0; i < PROBES; i++) {
    size_t at = (place + i) & mask;
    uintptr_t found = atomic_load_explicit(&shelf->keys[at], memory_order_acquire);
    if (VC_LIKELY(found == key) && (context == NULL || shelf->states[at].context == context)) {
      *out = &shelf->states[at];
      return 1;
    }
    if (found == KEY_NEVER) return 1;
  }
  return 0;
}

static __attribute__((noinline)) struct stream_state *find_further(uintptr_t key, CUcontext context) {
  struct shelf shelf;
  struct stream_state *state = NULL;
  for (unsigned int number = 1; is_there(number, &shelf); number++)
    if (find_in(&shelf, key, context, &state)) return state;
  return NULL;
}

struct stream_state *stream_table_find(uintptr_t key, CUcontext context) {
  const struct shelf first = {first_keys, first_states, FIRST_BITS};
  struct stream_state *state;
  return VC_LIKELY(find_in(&first, key, context, &state)) ? state : find_further(key, context);
}

/* Under the table's lock. */
static int open_shelf(unsigned int number, struct shelf *out) {
  if (is_there(number, out)) return 1;
  if (number >= SHELVES) return 0;
  void *memory = mmap(NULL, bytes_of(out->bits), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  atomic_store_explicit(&more[number - 1], memory, memory_order_release);
  return is_there(number, out);
}

struct stream_state *stream_table_place(uintptr_t key) {
  struct shelf shelf;
  for (unsigned int number = 0; open_shelf(number, &shelf); number++) {
    size_t place = place_of(key, shelf.bits), mask = places(shelf.bits) - 1;
    for (unsigned int i = 0; i < PROBES; i++) {
      size_t at = (place + i) & mask;
      uintptr_t there = atomic_load_explicit(&shelf.keys[at], memory_order_relaxed);
      if (there != KEY_NEVER && there != KEY_FREE) continue;
      if (shelf.states[at].key == NULL) shelf.states[at].key = &shelf.keys[at];
      return &shelf.states[at];
    }
  }
  return NULL;
}

void stream_table_enter(struct stream_state *state, uintptr_t key) {
  atomic_store_explicit(state->key, key, memory_order_release);
}

void stream_table_free(struct stream_state *state) {
  if (state->key != NULL) atomic_store_explicit(state->key, KEY_FREE, memory_order_release);
}

int stream_table_has(const struct stream_state *state) {
  uintptr_t key = atomic_load_explicit(state->key, memory_order_acquire);
  return key != KEY_NEVER && key != KEY_FREE;
}

struct stream_state *stream_table_next(struct stream_cursor *cursor) {
  struct shelf shelf;
  for (; is_there(cursor->shelf, &shelf); cursor->shelf++, cursor->at = 0)
    while (cursor->at < places(shelf.bits)) {
      size_t at = cursor->at++;
      if (atomic_load_explicit(&shelf.keys[at], memory_order_acquire) != KEY_NEVER) return &shelf.states[at];
    }
  return NULL;
}

/* Of the first shelf only what was used is written: in a forked child each page of it would become one of its own. */
void stream_table_after_fork(void) {
  for (unsigned int number = 1; number < SHELVES; number++) {
    void *memory = atomic_exchange(&more[number - 1], NULL);
    if (memory != NULL) munmap(memory, bytes_of(bits_of(number)));
  }
  for (size_t at = 0; at < places(FIRST_BITS); at++) {
    if (atomic_load(&first_keys[at]) == KEY_NEVER) continue;
    memset(&first_states[at], 0, sizeof first_states[at]);
    atomic_store(&first_keys[at], KEY_NEVER);
  }
  lock_give(&stream_table_lock);
}
