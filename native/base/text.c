/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing by hand: strtoull accepts signs, spaces and locale forms, and a quota must never be a different number
 * than the one that was written.
 * Depends on nothing. Tests: tests/native/test_base.c, tests/unit/vcuda/test_sizes.py. */
#include "text.h"

#include "status.h"

static const uint64_t size_max = (UINT64_C(1) << 47) - 1; /* VC_MAX_BYTES of shm.h */
static const uint64_t bare_gib_max = 9999, bare_bytes_min = UINT64_C(1) << 20;
static const uint32_t flag_mig = 1;                       /* VC_GPU_MIG of shm_api.h; asserted equal in limits.c */

static int is_digit(char c) { return c >= '0' && c <= '9'; }

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* "b", "k", "ki", "kib" … "t", "ti", "tib" -> log2 of the unit, or -1. "GB" is refused: it means 10^9 to some and
 * 2^30 to others. */
static int unit_shift(const char *unit) {
  static const char letters[] = "kmgt";
  if (lower(unit[0]) == 'b' && unit[1] == '\0') return 0;
  for (int i = 0; letters[i]; i++) {
    if (lower(unit[0]) != letters[i]) continue;
    const char *rest = unit + 1;
    if (rest[0] == '\0') return 10 * (i + 1);
    if (lower(rest[0]) != 'i') return -1;
    if (rest[1] == '\0' || (lower(rest[1]) == 'b' && rest[2] == '\0')) return 10 * (i + 1);
  }
  return -1;
}

/* The number at the beginning of TEXT as DIGITS / SCALE; REST is what follows it. */
static int read_number(const char *text, uint64_t *number, uint64_t *divisor, const char **rest) {
  uint64_t digits = 0, scale = 1;
  const char *p = text;
  if (!text || !is_digit(*p)) return VC_EINVAL;
  for (; is_digit(*p); p++) {
    if (digits > size_max / 10) return VC_EINVAL;
    digits = digits * 10 + (uint64_t)(*p - '0');
  }
  if (*p == '.') {
    if (!is_digit(*++p)) return VC_EINVAL;
    for (; is_digit(*p); p++) {
      if (digits > UINT64_MAX / 100 || scale > UINT64_C(1000000)) return VC_EINVAL;
      digits = digits * 10 + (uint64_t)(*p - '0');
      scale *= 10;
    }
  }
  *number = digits;
  *divisor = scale;
  *rest = p;
  return VC_OK;
}

/* A number without a unit is GiB as in a pod's limits, or bytes where it is as large as a program would write it. What
 * lies between the two was meant in a unit that is not there. */
static int bare_shift(uint64_t digits, uint64_t scale) {
  if (digits <= bare_gib_max * scale) return 30;
  return digits >= bare_bytes_min * scale ? 0 : -1;
}

/* Whatever its size: what it lacks may be a unit. */
static int is_number_alone(const char *text) {
  int digits = 0, points = 0;
  for (; is_digit(*text) || *text == '.'; text++) *text == '.' ? points++ : digits++;
  return *text == '\0' && digits > 0 && points < 2;
}

#define SIZE_USAGE "write a number with KiB, MiB, GiB or TiB, as in 8GiB, above 0 and below 128 TiB "

/* SizeError of gigaslice/core/errors.py has the same words, and tests compare the two. */
const char *size_usage(const char *text) {
  return is_number_alone(text) ? SIZE_USAGE "(a number alone is GiB up to 9999 and bytes from 1048576 on)"
                               : SIZE_USAGE "(8G is 8GiB; 8GB is refused)";
}

int size_parse(const char *text, uint64_t *bytes) {
  uint64_t digits, scale;
  const char *unit;
  if (read_number(text, &digits, &scale, &unit) != VC_OK) return VC_EINVAL;
  int shift = *unit == '\0' ? bare_shift(digits, scale) : unit_shift(unit);
  if (shift < 0 || digits > (UINT64_MAX >> shift)) return VC_EINVAL;
  uint64_t scaled = digits << shift;
  if (scaled % scale != 0) return VC_EINVAL; /* "0.3GiB" is no whole number of bytes */
  uint64_t value = scaled / scale;
  if (value == 0 || value > size_max) return VC_EINVAL;
  *bytes = value;
  return VC_OK;
}

