/* SPDX-License-Identifier: Apache-2.0 */
/* See growth.h.
 * Depends on nothing. Tests: tests/native/test_growth.c. */
#include "growth.h"

static const struct growth_process *list_of(const struct growth_view *view) {
  return view->many ? view->many : view->few;
}

static const struct growth_process *find(const struct growth_view *view, uint32_t pid) {
  const struct growth_process *list = list_of(view);
  for (uint32_t i = 0; i < view->count; i++)
    if (list[i].pid == pid) return &list[i];
  return 0;
}

static uint64_t less(uint64_t after, uint64_t before) { return after > before ? after - before : 0; }

int growth_of(uint32_t self, const struct growth_view *before, const struct growth_view *after, uint64_t *bytes) {
  const struct growth_process *now = find(after, self), *then = find(before, self);
  uint64_t smallest = 0;
  if (now) {
    *bytes = less(now->bytes, then ? then->bytes : 0);
    return 1;
  }
  for (uint32_t i = 0; i < after->count; i++) {
    const struct growth_process *process = &list_of(after)[i];
    if (process->bytes == 0 || find(before, process->pid)) continue;
    if (smallest == 0 || process->bytes < smallest) smallest = process->bytes;
  }
  *bytes = smallest ? smallest : less(after->total, before->total);
  return smallest != 0 || before->size == after->size;
}

uint64_t growth_held(uint32_t self, const struct growth_view *view) {
  const struct growth_process *process = find(view, self);
  return process ? process->bytes : 0;
}

int growth_proves(uint32_t self, const struct growth_view *before, const struct growth_view *after) {
  return before->listed && after->listed && !find(before, self) && find(after, self);
}
