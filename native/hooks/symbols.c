/* SPDX-License-Identifier: Apache-2.0 */
/* See symbols.h.
 * Tests: tests/integration/test_native_lookup.py. */
#include "symbols.h"

#include <stdint.h>

struct cuda_api real_cuda;
struct nvml_api real_nvml;

const struct symbol_names symbol_names = {
#define HOOK(body, symbol, params, args) #symbol,
#define NEED(symbol) #symbol,
#include "cuda.def"
#include "nvml.def"
#undef HOOK
#undef NEED
    "dlsym",
    "dlvsym",
};

_Static_assert(sizeof symbol_names <= UINT16_MAX, "an offset has sixteen bits");
