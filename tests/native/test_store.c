/* SPDX-License-Identifier: Apache-2.0 */
/* Numbered records: numbers come back, growth keeps what is there. */
#include "check.h"
#include "store.h"

struct record {
  uint32_t next;
  uint64_t value[4];
};

TEST(store_numbers_come_back) {
  struct store store = {.size = sizeof(struct record)};
  CHECK_EQ(store_new(&store), 1);
  CHECK_EQ(store_new(&store), 2);
  CHECK_EQ(store_new(&store), 3);
  struct record *record = store_at(&store, 2);
  record->value[3] = 9;
  store_delete(&store, 2);
  store_delete(&store, 1);
  CHECK_EQ(store_new(&store), 1);
  CHECK_EQ(store_new(&store), 2);
  record = store_at(&store, 2);
  CHECK_EQ(record->value[3], 9);
  CHECK_EQ(store_new(&store), 4);
  CHECK_EQ(store.fresh, 4);
  store_reset(&store);
  CHECK_EQ(store_new(&store), 1);
  store_reset(&store);
}

TEST(store_grows) {
  enum { MANY = 100000 };
  struct store store = {.size = sizeof(struct record)};
  for (uint32_t i = 1; i <= MANY; i++) {
    CHECK_EQ(store_new(&store), i);
    struct record *record = store_at(&store, i);
    for (int k = 0; k < 4; k++) CHECK_EQ(record->value[k], 0);
    record->value[0] = i;
    record->value[3] = ~(uint64_t)i;
  }
  for (uint32_t i = 1; i <= MANY; i++) {
    const struct record *record = store_at(&store, i);
    CHECK_EQ(record->value[0], i);
    CHECK(record->value[3] == ~(uint64_t)i);
  }
  store_reset(&store);
}
