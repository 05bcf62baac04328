/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of arrays. Absurd extents give UINT64_MAX.
 * Tests: tests/native/test_format.c. */
#include "format.h"

#include <stddef.h>

/* From cuda.h, which this file does not include. */
enum { LAYERED = 0x01, CUBEMAP = 0x04, SPARSE = 0x40, DEFERRED_MAPPING = 0x80 };

enum { GROUP_BYTES = 64, GROUP_ROWS = 8 };

struct unit {
  unsigned int format;
  unsigned char width, height, bytes, per_channel;
};

static const struct unit units[] = {
#define FORMAT(name, number, width, height, bytes, per_channel) {number, width, height, bytes, per_channel},
#include "format.def"
#undef FORMAT
};

static const struct unit unknown = {0, 1, 1, 16, 0};

static const struct unit *unit_of(unsigned int format) {
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (units[i].format == format) return &units[i];
  return &unknown;
}

static uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t pieces(uint64_t a, uint64_t size) { return a / size + (a % size != 0); }

static uint64_t round_up(uint64_t a, uint64_t to) { return times(pieces(a, to), to); }

static uint64_t at_least_one(uint64_t extent) { return extent != 0 ? extent : 1; }

/* Without the granule. One row (1D, and levels that have shrunk to it) is not padded to a group's rows. */
static uint64_t level_bytes(const struct array_shape *shape) {
  const struct unit *unit = unit_of(shape->format);
  uint64_t row = times(pieces(at_least_one(shape->width), unit->width), unit->bytes);
  uint64_t rows = pieces(at_least_one(shape->height), unit->height);
  if (unit->per_channel) row = times(row, at_least_one(shape->channels));
  if (rows > 1) rows = round_up(rows, GROUP_ROWS);
  return times(times(round_up(row, GROUP_BYTES), rows), at_least_one(shape->depth));
}

static int has_own_memory(const struct array_shape *shape) {
  return !(shape->flags & (SPARSE | DEFERRED_MAPPING)) && shape->width != 0;
}

uint64_t array_bytes(const struct array_shape *shape) {
  return has_own_memory(shape) ? round_up(level_bytes(shape), ARRAY_GRANULE) : 0;
}

static uint64_t half(uint64_t extent) { return extent > 1 ? extent / 2 : extent; }

uint64_t mipmap_bytes(const struct array_shape *shape, unsigned int levels) {
  struct array_shape level = *shape;
  int flat = (shape->flags & (LAYERED | CUBEMAP)) != 0; /* layers and faces do not shrink */
  uint64_t sum = 0;
  if (!has_own_memory(shape)) return 0;
  for (unsigned int i = 0; i == 0 || i < levels; i++) {
    sum = plus(sum, level_bytes(&level));
    if (level.width <= 1 && level.height <= 1 && (flat || level.depth <= 1)) break;
    level.width = half(level.width);
    level.height = half(level.height);
    if (!flat) level.depth = half(level.depth);
  }
  return round_up(sum, ARRAY_GRANULE);
}
