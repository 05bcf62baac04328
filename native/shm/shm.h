/* shm_api.h for C: the guard, the includes and the sizes that the directive-free text cannot carry.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_limits.c. */
#ifndef VC_SHM_H
#define VC_SHM_H

#include <stddef.h>
#include <stdint.h>

#include "shm_api.h"
#include "status.h"

#define VC_MAX_BYTES ((UINT64_C(1) << 47) - 1) /* 128 TiB: more than any limit can mean, less than a ledger word holds */

#endif
