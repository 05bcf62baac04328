/* SPDX-License-Identifier: Apache-2.0 */
/* Which limit holds for whom. See fake_limits.h; the rules stand in README.md.
 * Must not depend on how memory is taken. Tests: tests/unit/fakedriver/test_limits.py, test_limits_dmem.py. */
#include "fake_limits.h"

#include "fake_env.h"
#include "fake_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fake_chain own;

static int is_dmem(void) { return fake_state->machine.memory_limits == FAKE_LIMITS_DMEM; }
int limits_are_on(void) { return fake_state->machine.memory_limits >= FAKE_LIMITS_MISC; }
const struct fake_chain *limits_own_chain(void) { return &own; }

/* --- groups ----------------------------------------------------------------------------------------------------- */

struct identity {
  uint64_t device, inode, born_ns;
};

/* A directory that was made anew may have its predecessor's inode; it is younger. */
static int identity_of(const char *path, struct identity *out) {
  struct statx status;
  if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME | STATX_TYPE, &status)) return -1;
  if (!S_ISDIR(status.stx_mode)) {
    errno = ENOTDIR;
    return -1;
  }
  *out = (struct identity){.device = (uint64_t)status.stx_dev_major << 32 | status.stx_dev_minor, .inode = status.stx_ino};
  if (status.stx_mask & STATX_BTIME)
    out->born_ns = (uint64_t)status.stx_btime.tv_sec * 1000000000u + status.stx_btime.tv_nsec;
  return 0;
}

static int is_at_its_path(const struct fake_group *group) {
  struct identity now;
  return !identity_of(group->path, &now) && now.device == group->device && now.inode == group->inode &&
         now.born_ns == group->born_ns;
}

/* Only a process that sees the tree can tell. */
static int is_removed(const struct fake_group *group) {
  if (is_at_its_path(group)) return 0;
  const struct fake_group *top = group;
  for (int i = 0; i < FAKE_LEVELS && top->parent; i++) top = &fake_state->group[top->parent - 1];
  return top != group && is_at_its_path(top);
}

static int has_processes(unsigned place) {
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++) {
    const struct fake_slot *slot = &fake_state->slot[i];
    if (!atomic_load(&slot->generation)) continue;
    for (unsigned level = 0; level < slot->chain.levels; level++)
      if (slot->chain.group[level] == place) return 1;
  }
  return 0;
}

static int has_entry(const struct fake_group *group) {
  for (unsigned gpu = 0; gpu < FAKE_MAX_GPUS; gpu++)
    if (atomic_load(&group->limit[gpu].entry)) return 1;
  return 0;
}

/* A place for a new group: one that was never used, or a removed group's. The allocator of a kernel gives an address
 * again as soon as it likes; the driver's entry for it is still there then. */
static int new_place(void) {
  int reuse = (int)fake_state->machine.memory_limits_reuse, fresh = -1, removed = -1;
  for (int i = 0; i < FAKE_GROUPS; i++) {
    const struct fake_group *group = &fake_state->group[i];
    if (!group->inode) {
      fresh = i;
      break;
    }
    if (removed < 0 && (!reuse || has_entry(group)) && is_removed(group) && !has_processes((unsigned)i)) removed = i;
  }
  if (reuse && removed >= 0) return removed;
  if (fresh < 0) fresh = removed;
  if (fresh >= 0) memset(&fake_state->group[fresh], 0, sizeof *fake_state->group);
  return fresh;
}

static void look_for_controller(struct fake_group *group) {
  if (!is_at_its_path(group)) return; /* what another process saw there still holds */
  int there = is_dmem() ? limits_file_is_there(group->path, "dmem.max") || limits_file_is_there(group->path, "dmem.current")
                        : limits_file_is_there(group->path, "misc.max") || limits_file_is_there(group->path, "misc.current");
  atomic_store(&group->controller, (uint32_t)there);
}

static int is_root(const char *path) {
  return !strcmp(path, "/") || limits_file_is_there(path, "misc.capacity") || limits_file_is_there(path, "dmem.capacity");
}

