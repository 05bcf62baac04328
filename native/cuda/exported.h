/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that was exported and that this process has let go of: is it gone, or does another process still hold it?
 * While that may be, its charge stays for some seconds and then ends by itself (ledger_linger()); as soon as the GPU
 * shows that the memory is gone, it ends at once. Why: docs/adr/0014-shared-memory-is-paid-once.md.
 * Tests: tests/integration/test_native_lingering.py. */
#ifndef VC_CUDA_EXPORTED_H
#define VC_CUDA_EXPORTED_H

#include <stdint.h>

/* What is in use on a GPU beyond this process's charges, and of how many bytes that is a part (exported.c). */
struct level {
  int64_t bytes;
  uint64_t size;
};

/* Around a driver call that may end a holding; begins with column -1, for which everything does nothing. */
struct release_probe {
  int column;
  int seen; /* NVML is there: LEVEL is what it showed before the call */
  struct level level;
};

/* Something was exported. Before that the functions below cost one load. */
void exported_begin(void);

/* Before the driver call that may end exported memory of COLUMN: reads the level of the GPU, unless that was done for
 * this call already. */
void release_probe_begin(struct release_probe *probe, int column);
/* Whether that may do anything: nothing was exported yet, or the level is read. One load. */
int release_probe_is_settled(const struct release_probe *probe);
/* After what ended was settled. */
void release_probe_end(const struct release_probe *probe);

/* BYTES of a column end. 1: they stay charged for now. 0: the caller gives them back. May be called under a lock. */
int exported_keep(uint32_t column, uint64_t bytes, const struct release_probe *probe);

#endif
