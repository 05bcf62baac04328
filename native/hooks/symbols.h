/* SPDX-License-Identifier: Apache-2.0 */
/* All functions in the lists: the driver's own ones, typed by NVIDIA's headers, and their names, as constants without
 * one address in them. A table of addresses costs every process that starts, whether it uses CUDA or not, a relocation
 * for each and a copy of every page that they are on.
 * Uses no hook. Tests: tests/integration/test_native_lookup.py, test_native_exports.py (how few pages are
 * relocated). */
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

#endif
