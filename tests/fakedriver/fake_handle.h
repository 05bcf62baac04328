/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of handles: constant time, any pointer can be checked safely, memory appears as it is needed.
 * Uses nothing of what the handles are. Tests: tests/unit/fakedriver/test_contexts.py. */
#ifndef FAKE_HANDLE_H
#define FAKE_HANDLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Every item begins with this. */
struct handle {
  _Atomic uint32_t alive;
  uint32_t next; /* in the free list, index + 1 */
};

struct handles {
  size_t shift; /* log2 of the item's size, which is a power of two */
  uint32_t capacity;
  char *base;
  uint32_t fresh, free_head;
  atomic_flag spin;
};

#define HANDLES(type, most) \
  {.shift = (size_t)__builtin_ctzll(sizeof(type)), .capacity = (most), .spin = ATOMIC_FLAG_INIT}
#define HANDLE_SIZE_CHECK(type) _Static_assert((sizeof(type) & (sizeof(type) - 1)) == 0, "handle size")

/* A zeroed item, alive; NULL when the table is full. */
void *handle_new(struct handles *table);
void handle_delete(struct handles *table, void *item);
void *handle_at(const struct handles *table, uint32_t index);
void handle_each(const struct handles *table, void (*visit)(void *item, void *arg), void *arg);

static inline uint32_t handle_index(const struct handles *table, const void *item) {
  return (uint32_t)(((const char *)item - table->base) >> table->shift);
}

/* SHIFT as a constant makes this a few instructions; handle_valid reads it. */
static inline int handle_valid_at(const struct handles *table, const void *item, size_t shift) {
  uintptr_t offset = (uintptr_t)item - (uintptr_t)table->base;
  if (!table->base || offset >> shift >= table->fresh || (offset & (((size_t)1 << shift) - 1))) return 0;
  return atomic_load_explicit(&((const struct handle *)item)->alive, memory_order_relaxed) != 0;
}

static inline int handle_valid(const struct handles *table, const void *item) {
  return handle_valid_at(table, item, table->shift);
}

#endif
