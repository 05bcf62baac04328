/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds of a GPU beyond what it has declared: module code, static arrays, local memory, all that
 * passes no hooked call. Measured on itself, where NVML lists the process under its own PID, at moments that are
 * cheap beside what they belong to; counted as used, in the process's own slot. Why and how: docs/adr/0016. Where
 * nothing can be measured nothing is counted: that is the node agent's part.
 * Uses the ledger and NVML's real functions, no allocator. Tests: tests/integration/test_native_undeclared.py. */
#ifndef VC_HOOKS_UNDECLARED_H
#define VC_HOOKS_UNDECLARED_H

#include <stdint.h>

#include "growth.h"
#include "nvidia.h"

/* Two views around the first context of this process on a GPU: from then on its own memory can be measured, or not. */
void undeclared_learn(const struct growth_view *before, const struct growth_view *after);
int undeclared_is_measurable(void);
/* The same has been seen by another process of the quota: it holds for this one if they share PID namespace and
 * NVML. */
void undeclared_trust(void);
/* The same, and if it was promised by another process, it has been checked. */
int undeclared_is_certain(void);

/* While memory exists that is charged later, nothing is measured in COLUMN. */
void undeclared_hold(uint32_t column);
void undeclared_release(uint32_t column);

/* Measures again. */
void undeclared_renew(uint32_t column);
/* The same for each column that has undeclared bytes: something was given back, and it is not known where. */
void undeclared_renew_all(void);
/* The same, unless that was less than 200 ms ago or another thread is at it. */
__attribute__((noinline)) void undeclared_glance(uint32_t column);
/* The same before something is shown, which must have been measured. No lock is held: it may load NVML. */
__attribute__((noinline)) void undeclared_show(uint32_t column);

/* CHARGE adds bytes to the column or answers an error. */
typedef CUresult undeclared_charge(uint32_t column, uint64_t bytes);
/* Before a call whose memory undeclared_take() is to find. No lock is held: it may load NVML. */
void undeclared_prepare(void);
/* Something was just loaded: measures, and charges what there is more than before. An error of CHARGE is the answer,
 * and nothing is counted then: the caller undoes what it loaded and calls undeclared_renew(). */
CUresult undeclared_take(uint32_t column, undeclared_charge *charge);

/* Before a refusal: 1 when less is counted now than before. */
int undeclared_shrink(uint32_t column);

/* Bytes counted in a column. */
uint64_t undeclared_bytes(uint32_t column);

/* From so many bytes on an allocation is a moment for a glance: the driver takes longer for it than a glance does. */
enum { UNDECLARED_LARGE = 2 << 20 };

/* In a forked child, which has no context. */
void undeclared_after_fork(void);

#endif
