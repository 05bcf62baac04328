/* SPDX-License-Identifier: Apache-2.0 */
/* Which directory has the quota of a program, by what its environment says: VCUDA_DIR, VCUDA_QUOTA, or neither.
 * Looks whether directories are there and whose they are, makes none. Reads no variable itself.
 * Uses neither CUDA nor NVML. Tests: tests/native/test_config.c, tests/integration/test_native_heads.py. */
#ifndef VC_DIRECTORY_H
#define VC_DIRECTORY_H

#include "config.h"

/* The variables; NULL: not set. */
struct directory_names {
  const char *directory; /* VCUDA_DIR, an absolute path */
  const char *quota;     /* VCUDA_QUOTA */
  const char *runtime;   /* XDG_RUNTIME_DIR */
};

/* Where the quota directories of this user lie; vcuda/settings.py finds the same. Returns the length that it has. */
size_t directory_base(const char *runtime, char out[CONFIG_PATH]);

/* Whether DIRECTORY is one that a program has from vcuda run or from the head of a quota: VCUDA_QUOTA goes before it. */
int directory_is_inherited(const char *directory);

/* Whether the quota has a head: then directory_choose() needs the sum of the values. */
int directory_has_head(const struct directory_names *names);

/* Fills in directory, origin and head of OUT, or WHY. */
int directory_choose(struct config *out, const struct directory_names *names, char *why);

#endif
