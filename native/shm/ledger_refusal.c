/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver refused although the ledger had room. A GPU can be full of others' memory, and a limit of the driver's
 * own may count more than calls declare: whoever watches the container tells the two apart, and both from a quota that
 * is used up, which is counted elsewhere.
 *
 * Per GPU and not per process: the slots have no room left, and nobody asks which process it was. The words lie where
 * older ledgers have zeros; older libraries leave them alone.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger.c, tests/integration/test_native_limits.py. */
#include "ledger_state.h"

void ledger_driver_refused(struct ledger *ledger, uint32_t column, uint64_t bytes) {
  if (column >= ledger->columns) return;
  struct ledger_refusal *refusal = &ledger->file->refusal[column];
  atomic_store_explicit(&refusal->bytes, bytes < USED_BYTES_MASK ? bytes : USED_BYTES_MASK, memory_order_relaxed);
  atomic_fetch_add_explicit(&refusal->count, 1, memory_order_release);
}
