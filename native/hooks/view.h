/* SPDX-License-Identifier: Apache-2.0 */
/* The one set of numbers that cuMemGetInfo, cuDeviceTotalMem and NVML show.
 * Uses the ledger, neither CUDA nor NVML. Tests: tests/integration/test_native_nvml.py. */
#ifndef VC_HOOKS_VIEW_H
#define VC_HOOKS_VIEW_H

#include <stdint.h>

/* Bytes; total = avail + used always holds. */
struct view {
  uint64_t total;
  uint64_t avail;
  uint64_t used;
};

void view_memory(uint32_t column, struct view *out);

/* Says once per process that a GPU is visible but has no entry in the limits page. */
void view_no_share(const uint8_t uuid[16]);

/* Charges come in multiples of this, the alignment that every CUDA allocation has. */
enum { VIEW_GRAIN = 256 };

#endif
