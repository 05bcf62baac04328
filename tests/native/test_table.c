/* SPDX-License-Identifier: Apache-2.0 */
/* The allocation table: against a plain array as the model, under threads, at size. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "status.h"
#include "table.h"

static struct table table;

static struct table_entry entry(uint64_t key, uint64_t bytes, uint32_t column, uint32_t owner) {
  return (struct table_entry){key, bytes, column, owner};
}

static int put(uint64_t key, uint64_t bytes, uint32_t column, uint32_t owner) {
  struct table_entry e = entry(key, bytes, column, owner), old;
  return table_put(&table, &e, &old);
}

TEST(table_put_get_take) {
  struct table_entry found, e = entry(0x7f0000000000, 4096, 3, 9), old;
  CHECK_EQ(table_get(&table, e.key, &found), 0);
  CHECK_EQ(table_take(&table, e.key, &found), 0);
  CHECK_EQ(table_put(&table, &e, &old), 0);
  CHECK_EQ(table_get(&table, e.key, &found), 1);
  CHECK_EQ(found.bytes, 4096);
  CHECK_EQ(found.column, 3);
  CHECK_EQ(found.owner, 9);
  CHECK_EQ(table_get(&table, e.key + 256, &found), 0);
  e.bytes = 8192;
  CHECK_EQ(table_put(&table, &e, &old), 1);
  CHECK_EQ(old.bytes, 4096);
  CHECK_EQ(table_count(&table), 1);
  CHECK_EQ(table_take(&table, e.key, &found), 1);
  CHECK_EQ(found.bytes, 8192);
  CHECK_EQ(table_take(&table, e.key, &found), 0);
  CHECK_EQ(table_count(&table), 0);
}

/* xorshift: the same sequence in every run. */
static uint64_t random_number(void) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

/* Random puts and takes of few keys against an array; removals close gaps in every possible position. */
TEST(table_against_model) {
  enum { KEYS = 3000, STEPS = 400000 };
  static uint64_t model[KEYS];
  struct table_entry found;
  uint64_t sum = 0;
  for (int step = 0; step < STEPS; step++) {
    uint64_t index = random_number() % KEYS, key = 0x7f0000000000 + index * 512;
    if (random_number() % 2) {
      uint64_t bytes = 1 + random_number() % 100000;
      CHECK_EQ(put(key, bytes, 1, 1), model[index] != 0);
      sum += bytes - model[index];
      model[index] = bytes;
    } else {
      CHECK_EQ(table_take(&table, key, &found), model[index] != 0);
      if (model[index] != 0) CHECK_EQ(found.bytes, model[index]);
      sum -= model[index];
      model[index] = 0;
    }
  }
  for (uint64_t index = 0; index < KEYS; index++)
    CHECK_EQ(table_get(&table, 0x7f0000000000 + index * 512, &found), model[index] != 0);
  CHECK_EQ(table_sum(&table, 1), sum);
  CHECK_EQ(table_sum(&table, 0), 0);
}

/* The small one grows beyond what it is meant for, and is emptied by owner and child like the other. */
TEST(table_small_against_model) {
  enum { KEYS = 40, STEPS = 20000 };
  static struct table_small small;
  static uint64_t model[KEYS];
  struct table_entry found;
  uint64_t sum = 0;
  for (int step = 0; step < STEPS; step++) {
    uint64_t index = random_number() % KEYS, key = 0x10000 + index * 16;
    if (random_number() % 2) {
      struct table_entry e = entry(key, 1 + random_number() % 1000, 2, 1);
      CHECK_EQ(table_small_put(&small, &e, &found), model[index] != 0);
      CHECK_EQ(found.key != 0 ? found.bytes : 0, model[index]);
      sum += e.bytes - model[index];
      model[index] = e.bytes;
    } else {
      CHECK_EQ(table_small_take(&small, key, &found), model[index] != 0);
      sum -= model[index];
      model[index] = 0;
    }
    CHECK_EQ(table_small_get(&small, key, &found), model[index] != 0);
    if (model[index] != 0) CHECK_EQ(found.bytes, model[index]);
    CHECK_EQ(table_small_sum(&small, 2), sum);
  }
  CHECK_EQ(table_small_sum(&small, 1), 0);
  table_small_reset(&small);
  CHECK_EQ(table_small_sum(&small, 2), 0);
  CHECK_EQ(table_small_get(&small, 0x10000, &found), 0);
}

TEST(table_a_million_entries) {
  enum { ENTRIES = 1000000 };
  struct table_entry found;
  for (uint64_t i = 0; i < ENTRIES; i++) CHECK_EQ(put(0x10000000000 + i * 256, i + 1, (uint32_t)(i % 16), 1), 0);
  CHECK_EQ(table_count(&table), ENTRIES);
  for (uint64_t i = 0; i < ENTRIES; i++) {
    CHECK_EQ(table_take(&table, 0x10000000000 + i * 256, &found), 1);
    CHECK_EQ(found.bytes, i + 1);
    CHECK_EQ(found.column, i % 16);
  }
  CHECK_EQ(table_count(&table), 0);
}

static void add_up(const struct table_entry *e, void *data) {
  struct table_entry found;
  CHECK_EQ(table_get(&table, e->key, &found), 0); /* gone, and no lock of the table is held here */
  *(uint64_t *)data += e->bytes;
}

TEST(table_take_owner) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < 50000; i++) put(0x20000000000 + i * 512, 1, 0, (uint32_t)(i % 3));
  table_take_owner(&table, 1, add_up, &sum);
  CHECK_EQ(sum, 16667);
  CHECK_EQ(table_count(&table), 50000 - 16667);
  table_take_owner(&table, 1, add_up, &sum);
  CHECK_EQ(sum, 16667);
  table_take_owner(&table, 0, add_up, &sum);
  table_take_owner(&table, 2, add_up, &sum);
  CHECK_EQ(sum, 50000);
}

