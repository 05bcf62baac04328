/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one GPU of the ledger through NVML's real functions: which process holds how much of it. NVML is started once
 * and stays started, until the program ends its own last use: starting it takes milliseconds, reading some
 * microseconds. What the program sees of that: starts.h.
 * Charges nothing itself. Tests: tests/integration/test_native_context.py, test_native_undeclared.py. */
#ifndef VC_HOOKS_NVML_PROBE_H
#define VC_HOOKS_NVML_PROBE_H

#include <stdint.h>

#include "growth.h"

/* Loads NVML when the machine has it. Not under a lock: this runs the dynamic loader, and another thread may be in a
 * constructor under the loader's own lock, waiting for ours. */
void nvml_probe_prepare(void);

/* Whether NVML is loaded, so that it can be read. */
int nvml_probe_is_prepared(void);

/* Whether NVML is started: from then on a reading costs microseconds. */
int nvml_probe_is_started(void);

/* 1: *OUT is filled, until nvml_probe_drop(); 0: NVML is not loaded, or it has no such GPU. */
int nvml_probe_read(uint32_t column, struct growth_view *out);
void nvml_probe_drop(struct growth_view *view);

/* The same for all that is in use alone, in bytes, and of how many: a limit of the driver takes the GPU's place there. */
int nvml_probe_total(uint32_t column, uint64_t *used, uint64_t *size);

/* NVML is ended as far as it was started here. The next reading starts it again. */
void nvml_probe_stop(void);

/* In a forked child. */
void nvml_probe_after_fork(void);

#endif
