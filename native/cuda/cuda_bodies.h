/* SPDX-License-Identifier: Apache-2.0 */
/* Prototypes of the bodies that stand behind the exported CUDA wrappers, from the list.
 * Uses no policy. Tests: tests/integration/test_native_exports.py. */
#ifndef VC_CUDA_CUDA_BODIES_H
#define VC_CUDA_CUDA_BODIES_H

#include "nvidia.h"

#define NEED(symbol)
#define HOOK(body, symbol, params, args) CUresult vc_##symbol params;
#include "cuda.def"
#undef HOOK
#undef NEED

#endif
