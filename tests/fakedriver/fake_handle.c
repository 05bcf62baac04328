/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of handles. See fake_handle.h. Tests: tests/unit/fakedriver/test_contexts.py. */
#include "fake_handle.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

static void lock(struct handles *table) {
  while (atomic_flag_test_and_set_explicit(&table->spin, memory_order_acquire)) sched_yield();
}
static void unlock(struct handles *table) { atomic_flag_clear_explicit(&table->spin, memory_order_release); }

void *handle_at(const struct handles *table, uint32_t index) { return table->base + ((size_t)index << table->shift); }

void *handle_new(struct handles *table) {
  struct handle *item = NULL;
  lock(table);
  if (!table->base) {
    void *memory = mmap(NULL, (size_t)table->capacity << table->shift, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) table->base = memory;
  }
  if (table->free_head) {
    item = handle_at(table, table->free_head - 1);
    table->free_head = item->next;
  } else if (table->base && table->fresh < table->capacity) {
    item = handle_at(table, table->fresh++);
  }
  unlock(table);
  if (!item) return NULL;
  memset((char *)item, 0, (size_t)1 << table->shift);
  atomic_store(&item->alive, 1);
  return item;
}

void handle_delete(struct handles *table, void *pointer) {
  struct handle *item = pointer;
  lock(table);
  atomic_store(&item->alive, 0);
  item->next = table->free_head;
  table->free_head = handle_index(table, item) + 1;
  unlock(table);
}

void handle_each(const struct handles *table, void (*visit)(void *item, void *arg), void *arg) {
  for (uint32_t i = 0; i < table->fresh; i++) {
    struct handle *item = handle_at(table, i);
    if (atomic_load(&item->alive)) visit(item, arg);
  }
}
