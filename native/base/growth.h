/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a GPU's memory is this process's, when NVML names processes by the host's PIDs and this process has
 * only its own namespace's. Pure.
 * Depends on nothing. Tests: tests/native/test_growth.c. */
#ifndef VC_BASE_GROWTH_H
#define VC_BASE_GROWTH_H

#include <stdint.h>

struct growth_process {
  uint32_t pid;
  uint64_t bytes;
};

enum { GROWTH_FEW = 64 };

/* A GPU at one instant: its processes as NVML lists them, and all that is in use. */
struct growth_view {
  uint32_t count;
  struct growth_process few[GROWTH_FEW];
  int listed; /* there is a list, complete */
  uint64_t total; /* in use */
  uint64_t size;  /* of SIZE bytes: the GPU's, or those of a limit that the driver shows in its place */
  struct growth_process *many; /* where they lie when they are more than a few; else NULL. The taker of the view owns it */
  uint64_t many_bytes;
};

/* Bytes that the process SELF gained between two views in which it made its first context on the GPU:
 * - listed under its own PID (no PID namespace in between): exactly its own growth;
 * - else there are new PIDs: it is one of them. One: its bytes. Several, because others start at the same time: the
 *   smallest, since a fresh context is the least a process can have, and the agent adds what is missing later;
 * - else (no list at all): the growth of the whole GPU, which others may blur.
 * 1: *BYTES is that. 0: nothing is known, because only the last way is left and the two views are not of the same whole:
 * between them a limit of the driver came, went or changed. */
int growth_of(uint32_t self, const struct growth_view *before, const struct growth_view *after, uint64_t *bytes);

/* Bytes that the list of a view gives for the process SELF; 0 when it is not in it. */
uint64_t growth_held(uint32_t self, const struct growth_view *view);

/* Whether the two views prove that the list names this process by its own PID, SELF: it was in none of them before it
 * made its first context on the GPU, and is in it now. Being listed alone proves nothing: the list may be the host's,
 * and the number another process's there. */
int growth_proves(uint32_t self, const struct growth_view *before, const struct growth_view *after);

#endif
