/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a library in another program's process: one line each on stderr, capped in number, silent unless
 * something is wrong. Allocates nothing, keeps errno, depends on nothing. Tests: tests/native/test_config.c. */
#ifndef VC_BASE_LOG_H
#define VC_BASE_LOG_H

enum log_level { LOG_NONE, LOG_ERROR, LOG_INFO, LOG_DEBUG };

/* Level and "vcuda: " prefix are ours, FORMAT says what happened and what to do about it. Lines beyond the cap of a
 * process are dropped. */
__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#endif
