/* SPDX-License-Identifier: Apache-2.0 */
/* How many quotas a container was given. The container runtime mounts their files at the same paths, and what it mounts
 * last is there; so each claim's quota is mounted under a name of its own too, and that can be counted.
 * Uses neither CUDA nor NVML. Tests: tests/native/test_config.c, tests/integration/test_native_config.py. */
#ifndef VC_MOUNTS_H
#define VC_MOUNTS_H

/* How many limits pages are in DIRECTORY, where each allocation of a claim has one under its name; 2: two or more. An
 * empty file is none: an image that was made of a container has one where a page was mounted. */
int mounts_count_pages(const char *directory);

#endif
