/* A look at one GPU of the ledger through NVML's real functions: who holds how much of it.
 * NVML is started once and stays started, until the program ends its own last use: starting it takes milliseconds, looking
 * some microseconds. What the program sees of that: starts.h.
 * Knows no quota. Tests: tests/integration/test_native_context.py, test_native_excess.py. */
#ifndef VC_HOOKS_GAUGE_H
#define VC_HOOKS_GAUGE_H

#include <stdint.h>

#include "growth.h"

/* Loads NVML when the machine has it. Not under a lock: this runs the dynamic loader, and another thread may be in a
 * constructor under the loader's own lock, waiting for ours. */
void gauge_prepare(void);

/* Whether NVML is loaded, so that a look is possible. */
int gauge_is_prepared(void);

/* Whether anything was looked at before: from then on a look costs microseconds. */
int gauge_is_started(void);

/* 1: *OUT is filled, until gauge_drop(); 0: NVML was not loaded by anybody, or it does not know the GPU. */
int gauge_look(uint32_t column, struct growth_view *out);
void gauge_drop(struct growth_view *view);

/* The same for all that is in use alone, in bytes. */
int gauge_total(uint32_t column, uint64_t *out);

/* NVML is ended as far as it was started here. The next look starts it again. */
void gauge_stop(void);

/* In a forked child. */
void gauge_after_fork(void);

#endif
