/* SPDX-License-Identifier: Apache-2.0 */
/* Directories and the texts of /proc, for the few who look into them: without the C library's streams, which allocate
 * memory. Functions return 0 or a count, or VC_E….
 * Depends on os.h. Tests: tests/native/test_quota.c. */
#ifndef VC_BASE_TREE_H
#define VC_BASE_TREE_H

#include <stddef.h>
#include <stdint.h>

/* What is done with a name or a text; anything but 0 ends the walk and is its result. */
typedef int tree_visit(const char *text, void *context);

/* Visits the names in directory PATH but "." and "..". */
int tree_names(const char *path, tree_visit *visit, void *context);

/* Visits the texts in file PATH, which end at END or with the file; longer ones are cut to TREE_TEXT - 1 characters.
 * *BYTES: how much was read. */
enum { TREE_TEXT = 2048 };
int tree_texts(const char *path, char end, tree_visit *visit, void *context, size_t *bytes);

/* The first SIZE - 1 bytes of file PATH, or the last of them with TAIL, and a zero. Returns how many. */
int tree_read(const char *path, int tail, char *out, size_t size);

/* The path of a directory without the links in PATH, as the kernel shows it elsewhere in /proc. */
int tree_real_path(const char *path, char *out, size_t size);

/* Removes a directory and what is in it, following no link. What cannot be removed stays. */
void tree_remove(const char *path);

/* Keeps directory PATH to the caller for a moment, by a lock that goes with the process (flock): a descriptor for
 * tree_unlock(); VC_EBUSY after MS, VC_EACCES where this user may not, VC_ENOENT. Children share it until they exec. */
int tree_lock(const char *path, uint32_t ms);
void tree_unlock(int fd);

#endif
