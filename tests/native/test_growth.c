/* SPDX-License-Identifier: Apache-2.0 */
/* Which growth of a GPU is ours. */
#include "check.h"
#include "growth.h"

enum { MIB = 1 << 20 };

/* UINT64_MAX: nothing is known. */
static uint64_t growth(uint32_t self, const struct growth_view *before, const struct growth_view *after) {
  uint64_t bytes = 0;
  return growth_of(self, before, after, &bytes) ? bytes : UINT64_MAX;
}

TEST(growth_under_own_pid) {
  const struct growth_view before = {.count = 2, .few = {{7, 500 * MIB}, {9, 100 * MIB}}, .listed = 1, .total = 1000 * MIB};
  const struct growth_view after = {.count = 3, .few = {{7, 900 * MIB}, {9, 260 * MIB}, {11, 50 * MIB}}, .listed = 1, .total = 5000u * MIB};
  CHECK_EQ(growth(9, &before, &after), 160 * MIB);  /* what others did does not matter */
  CHECK_EQ(growth(11, &before, &after), 50 * MIB);
  CHECK_EQ(growth(9, &after, &before), 0); /* shrunk: never negative */
}

TEST(growth_under_a_foreign_pid) {
  const struct growth_view before = {.count = 1, .few = {{4000, 500 * MIB}}, .listed = 1, .total = 500 * MIB};
  const struct growth_view one = {.count = 2, .few = {{4000, 1900 * MIB}, {4100, 300 * MIB}}, .listed = 1, .total = 2200u * MIB};
  const struct growth_view two = {.count = 3, .few = {{4000, 500 * MIB}, {4100, 300 * MIB}, {4200, 1500 * MIB}}, .listed = 1, .total = 2300u * MIB};
  const struct growth_view empty = {.count = 2, .few = {{4000, 500 * MIB}, {4100, 0}}, .listed = 1, .total = 700 * MIB};
  CHECK_EQ(growth(1, &before, &one), 300 * MIB); /* the neighbour took 1400 MiB meanwhile: not ours */
  CHECK_EQ(growth(1, &before, &two), 300 * MIB);
  CHECK_EQ(growth(1, &before, &empty), 200 * MIB); /* a new PID without a number says nothing */
}

TEST(growth_without_a_list) {
  const struct growth_view before = {.total = 500 * MIB}, after = {.total = 800 * MIB};
  CHECK_EQ(growth(1, &before, &after), 300 * MIB);
  CHECK_EQ(growth(1, &after, &before), 0);
}

/* A limit of the driver came in between: what is in use is a part of another whole. */
TEST(growth_across_a_limit) {
  const struct growth_view before = {.total = 9000u * (uint64_t)MIB, .size = 24000u * (uint64_t)MIB};
  const struct growth_view after = {.total = 300 * MIB, .size = 4000u * (uint64_t)MIB};
  const struct growth_view listed = {
      .count = 1, .few = {{7, 250 * MIB}}, .listed = 1, .total = 300 * MIB, .size = 4000u * (uint64_t)MIB};
  CHECK_EQ(growth(1, &before, &after), UINT64_MAX);
  CHECK_EQ(growth(1, &after, &before), UINT64_MAX);
  CHECK_EQ(growth(7, &before, &listed), 250 * MIB); /* lists know nothing of limits */
  CHECK_EQ(growth(1, &before, &listed), 250 * MIB);
}

TEST(growth_proves_own_pid) {
  const struct growth_view none = {.count = 1, .few = {{7, MIB}}, .listed = 1};
  const struct growth_view there = {.count = 2, .few = {{7, MIB}, {9, 3 * MIB}}, .listed = 1};
  const struct growth_view unlisted = {.count = 0};
  CHECK_EQ(growth_proves(9, &none, &there), 1);
  CHECK_EQ(growth_proves(7, &none, &there), 0);     /* listed before it did anything: another process's number */
  CHECK_EQ(growth_proves(11, &none, &there), 0);    /* not listed */
  CHECK_EQ(growth_proves(9, &unlisted, &there), 0); /* what was there before is unknown */
  CHECK_EQ(growth_held(9, &there), 3 * MIB);
  CHECK_EQ(growth_held(9, &none), 0);
}

TEST(growth_among_many) {
  enum { MANY = GROWTH_FEW * 5 };
  static struct growth_process then[MANY], now[MANY + 1];
  for (uint32_t i = 0; i < MANY; i++) then[i] = now[i] = (struct growth_process){1000 + i, MIB};
  now[MANY] = (struct growth_process){9, 300 * MIB};
  const struct growth_view before = {.count = MANY, .listed = 1, .total = MANY * (uint64_t)MIB, .many = then};
  const struct growth_view after = {.count = MANY + 1, .listed = 1, .total = (MANY + 400) * (uint64_t)MIB, .many = now};
  CHECK_EQ(growth(9, &before, &after), 300 * MIB);
  CHECK_EQ(growth(7, &before, &after), 300 * MIB); /* the one that is new */
  CHECK_EQ(growth_held(9, &after), 300 * MIB);
  CHECK_EQ(growth_proves(9, &before, &after), 1);
}
