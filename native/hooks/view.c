/* SPDX-License-Identifier: Apache-2.0 */
/* Limit and use of a column as programs see them.
 * Uses neither CUDA nor NVML. Tests: tests/integration/test_native_nvml.py. */
#include "view.h"

#include <stdatomic.h>

#include "undeclared.h"
#include "runtime_state.h"
#include "ledger.h"
#include "log.h"

/* A limit that was lowered under what is used leaves nothing, never less than nothing. */
void view_memory(uint32_t column, struct view *out) {
  uint64_t limit, used;
  undeclared_show(column);
  ledger_view(runtime_ledger, column, &limit, &used);
  out->total = limit;
  out->avail = (limit > used ? limit - used : 0) & ~(uint64_t)(VIEW_GRAIN - 1);
  out->used = out->total - out->avail;
}

void view_no_share(const uint8_t uuid[16]) {
  static _Atomic int said;
  char text[48];
  if (atomic_exchange_explicit(&said, 1, memory_order_relaxed)) return;
  if (uuid_format(uuid, 0, text, sizeof text) < 0) return;
  log_line(LOG_ERROR,
           "%s is visible but has no entry in the limits page: it shows no memory and every allocation on it is "
           "refused; give it a limit, or hide it with CUDA_VISIBLE_DEVICES",
           text);
}
