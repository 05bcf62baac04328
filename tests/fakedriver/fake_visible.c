/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs a process gets to see. See fake_visible.h. Must not read the environment.
 * Tests: tests/unit/fakedriver/test_visibility.py. */
#include "fake_visible.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Position among COUNT candidates: an index, or a UUID that may be cut short as long as it is unique. -1: none. */
static int find(const struct fake_machine *machine, const char *name, const unsigned *candidates, int count) {
  if (isdigit((unsigned char)*name)) {
    char *end;
    long index = strtol(name, &end, 10);
    return *end || index >= count ? -1 : (int)index;
  }
  int found = -1;
  size_t length = strlen(name);
  for (int i = 0; i < count && length > 4; i++) {
    char uuid[41];
    machine_gpu_name(machine, &machine->gpu[candidates[i]], uuid);
    if (strncasecmp(uuid, name, length) != 0) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

static char *next_item(char **rest) {
  if (!*rest) return NULL;
  char *item = *rest, *comma = strchr(item, ',');
  *rest = comma ? comma + 1 : NULL;
  if (comma) *comma = '\0';
  item += strspn(item, " \t");
  item[strcspn(item, " \t\r\n")] = '\0';
  return item;
}

int visible_in_container(const struct fake_machine *machine, const char *text, unsigned present[FAKE_MAX_GPUS]) {
  unsigned all[FAKE_MAX_GPUS];
  int chosen[FAKE_MAX_GPUS] = {0}, count = 0, everything = !text || !strcmp(text, "all");
  for (unsigned i = 0; i < machine->gpu_count; i++) all[i] = i;
  if (!everything && (!*text || !strcmp(text, "none") || !strcmp(text, "void"))) return 0;
  char copy[2048], *rest = copy, *item;
  snprintf(copy, sizeof copy, "%s", everything ? "" : text);
  while (!everything && (item = next_item(&rest))) {
    int index = find(machine, item, all, (int)machine->gpu_count);
    if (index < 0) {
      fprintf(stderr, "fake driver: NVIDIA_VISIBLE_DEVICES: this machine has no device \"%s\"\n", item);
      return -1;
    }
    chosen[index] = 1;
  }
  for (unsigned i = 0; i < machine->gpu_count; i++)
    if (everything || chosen[i]) present[count++] = i;
  return count;
}

int visible_to_cuda(const struct fake_machine *machine, const char *text, const unsigned *present, int count,
                    unsigned chosen[FAKE_MAX_GPUS]) {
  if (!text) {
    memcpy(chosen, present, (size_t)count * sizeof *present);
    return machine->mig && count > 1 ? 1 : count; /* a program has one MIG device, the first */
  }
  char copy[2048], *rest = copy, *item;
  int used[FAKE_MAX_GPUS] = {0}, number = 0;
  snprintf(copy, sizeof copy, "%s", text);
  while ((item = next_item(&rest))) {
    int index = find(machine, item, present, count);
    if (index < 0) break;
    if (used[index]++) return 0;
    chosen[number++] = present[index];
  }
  return machine->mig && number > 1 ? 1 : number;
}