/* Under the table lock. */
static int group_of(const char *path, const struct identity *identity) {
  for (int i = 0; i < FAKE_GROUPS && fake_state->group[i].inode; i++) {
    const struct fake_group *group = &fake_state->group[i];
    if (group->inode == identity->inode && group->device == identity->device && group->born_ns == identity->born_ns)
      return i;
  }
  int place = new_place();
  if (place < 0) {
    errno = ENOSPC;
    return -1;
  }
  struct fake_group *group = &fake_state->group[place];
  group->device = identity->device;
  group->inode = identity->inode;
  group->born_ns = identity->born_ns;
  group->parent = 0;
  group->root = (uint32_t)is_root(path);
  snprintf(group->path, sizeof group->path, "%s", path);
  return place;
}

int limits_chain_of(const char *directory, struct fake_chain *chain) {
  char path[FAKE_GROUP_PATH], real[4096];
  memset(chain, 0, sizeof *chain);
  if (!realpath(directory, real)) return -1;
  if (snprintf(path, sizeof path, "%s", real) >= (int)sizeof path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  for (int above = -1;;) {
    struct identity identity;
    if (identity_of(path, &identity)) return -1;
    int place = group_of(path, &identity);
    if (place < 0) return -1;
    look_for_controller(&fake_state->group[place]);
    if (above >= 0) fake_state->group[above].parent = (uint32_t)place + 1;
    chain->group[chain->levels++] = (uint16_t)place;
    if (fake_state->group[place].root || chain->levels == FAKE_LEVELS) return 0;
    above = place;
    char *slash = strrchr(path, '/');
    slash[slash == path] = '\0';
  }
}

int limits_attach(void) {
  static int attached;
  const char *directory = fake_env_cgroup();
  if (attached || !limits_are_on() || !directory) return 0;
  state_table_lock();
  int failed = limits_chain_of(directory, &own);
  int cause = errno;
  state_table_unlock();
  if (failed) fprintf(stderr, "fake driver: FAKEDRIVER_CGROUP: %s: %s\n", directory, strerror(cause));
  attached = !failed;
  return failed ? -1 : 0;
}

/* --- what is counted -------------------------------------------------------------------------------------------- */

/* Memory counts for the groups above, too: in the dmem controller, and where what came before a limit counts. */
static int counts_upwards(void) { return is_dmem() || fake_state->machine.memory_limits_earlier; }

static uint64_t with_overcount(uint64_t bytes) { return bytes + bytes * fake_state->machine.memory_limits_overcount / 100; }

uint64_t limits_used(unsigned gpu, unsigned group) {
  uint64_t sum = 0;
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++) {
    const struct fake_slot *slot = &fake_state->slot[i];
    if (!atomic_load(&slot->generation)) continue;
    for (unsigned level = 0; level < slot->chain.levels; level++) {
      if (slot->chain.group[level] != group) continue;
      for (unsigned from = counts_upwards() ? 0 : level; from <= level; from++)
        sum += atomic_load_explicit(&slot->counted[gpu][from], memory_order_relaxed);
    }
  }
  return with_overcount(sum);
}

/* The own group that the controller knows: without its files a process is in that of the next one above. */
static unsigned controlled(const struct fake_chain *chain) {
  unsigned level = 0;
  if (!fake_state->machine.memory_limits_controller && !is_dmem()) return 0;
  for (; level < chain->levels; level++) {
    struct fake_group *group = &fake_state->group[chain->group[level]];
    look_for_controller(group);
    if (atomic_load(&group->controller)) break;
  }
  return level;
}

/* misc: the nearest group with an entry. */
static unsigned limited(unsigned gpu, const struct fake_chain *chain) {
  unsigned level = controlled(chain);
  while (level < chain->levels &&
         atomic_load(&fake_state->group[chain->group[level]].limit[gpu].entry) != FAKE_ENTRY_SET)
    level++;
  return level;
}

unsigned limits_level(unsigned gpu, const struct fake_chain *chain) {
  if (!chain->levels) return 0;
  unsigned level = counts_upwards() ? controlled(chain) : limited(gpu, chain);
  return level < chain->levels ? level + 1 : 0;
}

