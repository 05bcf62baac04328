/* SPDX-License-Identifier: Apache-2.0 */
/* One line for people on stderr, from whatever thread a hook is called on: written at once, so that it stands in no
 * other line, without ever waiting, and only where descriptor 2 is still for people (stderr.h).
 * Depends on nothing. Tests: tests/integration/test_native_refusals.py. */
#ifndef VC_BASE_NOTICE_H
#define VC_BASE_NOTICE_H

#include <stddef.h>

/* LINE with its newline, at most PIPE_BUF bytes. 0: nothing was written, because stderr is full, closed, or something
 * else by now; the caller may try again later. Keeps errno. */
int notice_write(const char *line, size_t length);

#endif