/* Each thread owns its keys. */
static void *churn(void *data) {
  struct table_entry found;
  uint64_t base = 0x30000000000 + (uint64_t)(uintptr_t)data * 0x100000000;
  for (uint64_t round = 0; round < 200; round++) {
    for (uint64_t i = 0; i < 100; i++) CHECK_EQ(put(base + i * 256, round + 1, 0, 1), 0);
    for (uint64_t i = 0; i < 100; i++) {
      CHECK_EQ(table_take(&table, base + i * 256, &found), 1);
      CHECK_EQ(found.bytes, round + 1);
    }
  }
  return NULL;
}

TEST(table_threads) {
  pthread_t thread[8];
  for (uintptr_t i = 0; i < 8; i++) CHECK_EQ(pthread_create(&thread[i], NULL, churn, (void *)i), 0);
  for (int i = 0; i < 8; i++) pthread_join(thread[i], NULL);
  CHECK_EQ(table_count(&table), 0);
}

/* Many small duels, each of which begins with an empty table. */
static struct table duel;
static _Atomic int arrived;

static void *duelist(void *data) {
  struct table_entry found, old, e = entry(0x40000000000 + (uint64_t)(uintptr_t)data * 256, 7, 0, 1);
  atomic_fetch_add(&arrived, 1);
  while (atomic_load(&arrived) < 2) continue;
  for (int i = 0; i < 200; i++) {
    CHECK_EQ(table_put(&duel, &e, &old), 0);
    CHECK_EQ(table_take(&duel, e.key, &found), 1);
  }
  return NULL;
}

TEST(table_first_entries_of_two_threads) {
  for (int i = 0; i < 100; i++) {
    pthread_t thread;
    memset(&duel, 0, sizeof duel);
    atomic_store(&arrived, 0);
    CHECK_EQ(pthread_create(&thread, NULL, duelist, (void *)1), 0);
    duelist((void *)2);
    pthread_join(thread, NULL);
    CHECK_EQ(table_count(&duel), 0);
  }
}

TEST(table_reset_in_child) {
  for (uint64_t i = 0; i < 10000; i++) put(0x50000000000 + i * 512, 1, 0, 1);
  int pid = fork();
  if (pid == 0) {
    struct table_entry found;
    table.shard[5].lock.taken = 1; /* as if another thread of the parent had held it */
    table_reset(&table);
    CHECK_EQ(table_count(&table), 0);
    CHECK_EQ(put(0x50000000000, 2, 0, 1), 0);
    CHECK_EQ(table_take(&table, 0x50000000000, &found), 1);
    _exit(0);
  }
  expect_exit(pid, 0);
  CHECK_EQ(table_count(&table), 10000);
}

/* Renamed and back in every possible position, beside entries that come and go under the old name. */
TEST(table_renamed_against_model) {
  enum { KEYS = 500, STEPS = 100000 };
  static uint64_t model[2 * KEYS]; /* a key, and the same with its lowest bit set */
  struct table_entry found, old;
  for (int step = 0; step < STEPS; step++) {
    uint64_t index = random_number() % (2 * KEYS), other = index ^ 1;
    uint64_t key = 0x7f0000000000 + index / 2 * 4096 + index % 2, to = key ^ 1;
    switch (random_number() % 3) {
      case 0:
        CHECK_EQ(put(key, (uint64_t)step + 1, 1, 1), model[index] != 0);
        model[index] = (uint64_t)step + 1;
        break;
      case 1:
        CHECK_EQ(table_rename(&table, key, to, &found, &old), model[index] != 0);
        if (model[index] == 0) break;
        CHECK_EQ(found.key, to);
        CHECK_EQ(found.bytes, model[index]);
        CHECK_EQ(old.key, model[other] != 0 ? to : 0);
        if (old.key != 0) CHECK_EQ(old.bytes, model[other]);
        model[other] = model[index];
        model[index] = 0;
        break;
      default:
        CHECK_EQ(table_take(&table, key, &found), model[index] != 0);
        model[index] = 0;
    }
    CHECK_EQ(table_get(&table, to, &found), model[other] != 0);
    if (model[other] != 0) CHECK_EQ(found.bytes, model[other]);
  }
}

/* Without memory a table refuses what is new while there is a place for what was taken out. */
TEST(table_without_memory_takes_back) {
  enum { MANY = 1000 };
  static uint64_t kept[MANY];
  struct table_entry taken, found, old;
  uint64_t count = 0;
  put(256, 1, 1, 1); /* the C library has resolved what is called below */
  table_take(&table, 256, &taken);
  const struct rlimit none = {1, RLIM_INFINITY};
  CHECK_EQ(setrlimit(RLIMIT_AS, &none), 0);
  for (uint64_t key = 256; key <= MANY * 256; key += 256)
    if (put(key, key, 1, 1) == 0) kept[count++] = key;
  CHECK(count > TABLE_SHARDS && count < MANY);
  for (uint64_t i = 0; i < count; i++) {
    CHECK_EQ(table_take(&table, kept[i], &taken), 1);
    for (uint64_t key = MANY * 512; key <= MANY * 1024; key += 256)
      if (put(key, key, 1, 1) == 0) break; /* another thread has the place */
    CHECK_EQ(table_put_back(&table, &taken, &old), 0);
    CHECK_EQ(table_get(&table, kept[i], &found), 1);
    CHECK_EQ(found.bytes, kept[i]);
    if (i == TABLE_SHARDS / 2) break;
  }
  CHECK_EQ(put(kept[0], 1, 1, 1), 1); /* which is replaced needs no place */
}
