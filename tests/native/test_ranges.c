/* SPDX-License-Identifier: Apache-2.0 */
/* Pages under a graph's allocations. Subject: native/cuda/ranges.c. */
#include "ranges.h"

#include "check.h"
#include "status.h"

#define PAGE ((uint64_t)RANGES_PAGE)

TEST(ranges_pages_count_once) {
  struct ranges ranges = {0};
  CHECK_EQ(ranges_cover(&ranges, 0, 0), 0);
  CHECK_EQ(ranges_add(&ranges, 10 * PAGE, PAGE, 0), VC_OK);
  CHECK_EQ(ranges_add(&ranges, 3 * PAGE, 2 * PAGE, 0), VC_OK);
  CHECK_EQ(ranges_add(&ranges, 10 * PAGE, PAGE, 0), VC_OK);       /* the same address again */
  CHECK_EQ(ranges_add(&ranges, 4 * PAGE + 512, PAGE, 0), VC_OK);  /* overlaps the end of one */
  CHECK_EQ(ranges_add(&ranges, 10 * PAGE + 256, 256, 0), VC_OK);  /* inside of one */
  CHECK_EQ(ranges_add(&ranges, 20 * PAGE, 3 * PAGE, 1), VC_OK);   /* another GPU's */
  CHECK_EQ(ranges_add(&ranges, 30 * PAGE, 0, 0), VC_OK);          /* nothing */
  ranges_sort(&ranges);
  CHECK_EQ(ranges_cover(&ranges, 0, 0), 4 * PAGE);
  CHECK_EQ(ranges_cover(&ranges, 1, 0), 3 * PAGE);
  CHECK_EQ(ranges_cover(&ranges, 2, 0), 0);
  ranges_drop(&ranges);
}

TEST(ranges_freed_again) {
  struct ranges ranges = {0};
  ranges_add(&ranges, 10 * PAGE, PAGE, 0);
  ranges_add_free(&ranges, 10 * PAGE);
  ranges_add(&ranges, 20 * PAGE, PAGE, 0);
  ranges_add(&ranges, 30 * PAGE, PAGE, 0); /* allocated, freed, allocated again */
  ranges_add_free(&ranges, 30 * PAGE);
  ranges_add(&ranges, 30 * PAGE, PAGE, 0);
  ranges_add_free(&ranges, 50 * PAGE); /* another graph's */
  ranges_sort(&ranges);
  CHECK_EQ(ranges_cover(&ranges, 0, 0), 3 * PAGE);
  CHECK_EQ(ranges_cover(&ranges, 0, 1), 2 * PAGE);
  ranges_drop(&ranges);
}

TEST(ranges_ends_of_the_address_space) {
  struct ranges ranges = {0};
  ranges_add(&ranges, UINT64_MAX - 5, UINT64_MAX, 0);
  ranges_add(&ranges, PAGE, UINT64_MAX, 1);
  ranges_sort(&ranges);
  CHECK(ranges_cover(&ranges, 0, 0) <= PAGE);
  CHECK(ranges_cover(&ranges, 1, 0) > UINT64_MAX / 2);
  ranges_drop(&ranges);
}

/* Against a bitmap of pages. */
TEST(ranges_against_model) {
  enum { PAGES = 64, ENTRIES = 700 };
  uint64_t seed = 1;
  for (int round = 0; round < 200; round++) {
    struct ranges ranges = {0};
    char used[2][PAGES + 8] = {{0}};
    long expected[2] = {0, 0};
    int entries = 1 + round * ENTRIES / 200;
    for (int i = 0; i < entries; i++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      uint64_t start = (seed >> 33) % (PAGES * PAGE) & ~511ull, bytes = 512 + ((seed >> 20) & 0x3ffff) * 16;
      uint32_t column = (seed >> 60) & 1;
      CHECK_EQ(ranges_add(&ranges, start, bytes, column), VC_OK);
      for (uint64_t page = start / PAGE; page <= (start + bytes - 1) / PAGE; page++) used[column][page] = 1;
    }
    ranges_sort(&ranges);
    for (int column = 0; column < 2; column++) {
      for (int page = 0; page < PAGES + 8; page++) expected[column] += used[column][page];
      CHECK_EQ(ranges_cover(&ranges, (uint32_t)column, 0), expected[column] * (long)PAGE);
    }
    ranges_drop(&ranges);
  }
}
