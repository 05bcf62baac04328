/* SPDX-License-Identifier: Apache-2.0 */
/* The quota that the first program with VCUDA_MEMORY_LIMIT heads, for itself and all that it starts: its name, and how
 * that gets into the environment, by which everything that is started joins.
 * Uses neither CUDA nor NVML. Tests: tests/native/test_head.c, tests/integration/test_native_heads.py,
 * test_native_head_children.py. */
#ifndef VC_HEAD_H
#define VC_HEAD_H

#include <stdint.h>

#include "config.h"

/* "env-<pid>-<24 hexadecimal digits>-<16>": who heads it, 96 random bits, the sum of the values that it was given. */
enum { HEAD_NAME = 72 };

/* This process's own, chosen at the first call; VC_ENOSYS without random bytes. */
int head_name(uint64_t values, char out[HEAD_NAME]);

/* The sum of what the variables say, whatever way it is written in; NULL: not set. 0: they make no sense. */
uint64_t head_values(const char *memory, const char *physical, const char *cores);

/* Whether NAME is one; then *PID and *VALUES are what it says. */
int head_parse(const char *name, int32_t *pid, uint64_t *values);

/* While the library is being loaded: VCUDA_DIR=BASE/NAME becomes a part of the environment. BLOCK: the environment as
 * the kernel laid it down. Where there is no room or no memory nothing happens, and the name is found at first use. */
void head_publish(const char *base, const char *name, char **block);

/* What was published by this process, or the one that it was forked from; NULL: nothing. */
const char *head_published(void);

#endif
