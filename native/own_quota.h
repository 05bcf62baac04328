/* SPDX-License-Identifier: Apache-2.0 */
/* The quota of a head (CONFIG_HEAD) or of a name (CONFIG_NAMED): made whole, joined, and made anew when it has other
 * limits and nobody uses it.
 * Uses neither CUDA nor NVML. Tests: tests/integration/test_native_heads.py, test_native_named_quotas.py. */
#ifndef VC_OWN_QUOTA_H
#define VC_OWN_QUOTA_H

#include "standalone.h"

/* REQUESTS: NULL without VCUDA_MEMORY_LIMIT. *LOCK: kept with VC_OK, so that nobody removes the directory before it is
 * attached to; -1 where it cannot be had (another user's directory). */
int own_quota_prepare(const struct config *config, const struct requests *requests, standalone_list_gpus *list_gpus,
                      int *lock, char *why);

/* The GPUs of the machine. */
enum { MACHINE_GPUS = 64 };
struct machine {
  uint32_t count;
  uint8_t gpus[MACHINE_GPUS][VC_UUID_BYTES];
};

/* These two are in standalone.c. VC_ENODRIVER; VC_ENOSYS. */
int machine_list(standalone_list_gpus *list_gpus, struct machine *out, char *why);
int machine_make_id(uint8_t id[VC_ID_BYTES], char *why);

#endif