static int dmem_fits(unsigned gpu, const struct fake_chain *chain, unsigned level, uint64_t bytes) {
  for (; level < chain->levels; level++) {
    const struct fake_group *group = &fake_state->group[chain->group[level]];
    uint64_t hard;
    if (group->root || limits_file_read(group->path, "dmem.max", gpu, &hard) || hard == FAKE_NO_LIMIT) continue;
    if (limits_used(gpu, chain->group[level]) + with_overcount(bytes) > hard) return 0;
  }
  return 1;
}

static int misc_fits(unsigned gpu, const struct fake_chain *chain, uint64_t bytes) {
  unsigned level = limited(gpu, chain);
  if (level == chain->levels) return 1;
  uint64_t hard = atomic_load(&fake_state->group[chain->group[level]].limit[gpu].hard);
  return hard == FAKE_NO_LIMIT || limits_used(gpu, chain->group[level]) + with_overcount(bytes) <= hard;
}

int limits_fit(unsigned gpu, const struct fake_chain *chain, uint64_t bytes, unsigned *level) {
  *level = limits_level(gpu, chain);
  if (!chain->levels) return 0;
  int fits = is_dmem() ? !*level || dmem_fits(gpu, chain, *level - 1, bytes) : misc_fits(gpu, chain, bytes);
  return fits ? 0 : -1;
}

void limits_publish(unsigned gpu, const struct fake_chain *chain) {
  if (!is_dmem()) return;
  for (unsigned level = 0; level < chain->levels; level++) {
    unsigned place = chain->group[level];
    const struct fake_group *group = &fake_state->group[place];
    if (atomic_load(&group->controller)) limits_file_write(group->path, "dmem.current", gpu, limits_used(gpu, place));
  }
}

/* --- what is shown ---------------------------------------------------------------------------------------------- */

static void show(struct fake_limits_shown *shown, unsigned gpu, unsigned place, uint64_t hard) {
  uint64_t total = fake_state->machine.gpu[gpu].memory_bytes;
  if (hard >= total || (shown->there && shown->total <= hard)) return;
  *shown = (struct fake_limits_shown){.there = 1, .total = hard, .used = limits_used(gpu, place)};
}

struct fake_limits_shown limits_shown(unsigned gpu) {
  struct fake_limits_shown shown = {0};
  uint32_t mode = fake_state->machine.memory_limits_shown;
  if (!own.levels || mode == FAKE_SHOWN_NO) return shown;
  unsigned first = is_dmem() ? controlled(&own) : limited(gpu, &own);
  for (unsigned level = first; level < own.levels; level++) {
    const struct fake_group *group = &fake_state->group[own.group[level]];
    uint64_t hard = atomic_load(&group->limit[gpu].hard);
    if (group->root) break;
    if (is_dmem() && limits_file_read(group->path, "dmem.max", gpu, &hard)) hard = FAKE_NO_LIMIT;
    show(&shown, gpu, own.group[level], hard);
    if (mode == FAKE_SHOWN_OWN || !is_dmem()) break; /* the limits of misc do not nest */
  }
  return shown;
}

void limits_narrow(unsigned gpu, uint64_t *total, uint64_t *available) {
  struct fake_limits_shown shown = limits_shown(gpu);
  if (!shown.there) return;
  uint64_t left = shown.used < shown.total ? shown.total - shown.used : 0;
  *total = shown.total;
  if (left < *available) *available = left;
}

/* --- NVML's answers --------------------------------------------------------------------------------------------- */

/* Refuses or takes a limit below what is used, as the machine says. */
static int is_refused(uint64_t used, uint64_t hard) {
  uint32_t rule = fake_state->machine.memory_limits_below;
  return used > hard && (rule == FAKE_BELOW_REFUSED || (rule == FAKE_BELOW_BACKEND && !is_dmem()));
}

static int set_misc(unsigned gpu, const struct fake_chain *chain, uint64_t soft, uint64_t hard) {
  struct fake_group *group = &fake_state->group[chain->group[0]];
  if (group->root) return FAKE_LIMITS_NOT_SUPPORTED;
  int found = !fake_state->machine.memory_limits_controller || atomic_load(&group->controller);
  if (is_refused(limits_used(gpu, chain->group[0]), hard)) return FAKE_LIMITS_BELOW_USE;
  atomic_store(&group->limit[gpu].soft, soft);
  atomic_store(&group->limit[gpu].hard, hard);
  atomic_store(&group->limit[gpu].entry, found ? FAKE_ENTRY_SET : FAKE_ENTRY_BLIND);
  return FAKE_LIMITS_DONE;
}

