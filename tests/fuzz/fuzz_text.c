/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, UUIDs and VCUDA_MEMORY_LIMIT: what is accepted means what it says, whatever was written.
 * The first byte chooses the parser, the rest is the text. Subjects: native/base/text.c, native/config.c. */
#include <ctype.h>

#include "config.h"
#include "fuzz.h"

/* The same grammar, parsed with wide numbers: digits, a fraction, a unit. 0: not a size. */
static uint64_t size_by_other_means(const char *text) {
  static const char units[] = "kmgt";
  unsigned __int128 whole = 0, scale = 1;
  size_t digits = 0;
  int any = *text == '0';
  while (*text == '0') text++; /* as many as one likes */
  for (; isdigit((unsigned char)*text) && digits < 30; text++, digits++) whole = whole * 10 + (unsigned)(*text - '0');
  if (digits == 0 && !any) return 0;
  if (*text == '.') {
    if (!isdigit((unsigned char)*++text)) return 0;
    for (; isdigit((unsigned char)*text) && digits < 30; text++, digits++, scale *= 10)
      whole = whole * 10 + (unsigned)(*text - '0');
  }
  if (digits >= 30) return 0;
  const char *unit = *text == 0 ? NULL : strchr(units, tolower((unsigned char)*text));
  if (unit != NULL) {
    whole <<= 10 * (unit - units + 1);
    text++;
    if (tolower((unsigned char)*text) == 'i' && (text[1] == 0 || (tolower((unsigned char)text[1]) == 'b' && text[2] == 0)))
      text += strlen(text);
  } else if (tolower((unsigned char)*text) == 'b') {
    text++;
  } else if (*text == 0 && whole < 1048576 * scale) {
    if (whole > 9999 * scale) return 0;
    whole <<= 30; /* a number alone */
  }
  if (*text != 0 || whole % scale != 0 || whole / scale > VC_MAX_BYTES) return 0;
  return (uint64_t)(whole / scale);
}

static void try_size(const char *text) {
  uint64_t bytes = 77;
  int status = size_parse(text, &bytes);
  uint64_t expected = size_by_other_means(text);
  REQUIRE(status == VC_OK || (status == VC_EINVAL && bytes == 77));
  if (status == VC_OK) REQUIRE(bytes == expected && bytes > 0);
}

static void try_uuid(const char *text) {
  uint8_t uuid[16], again[16];
  uint32_t flags = 0, flags_again = 0;
  char out[41];
  if (uuid_parse(text, uuid, &flags) != VC_OK) return;
  REQUIRE(strlen(text) == 40);
  REQUIRE(uuid_format(uuid, flags, out, sizeof out) == VC_OK);
  for (int i = 0; i < 40; i++) REQUIRE(tolower((unsigned char)text[i]) == tolower((unsigned char)out[i]));
  REQUIRE(uuid_parse(out, again, &flags_again) == VC_OK && flags == flags_again && memcmp(uuid, again, 16) == 0);
}

static void try_resolve(const struct requests *requests, uint32_t machine) {
  static const uint8_t gpus[VC_MAX_GPUS + 1][VC_UUID_BYTES] = {{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}};
  struct vc_gpu_limit entry[VC_MAX_GPUS];
  struct vc_limits page = {.gpu_count = 0};
  char why[CONFIG_WHY] = "";
  int count = config_resolve(requests, gpus, machine, entry, why);
  REQUIRE(count <= VC_MAX_GPUS);
  if (count < 0) REQUIRE(why[0] != 0 && memchr(why, 0, sizeof why) != NULL);
  for (int i = 0; i < count; i++) {
    REQUIRE(entry[i].memory_bytes > 0 && entry[i].memory_bytes <= VC_MAX_BYTES);
    for (int k = 0; k < i; k++) REQUIRE(memcmp(entry[i].uuid, entry[k].uuid, VC_UUID_BYTES) != 0);
    page.gpu[page.gpu_count++] = entry[i];
  }
  /* A page that was made from the requests agrees with them, and one with a byte more does not. */
  if (count <= 0) return;
  REQUIRE(config_compare(requests, gpus, machine, &page, "page", "do this", why) == VC_OK);
  page.gpu[0].memory_bytes++;
  REQUIRE(config_compare(requests, gpus, machine, &page, "page", "do this", why) == VC_EINVAL);
}

static void try_requests(const char *text) {
  struct requests requests;
  char why[CONFIG_WHY] = "";
  int status = config_parse_memory(text, &requests, why);
  if (status != VC_OK) {
    REQUIRE(status == VC_EINVAL && strstr(why, "VCUDA_MEMORY_LIMIT") != NULL && memchr(why, 0, sizeof why) != NULL);
    return;
  }
  REQUIRE(requests.count > 0 && requests.count <= VC_MAX_GPUS);
  for (uint32_t i = 0; i < requests.count; i++)
    REQUIRE(requests.request[i].bytes > 0 && requests.request[i].bytes <= VC_MAX_BYTES);
  for (uint32_t machine = 0; machine <= 9; machine += 3) try_resolve(&requests, machine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0 || size > 8192) return 0;
  char *text = malloc(size);
  REQUIRE(text != NULL);
  memcpy(text, data + 1, size - 1);
  text[size - 1] = 0;
  static void (*const parser[])(const char *) = {try_size, try_uuid, try_requests};
  parser[data[0] % COUNT(parser)](text);
  free(text);
  return 0;
}
