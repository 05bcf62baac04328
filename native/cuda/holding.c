/* SPDX-License-Identifier: Apache-2.0 */
/* One lock for all: the driver has one too, and what is done under it is a few dozen instructions.
 * Tests: tests/integration/test_native_vmm.py, test_native_import.py. */
#include "holding.h"

#include "allocators.h"
#include "place.h"
#include "store.h"

struct holding {
  uint32_t next; /* the store's */
  uint32_t column;
  int exported;
  uint64_t handle; /* 0: the number stands for something else by now, or for nothing */
  uint64_t bytes;
  uint32_t references; /* of the handle */
  uint32_t holds;      /* mappings, and calls under way */
  uint32_t tied;       /* ties of others to this */
  uint32_t ties;       /* the first of its own */
  CUdevice dev;
};

struct tie_record {
  uint32_t next;
  uint32_t to;
  struct tie where;
};

static struct lock lock;
static struct store holdings = {.size = sizeof(struct holding)};
static struct store ties = {.size = sizeof(struct tie_record)};
static VC_LARGE struct table numbers; /* handle -> number of its holding, as the owner */

static struct holding *at(uint32_t number) { return store_at(&holdings, number); }

static uint32_t find(uint64_t handle) {
  struct table_entry entry;
  return handle != 0 && table_get_locked(&numbers, handle, &entry) ? entry.owner : 0;
}

static void settle(uint32_t number, const struct release_probe *probe);

static void untie(uint32_t *link, const struct release_probe *probe) {
  uint32_t tie = *link;
  struct tie_record *record = store_at(&ties, tie);
  uint32_t to = record->to;
  *link = record->next;
  store_delete(&ties, tie);
  at(to)->tied--;
  settle(to, probe);
}

/* Under the lock, whenever a count went down: ends what nothing holds. Its handle dies with the last reference and
 * mapping, so the driver may give the number out again while a multicast object still keeps the memory. */
static void settle(uint32_t number, const struct release_probe *probe) {
  struct holding *holding = at(number);
  struct table_entry entry;
  if (holding->references != 0 || holding->holds != 0) return;
  if (holding->handle != 0) table_take_locked(&numbers, holding->handle, &entry);
  holding->handle = 0;
  if (holding->tied != 0) return;
  while (holding->ties != 0) untie(&holding->ties, probe);
  if (holding->bytes != 0 && !(holding->exported && exported_keep(holding->column, holding->bytes, probe)))
    charge_return(holding->column, holding->bytes);
  holding->bytes = 0;
  store_delete(&holdings, number);
}

/* The driver gave a handle out again that is in the table. Nothing can refer to the old memory by it any more. */
static void replace(uint32_t number) {
  struct holding *holding = at(number);
  holding->handle = 0;
  holding->references = 0;
  settle(number, NULL);
}

int holding_open(uint64_t handle, const struct charge *charge, CUdevice dev) {
  struct table_entry old = {0, 0, 0, 0};
  lock_take(&lock);
  uint32_t number = store_new(&holdings);
  const struct table_entry entry = {handle, 0, 0, number};
  if (number != 0 && table_put_locked(&numbers, &entry, &old) < 0) {
    store_delete(&holdings, number);
    number = 0;
  }
  if (number != 0) {
    struct holding *holding = at(number);
    *holding = (struct holding){.handle = handle, .references = 1, .dev = dev};
    if (charge != NULL && charge->taken) {
      holding->column = charge->column;
      holding->bytes = charge->bytes;
    }
    if (old.key != 0) replace(old.owner);
  }
  lock_give(&lock);
  return number != 0;
}

uint32_t holding_take(uint64_t handle) {
  lock_take(&lock);
  uint32_t number = find(handle);
  if (number != 0) at(number)->holds++;
  lock_give(&lock);
  return number;
}

void holding_retain(uint32_t number) {
  if (number == 0) return;
  lock_take(&lock);
  at(number)->holds++;
  lock_give(&lock);
}

void holding_release_probed(uint32_t number, int reference, const struct release_probe *probe) {
  if (number == 0) return;
  lock_take(&lock);
  struct holding *holding = at(number);
  holding->holds--;
  if (reference && holding->references != 0) holding->references--;
  settle(number, probe);
  lock_give(&lock);
}

void holding_release(uint32_t number) { holding_release_probed(number, 0, NULL); }

void holding_note_export(uint32_t number) {
  if (number == 0) return;
  lock_take(&lock);
  at(number)->exported = 1;
  lock_give(&lock);
}

void holding_probe_release(uint32_t number, struct release_probe *probe) {
  if (number == 0 || release_probe_is_settled(probe)) return;
  lock_take(&lock);
  const struct holding *holding = at(number);
  int column = holding->exported && holding->bytes != 0 ? (int)holding->column : -1;
  lock_give(&lock);
  release_probe_begin(probe, column);
}

int holding_add_reference(uint64_t handle) {
  lock_take(&lock);
  uint32_t number = find(handle);
  if (number != 0) at(number)->references++;
  lock_give(&lock);
  return number != 0;
}

uint32_t holding_tie_new(void) {
  lock_take(&lock);
  uint32_t tie = store_new(&ties);
  lock_give(&lock);
  return tie;
}

void holding_tie(uint32_t tie, uint32_t of, uint32_t to, const struct tie *where) {
  if (tie == 0) return;
  lock_take(&lock);
  if (of == 0 || to == 0) {
    store_delete(&ties, tie);
  } else {
    struct tie_record *record = store_at(&ties, tie);
    record->to = to;
    record->where = *where;
    if (where->dev < 0) record->where.dev = at(to)->dev;
    record->next = at(of)->ties;
    at(of)->ties = tie;
    at(to)->tied++;
  }
  lock_give(&lock);
}

void holding_cut(uint32_t of, const struct tie *where) {
  if (of == 0) return;
  lock_take(&lock);
  for (uint32_t *link = &at(of)->ties; *link != 0;) {
    struct tie_record *record = store_at(&ties, *link);
    if (record->where.dev == where->dev && record->where.offset - where->offset < where->size)
      untie(link, NULL);
    else
      link = &record->next;
  }
  lock_give(&lock);
}

static uint64_t usage(uint32_t column) {
  uint64_t sum = 0;
  lock_take(&lock);
  for (uint32_t number = 1; number <= holdings.fresh; number++)
    if (at(number)->column == column) sum += at(number)->bytes;
  lock_give(&lock);
  return sum;
}

void holding_after_fork(void) {
  lock_give(&lock);
  store_reset(&holdings);
  store_reset(&ties);
  table_reset(&numbers);
}

ALLOCATOR(holding) = {.usage = usage};