static uint64_t soft_of(const struct fake_group *group, unsigned gpu) {
  uint64_t soft = 0;
  return limits_file_read(group->path, "dmem.min", gpu, &soft) || soft == FAKE_NO_LIMIT ? 0 : soft;
}

/* The driver adds a soft limit up to the groups above; nobody takes it from there when the group is removed. */
static int set_dmem(unsigned gpu, const struct fake_chain *chain, uint64_t soft, uint64_t hard) {
  const struct fake_group *group = &fake_state->group[chain->group[0]];
  if (group->root || !limits_file_is_there(group->path, "dmem.max")) return FAKE_LIMITS_NOT_FOUND;
  if (is_refused(limits_used(gpu, chain->group[0]), hard)) return FAKE_LIMITS_BELOW_USE;
  uint64_t before = soft_of(group, gpu);
  if (limits_file_write(group->path, "dmem.max", gpu, hard)) return FAKE_LIMITS_NO_PERMISSION;
  for (unsigned level = 0; level < chain->levels; level++) {
    const struct fake_group *at = &fake_state->group[chain->group[level]];
    if (!at->root && soft != before) limits_file_write(at->path, "dmem.min", gpu, soft_of(at, gpu) - before + soft);
  }
  return FAKE_LIMITS_DONE;
}

int limits_set(unsigned gpu, const char *directory, uint64_t soft, uint64_t hard) {
  struct fake_chain chain;
  state_reap();
  state_table_lock();
  int result = limits_chain_of(directory, &chain) ? -errno : 0;
  if (!result) {
    state_gpu_lock(gpu);
    result = is_dmem() ? set_dmem(gpu, &chain, soft, hard) : set_misc(gpu, &chain, soft, hard);
    state_gpu_unlock(gpu);
  }
  state_table_unlock();
  return result;
}

static int get(unsigned gpu, const struct fake_chain *chain, uint64_t *soft, uint64_t *hard, uint64_t *used) {
  unsigned level = is_dmem() ? 0 : limited(gpu, chain);
  if (level == chain->levels) return FAKE_LIMITS_NOT_SUPPORTED;
  const struct fake_group *group = &fake_state->group[chain->group[level]];
  *soft = atomic_load(&group->limit[gpu].soft);
  *hard = atomic_load(&group->limit[gpu].hard);
  *used = limits_used(gpu, chain->group[level]);
  if (!is_dmem()) return FAKE_LIMITS_DONE;
  *soft = soft_of(group, gpu);
  return group->root || limits_file_read(group->path, "dmem.max", gpu, hard) ? FAKE_LIMITS_NOT_FOUND : FAKE_LIMITS_DONE;
}

int limits_get(unsigned gpu, const char *directory, uint64_t *soft, uint64_t *hard, uint64_t *used) {
  struct fake_chain chain;
  state_reap();
  state_table_lock();
  int result = limits_chain_of(directory, &chain) ? -errno : 0;
  if (!result) {
    result = get(gpu, &chain, soft, hard, used);
    limits_publish(gpu, &chain);
  }
  state_table_unlock();
  return result;
}

void limits_forget(unsigned gpu) {
  state_table_lock();
  state_gpu_lock(gpu);
  for (int i = 0; i < FAKE_GROUPS && fake_state->group[i].inode; i++) {
    struct fake_group *group = &fake_state->group[i];
    atomic_store(&group->limit[gpu].entry, FAKE_ENTRY_NONE);
    if (!is_dmem() || !is_at_its_path(group)) continue;
    limits_file_write(group->path, "dmem.max", gpu, FAKE_NO_LIMIT);
    if (limits_file_is_there(group->path, "dmem.min")) limits_file_write(group->path, "dmem.min", gpu, 0);
  }
  for (unsigned slot = 0; slot < FAKE_SLOTS; slot++)
    for (unsigned level = 0; level < FAKE_LEVELS; level++) atomic_store(&fake_state->slot[slot].counted[gpu][level], 0);
  state_gpu_unlock(gpu);
  state_table_unlock();
}
