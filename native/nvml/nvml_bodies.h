/* SPDX-License-Identifier: Apache-2.0 */
/* Prototypes of the bodies that stand behind the exported NVML wrappers, from the list.
 * Uses no policy. Tests: tests/integration/test_native_exports.py. */
#ifndef VC_NVML_NVML_BODIES_H
#define VC_NVML_NVML_BODIES_H

#include "nvidia.h"

#define NEED(symbol)
#define HOOK(body, symbol, params, args) nvmlReturn_t vc_##symbol params;
#include "nvml.def"
#undef HOOK
#undef NEED

#endif
