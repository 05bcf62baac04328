/* SPDX-License-Identifier: Apache-2.0 */
/* Records come from mmap in slabs that are never given back, so that a program that destroys a graph while it launches
 * it reads nothing worse than stale numbers.
 * Tests: tests/integration/test_native_graph.py. */
#define _GNU_SOURCE
#include "graph_exec.h"

#include <string.h>
#include <sys/mman.h>

#include "lock.h"
#include "place.h"
#include "status.h"
#include "table.h"

enum { SLAB = 64 << 10 };

_Atomic uint32_t graph_exec_count;

static VC_LARGE struct table execs; /* handle -> address of the record, in `bytes` */
static struct lock lock;   /* of the two lists */
static struct graph_exec *live, *spare;

static struct graph_exec *record_of(const struct table_entry *entry) {
  return (struct graph_exec *)(uintptr_t)entry->bytes;
}

/* Under the lock. */
static int refill(void) {
  struct graph_exec *slab = mmap(NULL, SLAB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (slab == MAP_FAILED) return VC_EIO;
  for (size_t i = 0; i < SLAB / sizeof *slab; i++) {
    slab[i].next = spare;
    spare = &slab[i];
  }
  return VC_OK;
}

/* Under the lock. */
static void link_live(struct graph_exec *exec) {
  exec->previous = NULL;
  exec->next = live;
  if (live != NULL) live->previous = exec;
  live = exec;
}

static void unlink_live(struct graph_exec *exec) {
  lock_take(&lock);
  if (exec->previous != NULL)
    exec->previous->next = exec->next;
  else
    live = exec->next;
  if (exec->next != NULL) exec->next->previous = exec->previous;
  lock_give(&lock);
}

static struct graph_exec *new_record(const struct graph_exec *need) {
  lock_take(&lock);
  struct graph_exec *exec = spare != NULL || refill() == VC_OK ? spare : NULL;
  if (exec != NULL) {
    spare = exec->next;
    memcpy(exec, need, sizeof *exec);
    link_live(exec);
  }
  lock_give(&lock);
  return exec;
}

void graph_exec_drop(struct graph_exec *exec) {
  lock_take(&lock);
  exec->next = spare;
  spare = exec;
  lock_give(&lock);
}

static int record(CUgraphExec handle, struct graph_exec *exec) {
  const struct table_entry entry = {(uintptr_t)handle, (uintptr_t)exec, 0, 0};
  struct table_entry old;
  int status = table_put(&execs, &entry, &old);
  if (status < 0) return status;
  if (status == 0) atomic_fetch_add_explicit(&graph_exec_count, 1, memory_order_relaxed);
  if (status == 1) { /* that graph went with its context, and its handle came back */
    unlink_live(record_of(&old));
    graph_exec_drop(record_of(&old));
  }
  return VC_OK;
}

int graph_exec_add(CUgraphExec handle, const struct graph_exec *need) {
  struct graph_exec *exec = new_record(need);
  if (exec == NULL) return VC_EIO;
  if (record(handle, exec) == VC_OK) return VC_OK;
  unlink_live(exec);
  graph_exec_drop(exec);
  return VC_EIO;
}

struct graph_exec *graph_exec_find(CUgraphExec handle) {
  struct table_entry entry;
  return handle != NULL && table_get(&execs, (uintptr_t)handle, &entry) ? record_of(&entry) : NULL;
}

struct graph_exec *graph_exec_take(CUgraphExec handle) {
  struct table_entry entry;
  if (handle == NULL || !table_take(&execs, (uintptr_t)handle, &entry)) return NULL;
  atomic_fetch_sub_explicit(&graph_exec_count, 1, memory_order_relaxed);
  unlink_live(record_of(&entry));
  return record_of(&entry);
}

void graph_exec_forget(CUgraphExec handle) {
  struct graph_exec *exec = graph_exec_take(handle);
  if (exec != NULL) graph_exec_drop(exec);
}

void graph_exec_put_back(CUgraphExec handle, struct graph_exec *exec) {
  lock_take(&lock);
  link_live(exec);
  lock_give(&lock);
  record(handle, exec);
}

uint64_t graph_exec_others(const struct graph_exec *self, uint32_t column, uint64_t stream) {
  uint64_t sum = 0;
  lock_take(&lock);
  for (const struct graph_exec *exec = live; exec != NULL; exec = exec->next) {
    if (exec == self || !(atomic_load_explicit(&exec->mapped, memory_order_relaxed) >> column & 1)) continue;
    int shares = atomic_load_explicit(&exec->stream, memory_order_relaxed) == stream;
    sum += shares ? exec->need[column].unfreed : exec->need[column].bytes;
  }
  lock_give(&lock);
  return sum;
}

void graph_exec_unmap(uint32_t column) {
  lock_take(&lock);
  for (struct graph_exec *exec = live; exec != NULL; exec = exec->next)
    atomic_fetch_and_explicit(&exec->mapped, ~(UINT32_C(1) << column), memory_order_relaxed);
  lock_give(&lock);
}

void graph_exec_after_fork(void) {
  table_reset(&execs);
  live = spare = NULL;
  lock_give(&lock);
  atomic_store_explicit(&graph_exec_count, 0, memory_order_relaxed);
}
