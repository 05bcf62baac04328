/* All functions in the lists: the driver's own ones, typed by NVIDIA's headers, and their names, as constants without
 * one address in them. A table of addresses costs every process that starts, whether it uses CUDA or not, a relocation
 * for each and a copy of every page that they are on.
 * Uses no hook. Tests: tests/integration/test_native_lookup.py, test_native_exports.py (how few pages are relocated). */
#ifndef VC_HOOKS_SYMBOLS_H
#define VC_HOOKS_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#include "nvidia.h"

#define HOOK(body, symbol, params, args) __typeof__(&symbol) symbol;
#define NEED(symbol) __typeof__(&symbol) symbol;
struct cuda_api {
#include "cuda.def"
};
struct nvml_api {
#include "nvml.def"
};
#undef HOOK
#undef NEED

/* The real functions, filled by driver.c. Members are NULL where the driver has no such function. Valid after
 * driver_cuda() or driver_nvml() answered 1. */
extern struct cuda_api real_cuda __attribute__((visibility("hidden")));
extern struct nvml_api real_nvml __attribute__((visibility("hidden")));

struct symbol_names {
#define HOOK(body, symbol, params, args) char symbol[sizeof #symbol];
#define NEED(symbol) char symbol[sizeof #symbol];
#include "cuda.def"
#include "nvml.def"
#undef HOOK
#undef NEED
  char dlsym[sizeof "dlsym"], dlvsym[sizeof "dlvsym"];
};

extern const struct symbol_names symbol_names __attribute__((visibility("hidden")));

struct symbol {
  uint16_t at; /* in symbol_names */
  uint16_t length;
};

#define SYMBOL(symbol) {offsetof(struct symbol_names, symbol), sizeof #symbol - 1}

static inline const char *symbol_text(struct symbol symbol) { return (const char *)&symbol_names + symbol.at; }

/* What DT_GNU_HASH has for a name: from 5381 on, times 33 and plus the character, modulo 2^32. As a constant: the sum runs
 * over 64 characters, those after the end being 0, and the factors of 33 that these added are divided out again. */
enum { SYMBOL_LONGEST = 64 };
#define SYMBOL_CHARACTER(text, i) ((i) < sizeof(text) - 1 ? (uint32_t)(unsigned char)(text)[(i) < sizeof(text) ? (i) : 0] : 0u)
#define SYMBOL_HASH_1(sum, text, i) ((sum) * 33u + SYMBOL_CHARACTER(text, i))
#define SYMBOL_HASH_4(sum, text, i) \
  SYMBOL_HASH_1(SYMBOL_HASH_1(SYMBOL_HASH_1(SYMBOL_HASH_1(sum, text, i), text, i + 1), text, i + 2), text, i + 3)
#define SYMBOL_HASH_16(sum, text, i) \
  SYMBOL_HASH_4(SYMBOL_HASH_4(SYMBOL_HASH_4(SYMBOL_HASH_4(sum, text, i), text, i + 4), text, i + 8), text, i + 12)
#define SYMBOL_HASH_64(sum, text) \
  SYMBOL_HASH_16(SYMBOL_HASH_16(SYMBOL_HASH_16(SYMBOL_HASH_16(sum, text, 0), text, 16), text, 32), text, 48)
#define SYMBOL_BY_33_1 1041204193u /* times 33 is 1 */
#define SYMBOL_BY_33_2 (SYMBOL_BY_33_1 * SYMBOL_BY_33_1)
#define SYMBOL_BY_33_4 (SYMBOL_BY_33_2 * SYMBOL_BY_33_2)
#define SYMBOL_BY_33_8 (SYMBOL_BY_33_4 * SYMBOL_BY_33_4)
#define SYMBOL_BY_33_16 (SYMBOL_BY_33_8 * SYMBOL_BY_33_8)
#define SYMBOL_BY_33_32 (SYMBOL_BY_33_16 * SYMBOL_BY_33_16)
#define SYMBOL_BIT(count, bit) ((count) & (bit) ? SYMBOL_BY_33_##bit : 1u)
#define SYMBOL_BY_33(count)                                                                       \
  (SYMBOL_BIT(count, 1) * SYMBOL_BIT(count, 2) * SYMBOL_BIT(count, 4) * SYMBOL_BIT(count, 8) * \
   SYMBOL_BIT(count, 16) * SYMBOL_BIT(count, 32))
#define SYMBOL_HASH(text) (SYMBOL_HASH_64(5381u, text) * SYMBOL_BY_33(SYMBOL_LONGEST + 1 - sizeof(text)))

#endif
