/* SPDX-License-Identifier: Apache-2.0 */
/* Whether descriptor 2 is a place for people: one rule for whatever this library writes there. Programs close it and open
 * files of their own, which get its number; nothing of ours may be in those.
 *
 * It is, where it is the file that was there when the library was loaded. Whatever else has taken its place by the first
 * use of limits must be plainly a redirection, as a daemon or a notebook's kernel makes one (stderr.c has what that is),
 * and is remembered. Where nothing was open at load, nothing ever is.
 * Depends on nothing. Tests: tests/integration/test_native_stderr.py. */
#ifndef VC_BASE_STDERR_H
#define VC_BASE_STDERR_H

struct stat;

/* Remembers which file it is; one system call. Where this was not called before the first use, that counts as the load. */
void stderr_at_load(void);

/* The first use of limits: remembers a redirection. Later calls do nothing. Keeps errno. */
void stderr_at_first_use(void);

/* Whether to write there now; then OUT is what it is. It is a first use, too. Keeps errno. */
int stderr_is_for_people(struct stat *out);

#endif