static int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int has_prefix(const char *text, const char *prefix) {
  for (; *prefix; text++, prefix++)
    if (lower(*text) != lower(*prefix)) return 0;
  return 1;
}

int uuid_parse(const char *text, uint8_t uuid[16], uint32_t *flags) {
  uint8_t parsed[16];
  uint32_t kind = 0;
  if (!text) return VC_EINVAL;
  if (has_prefix(text, "MIG-"))
    kind = flag_mig;
  else if (!has_prefix(text, "GPU-"))
    return VC_EINVAL;
  const char *p = text + 4;
  for (int i = 0; i < 16; i++) {
    if ((i == 4 || i == 6 || i == 8 || i == 10) && *p++ != '-') return VC_EINVAL;
    int high = hex_value(p[0]);
    if (high < 0) return VC_EINVAL;
    int low = hex_value(p[1]);
    if (low < 0) return VC_EINVAL;
    parsed[i] = (uint8_t)(high * 16 + low);
    p += 2;
  }
  if (*p != '\0') return VC_EINVAL;
  for (int i = 0; i < 16; i++) uuid[i] = parsed[i];
  if (flags) *flags = kind;
  return VC_OK;
}

int uuid_format(const uint8_t uuid[16], uint32_t flags, char *out, size_t size) {
  static const char hex[] = "0123456789abcdef";
  const char *prefix = (flags & flag_mig) ? "MIG-" : "GPU-";
  if (size < 41) return VC_EINVAL; /* 4 + 36 + NUL */
  for (int i = 0; i < 4; i++) *out++ = prefix[i];
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *out++ = '-';
    *out++ = hex[uuid[i] >> 4];
    *out++ = hex[uuid[i] & 15];
  }
  *out = '\0';
  return VC_OK;
}

size_t text_join(char *out, size_t size, const char *a, const char *b, const char *c) {
  const char *const parts[] = {a, b, c};
  size_t length = 0;
  for (unsigned int i = 0; i < sizeof parts / sizeof *parts; i++)
    for (const char *from = parts[i]; *from != 0; from++, length++)
      if (length + 1 < size) out[length] = *from;
  if (size != 0) out[length < size ? length : size - 1] = 0;
  return length;
}

/* format_bytes of gigaslice/core/units.py is the same rule, and tests compare the two. */
const char *text_size(uint64_t bytes, char buffer[TEXT_SIZE]) {
  static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  enum { LARGEST = sizeof units / sizeof *units - 1 };
  char number[TEXT_NUMBER], fraction[4] = "";
  int power = 0;
  while (power < LARGEST && bytes >> 10 * (power + 1) != 0) power++;
  uint64_t unit = UINT64_C(1) << 10 * power, whole = bytes / unit, rest = bytes % unit;
  uint64_t tenths = whole * 10 + (rest * 10 + unit / 2) / unit;
  if (tenths >= 1000) tenths = (whole + (2 * rest >= unit)) * 10;
  if (tenths >= 10240 && power < LARGEST) {
    tenths = 10;
    power++;
  }
  if (tenths % 10 != 0) {
    fraction[0] = '.';
    fraction[1] = (char)('0' + tenths % 10);
  }
  text_join(buffer, TEXT_SIZE, text_number(tenths / 10, number), fraction, units[power]);
  return buffer;
}

/* exact_size of gigaslice/core/units.py is the same rule, and tests compare the two. */
const char *text_exact(uint64_t bytes, char buffer[TEXT_SIZE]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  char number[TEXT_NUMBER];
  size_t power = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && power + 1 < sizeof units / sizeof *units; power++) bytes /= 1024;
  text_join(buffer, TEXT_SIZE, text_number(bytes, number), units[power], "");
  return buffer;
}

const char *text_number(uint64_t number, char buffer[TEXT_NUMBER]) {
  char *digit = &buffer[TEXT_NUMBER - 1];
  *digit = 0;
  do {
    *--digit = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  return digit;
}
