/* SPDX-License-Identifier: Apache-2.0 */
/* The shared state file: creation, slots, memory, death. See fake_state.h for the protocol.
 * Must not depend on CUDA, NVML or what a context is. Tests: tests/unit/fakedriver/test_sharing.py. */
#include "fake_state.h"

#include "fake_env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct fake_state *fake_state;

static const char magic[16] = "fakedriver 5"; /* the number changes with the layout */
static int state_fd = -1;
static int own_slot = -1;
static uint64_t own_lock_word;
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;

enum { LOCK_BYTES = 1 << 30, TABLE_BYTE = LOCK_BYTES - 1, REAPER = 0xffff };

uint64_t state_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- locks ------------------------------------------------------------------------------------------------------ */

static int lock_byte(int command, short type, off_t byte) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  int result;
  do result = fcntl(state_fd, command, &lock);
  while (result < 0 && errno == EINTR);
  return result;
}

pid_t state_slot_pid(unsigned slot) {
  /* The open-file-description flavour of the question also sees locks of the asking process. */
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BYTES + (off_t)slot, .l_len = 1};
  if (fcntl(state_fd, F_OFD_GETLK, &lock) < 0 || lock.l_type == F_UNLCK) return -1;
  return lock.l_pid;
}

/* The lock belongs to this library's descriptor, so
 * it also excludes the other library of the same process, and falls when the process dies. */
void state_table_lock(void) {
  pthread_mutex_lock(&table_mutex);
  lock_byte(F_OFD_SETLKW, F_WRLCK, TABLE_BYTE);
}

void state_table_unlock(void) {
  lock_byte(F_OFD_SETLK, F_UNLCK, TABLE_BYTE);
  pthread_mutex_unlock(&table_mutex);
}

static int table_trylock(void) {
  if (pthread_mutex_trylock(&table_mutex)) return -1;
  if (!lock_byte(F_OFD_SETLK, F_WRLCK, TABLE_BYTE)) return 0;
  pthread_mutex_unlock(&table_mutex);
  return -1;
}

/* Is WORD the mark of a process that can no longer unlock? ME asks. */
static int holder_died(uint64_t word, uint64_t me, const struct fake_gpu_state *gpu) {
  unsigned holder = (unsigned)(word & 0xffff);
  if (holder != REAPER) return state_slot_pid(holder - 1) < 0;
  if ((me & 0xffff) == REAPER) return 1; /* there is one reaper at a time, and that is the asker */
  if (table_trylock()) return 0;         /* a reaper works under the table lock */
  int died = atomic_load(&gpu->lock) == word;
  state_table_unlock();
  return died;
}

static void rebuild_sum(unsigned gpu) {
  uint64_t sum = 0;
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++) sum += atomic_load_explicit(&fake_state->slot[i].used[gpu], memory_order_relaxed);
  atomic_store(&fake_state->gpu[gpu].used, sum);
}

static void gpu_lock(unsigned index, uint64_t word) {
  struct fake_gpu_state *gpu = &fake_state->gpu[index];
  for (unsigned spins = 1;; spins++) {
    uint64_t seen = atomic_load_explicit(&gpu->lock, memory_order_relaxed);
    if (!seen &&
        atomic_compare_exchange_weak_explicit(&gpu->lock, &seen, word, memory_order_acquire, memory_order_relaxed))
      return;
    state_spin(spins);
    if (spins % 65536 == 0 && seen && holder_died(seen, word, gpu) &&
        atomic_compare_exchange_strong(&gpu->lock, &seen, word)) {
      rebuild_sum(index);
      return;
    }
  }
}

void state_lock(_Atomic uint64_t *lock) {
  for (unsigned spins = 1;; spins++) {
    uint64_t seen = atomic_load_explicit(lock, memory_order_relaxed);
    if (!seen && atomic_compare_exchange_weak(lock, &seen, own_lock_word)) return;
    state_spin(spins);
    if (spins % 65536 == 0 && seen && state_slot_pid((unsigned)(seen & 0xffff) - 1) < 0 &&
        atomic_compare_exchange_strong(lock, &seen, own_lock_word))
      return;
  }
}

static void gpu_unlock(unsigned index) { atomic_store_explicit(&fake_state->gpu[index].lock, 0, memory_order_release); }

void state_gpu_lock(unsigned index) { gpu_lock(index, UINT64_C(1) << 16 | REAPER); }
void state_gpu_unlock(unsigned index) { gpu_unlock(index); }

/* --- memory ----------------------------------------------------------------------------------------------------- */

/* What LEVEL of the slot counts; after all limits were forgotten it is less than what comes back. */
static void count(unsigned gpu, unsigned slot, unsigned level, uint64_t bytes, int more) {
  if (!level) return;
  _Atomic uint64_t *counted = &fake_state->slot[slot].counted[gpu][level - 1];
  uint64_t before = atomic_load(counted);
  atomic_store(counted, more ? before + bytes : before - (bytes < before ? bytes : before));
  limits_publish(gpu, &fake_state->slot[slot].chain);
}

/* Under the GPU's lock. LEVEL NULL: no limit counts it. */
static int charge_own(unsigned gpu, uint64_t bytes, unsigned *level) {
  struct fake_gpu_state *shared = &fake_state->gpu[gpu];
  const struct fake_gpu *properties = &fake_state->machine.gpu[gpu];
  uint64_t used = atomic_load_explicit(&shared->used, memory_order_relaxed);
  int fits = bytes <= properties->memory_bytes - properties->reserved_bytes - used;
  if (fits && level && __builtin_expect(limits_are_on(), 0))
    fits = !limits_fit(gpu, &fake_state->slot[own_slot].chain, bytes, level);
  if (fits) {
    _Atomic uint64_t *own = &fake_state->slot[own_slot].used[gpu];
    atomic_store_explicit(own, atomic_load_explicit(own, memory_order_relaxed) + bytes, memory_order_relaxed);
    atomic_store_explicit(&shared->used, used + bytes, memory_order_relaxed);
    if (level) count(gpu, (unsigned)own_slot, *level, bytes, 1);
  }
  return fits ? 0 : -1;
}

static uint64_t free_bytes(unsigned gpu) {
  const struct fake_gpu *properties = &fake_state->machine.gpu[gpu];
  return properties->memory_bytes - properties->reserved_bytes - atomic_load(&fake_state->gpu[gpu].used);
}

static void change_resident(unsigned gpu, unsigned slot, uint64_t bytes, int in) {
  struct fake_slot *owner = &fake_state->slot[slot];
  uint64_t by = in ? bytes : -bytes;
  atomic_fetch_add(&owner->used[gpu], by);
  atomic_fetch_add(&owner->resident[gpu], by);
  atomic_fetch_add(&fake_state->gpu[gpu].used, by);
}

/* Up to BYTES of managed pages go to the host, those of others first. Under the GPU's lock. */
static uint64_t page_out(unsigned gpu, uint64_t bytes, int own_too) {
  uint64_t gone = 0;
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned step = 0; step <= high && gone < bytes; step++) {
    unsigned i = step < high ? step : (unsigned)own_slot;
    if ((step < high) == ((int)i == own_slot) || (step == high && !own_too)) continue;
    uint64_t there = atomic_load(&fake_state->slot[i].resident[gpu]), left = bytes - gone;
    uint64_t some = there < left ? there : left;
    change_resident(gpu, i, some, 0);
    gone += some;
  }
  return gone;
}

void state_charge_managed(unsigned gpu, uint64_t bytes) {
  gpu_lock(gpu, own_lock_word);
  uint64_t room = free_bytes(gpu);
  atomic_fetch_add(&fake_state->slot[own_slot].managed[gpu], bytes);
  change_resident(gpu, (unsigned)own_slot, bytes < room ? bytes : room, 1);
  gpu_unlock(gpu);
}

void state_uncharge_managed(unsigned gpu, uint64_t bytes) {
  struct fake_slot *slot = &fake_state->slot[own_slot];
  gpu_lock(gpu, own_lock_word);
  uint64_t left = atomic_fetch_sub(&slot->managed[gpu], bytes) - bytes, there = atomic_load(&slot->resident[gpu]);
  if (there > left) change_resident(gpu, (unsigned)own_slot, there - left, 0);
  gpu_unlock(gpu);
}

uint64_t state_fetch_managed(unsigned gpu, uint64_t bytes) {
  struct fake_slot *slot = &fake_state->slot[own_slot];
  gpu_lock(gpu, own_lock_word);
  uint64_t missing = atomic_load(&slot->managed[gpu]) - atomic_load(&slot->resident[gpu]);
  if (bytes < missing) missing = bytes;
  uint64_t room = free_bytes(gpu), out = missing > room ? page_out(gpu, missing - room, 0) : 0;
  uint64_t in = missing < room + out ? missing : room + out;
  change_resident(gpu, (unsigned)own_slot, in, 1);
  gpu_unlock(gpu);
  atomic_fetch_add(&slot->moved[gpu], in + out);
  return in + out;
}

uint64_t state_touch_managed(unsigned gpu) {
  struct fake_slot *slot = &fake_state->slot[own_slot];
  if (atomic_load(&slot->managed[gpu]) == atomic_load(&slot->resident[gpu])) return 0;
  gpu_lock(gpu, own_lock_word);
  uint64_t missing = atomic_load(&slot->managed[gpu]) - atomic_load(&slot->resident[gpu]);
  uint64_t room = free_bytes(gpu), out = missing > room ? page_out(gpu, missing - room, 0) : 0;
  uint64_t in = missing < room + out ? missing : room + out;
  change_resident(gpu, (unsigned)own_slot, in, 1);
  gpu_unlock(gpu);
  /* What has no place beside the rest comes, is used and goes, each time. */
  uint64_t moved = in + out + 2 * (missing - in);
  atomic_fetch_add(&slot->moved[gpu], moved);
  return moved;
}

static int try_charge(unsigned gpu, uint64_t bytes, unsigned *level) {
  gpu_lock(gpu, own_lock_word);
  int result = charge_own(gpu, bytes, level);
  gpu_unlock(gpu);
  return result;
}

int state_charge(unsigned gpu, uint64_t bytes, unsigned *level) {
  if (level) *level = 0;
  if (__builtin_expect(try_charge(gpu, bytes, level) == 0, 1)) return 0;
  state_reap();
  if (try_charge(gpu, bytes, level) == 0) return 0;
  gpu_lock(gpu, own_lock_word);
  uint64_t room = free_bytes(gpu);
  if (bytes > room) page_out(gpu, bytes - room, 1);
  int result = charge_own(gpu, bytes, level);
  gpu_unlock(gpu);
  return result;
}

/* Under the GPU's lock. */
static void uncharge_own(unsigned gpu, uint64_t bytes, unsigned level) {
  struct fake_gpu_state *shared = &fake_state->gpu[gpu];
  _Atomic uint64_t *own = &fake_state->slot[own_slot].used[gpu];
  atomic_store_explicit(own, atomic_load_explicit(own, memory_order_relaxed) - bytes, memory_order_relaxed);
  atomic_store_explicit(&shared->used, atomic_load_explicit(&shared->used, memory_order_relaxed) - bytes,
                        memory_order_relaxed);
  count(gpu, (unsigned)own_slot, level, bytes, 0);
}

void state_uncharge(unsigned gpu, uint64_t bytes, unsigned level) {
  gpu_lock(gpu, own_lock_word);
  uncharge_own(gpu, bytes, level);
  gpu_unlock(gpu);
}

int state_charge_bill(unsigned gpu, uint64_t bytes, struct fake_bill *bill) {
  unsigned level;
  if (state_charge(gpu, bytes, &level)) return -1;
  int part = 0;
  while (part < FAKE_BILL_PARTS - 1 && bill->bytes[part] && (bill->level[part] != level || bill->bytes[part + 1])) part++;
  bill->level[part] = (uint8_t)level;
  bill->bytes[part] += bytes;
  return 0;
}

void state_uncharge_bill(unsigned gpu, uint64_t bytes, struct fake_bill *bill) {
  for (int part = FAKE_BILL_PARTS - 1; part >= 0 && bytes; part--) {
    uint64_t some = bill->bytes[part] < bytes ? bill->bytes[part] : bytes;
    if (some) state_uncharge(gpu, some, bill->level[part]);
    bill->bytes[part] -= some;
    bytes -= some;
  }
}

/* --- memory of several processes --------------------------------------------------------------------------------- */

static uint64_t generation_of(unsigned slot) { return atomic_load(&fake_state->slot[slot].generation); }

static int pays_still(uint64_t payer) {
  return payer != 0 && generation_of((unsigned)(payer & 0xffff) - 1) == payer >> 16;
}

int state_share_join(struct fake_share *share, unsigned gpu, uint64_t bytes, int pays, unsigned level) {
  uint64_t *own = &share->holder[own_slot], generation = own_lock_word >> 16;
  state_reap();
  gpu_lock(gpu, own_lock_word);
  int failed = 0;
  if (!pays_still(share->payer)) {
    failed = !pays && charge_own(gpu, bytes, &level);
    if (!failed) {
      share->payer = own_lock_word;
      share->level = level;
    }
  }
  if (!failed) *own = (*own >> 32 == generation ? *own : generation << 32) + 1;
  gpu_unlock(gpu);
  return failed ? -1 : 0;
}

/* Slot of another process that refers to it; FAKE_SLOTS: none. */
static unsigned heir_of(const struct fake_share *share) {
  unsigned slot = 0;
  while (slot < FAKE_SLOTS && ((int)slot == own_slot || !(uint32_t)share->holder[slot] ||
                               share->holder[slot] >> 32 != generation_of(slot) || state_slot_pid(slot) < 0))
    slot++;
  return slot;
}

static void hand_over(struct fake_share *share, unsigned gpu, uint64_t bytes) {
  unsigned heir = heir_of(share);
  share->payer = heir < FAKE_SLOTS ? generation_of(heir) << 16 | (heir + 1) : 0;
  if (heir == FAKE_SLOTS) {
    uncharge_own(gpu, bytes, (unsigned)share->level);
  } else {
    atomic_fetch_add(&fake_state->slot[heir].used[gpu], bytes);
    atomic_fetch_sub(&fake_state->slot[own_slot].used[gpu], bytes);
    count(gpu, (unsigned)own_slot, (unsigned)share->level, bytes, 0);
    share->level = limits_are_on() ? limits_level(gpu, &fake_state->slot[heir].chain) : 0;
    count(gpu, heir, (unsigned)share->level, bytes, 1);
  }
}

void state_share_leave(struct fake_share *share, unsigned gpu, uint64_t bytes) {
  gpu_lock(gpu, own_lock_word);
  uint64_t left = --share->holder[own_slot];
  if ((uint32_t)left == 0 && share->payer == own_lock_word) hand_over(share, gpu, bytes);
  gpu_unlock(gpu);
}

/* --- slots ------------------------------------------------------------------------------------------------------ */

static void reset_alive(unsigned slot) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&fake_state->alive[slot], &attributes);
  pthread_mutexattr_destroy(&attributes);
}

/* Under the table lock. */
static void free_slot(unsigned index) {
  struct fake_slot *slot = &fake_state->slot[index];
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++) {
    gpu_lock(gpu, (uint64_t)atomic_load(&slot->generation) << 16 | REAPER);
    atomic_store(&slot->used[gpu], 0);
    atomic_store(&slot->managed[gpu], 0);
    atomic_store(&slot->resident[gpu], 0);
    atomic_store(&slot->moved[gpu], 0);
    for (unsigned level = 0; level < FAKE_LEVELS; level++) atomic_store(&slot->counted[gpu][level], 0);
    if (limits_are_on()) limits_publish(gpu, &slot->chain);
    rebuild_sum(gpu);
    gpu_unlock(gpu);
    atomic_store(&slot->contexts[gpu], 0);
    atomic_store(&slot->busy_ns[gpu], 0);
    atomic_store(&slot->ends[gpu], 0);
  }
  for (unsigned cell = 0; cell < FAKE_LAUNCH_CELLS; cell++) atomic_store(&slot->launches[cell], 0);
  atomic_store(&slot->records, 0);
  atomic_store(&slot->foreign_records, 0);
  reset_alive(index);
  atomic_store(&slot->generation, 0);
}

void state_reap(void) {
  unsigned high = atomic_load(&fake_state->slot_high);
  int dead = 0;
  for (unsigned i = 0; i < high && !dead; i++)
    dead = atomic_load(&fake_state->slot[i].generation) != 0 && state_slot_pid(i) < 0;
  if (!dead) return;
  state_table_lock();
  high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; i < high; i++)
    if (atomic_load(&fake_state->slot[i].generation) != 0 && state_slot_pid(i) < 0) free_slot(i);
  while (high && atomic_load(&fake_state->slot[high - 1].generation) == 0) high--;
  atomic_store(&fake_state->slot_high, high);
  state_table_unlock();
}

static uint64_t start_time(void) {
  char text[1024];
  FILE *file = fopen("/proc/self/stat", "re");
  size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
  if (file) fclose(file);
  text[length] = '\0';
  char *at = strrchr(text, ')');
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at + 1, NULL, 10) : 0;
}

int state_claim_slot(void) {
  if (own_slot >= 0) return 0;
  state_reap();
  state_table_lock();
  for (unsigned i = 0; i < FAKE_SLOTS && own_slot < 0; i++) {
    struct fake_slot *slot = &fake_state->slot[i];
    if (atomic_load(&slot->generation) != 0 || lock_byte(F_SETLK, F_WRLCK, LOCK_BYTES + (off_t)i)) continue;
    uint32_t generation = atomic_fetch_add(&fake_state->generations, 1) + 1;
    slot->pid_inside = getpid();
    slot->start_time = start_time();
    slot->kind = fake_env_process_kind();
    slot->chain = *limits_own_chain();
    snprintf(slot->name, sizeof slot->name, "%s", program_invocation_short_name);
    own_lock_word = (uint64_t)generation << 16 | (i + 1);
    reset_alive(i);
    pthread_mutex_lock(&fake_state->alive[i]);
    if (atomic_load(&fake_state->slot_high) <= i) atomic_store(&fake_state->slot_high, i + 1);
    atomic_store(&slot->generation, generation);
    own_slot = (int)i;
  }
  state_table_unlock();
  return own_slot < 0 ? -1 : 0;
}

struct fake_slot *state_own_slot(void) { return own_slot < 0 ? NULL : &fake_state->slot[own_slot]; }

/* --- the file --------------------------------------------------------------------------------------------------- */

static int complain(const char *what, const char *path) {
  fprintf(stderr, "fake driver: %s %s: %s\n", what, path, strerror(errno));
  return -1;
}

/* Fills a nameless neighbour of PATH and gives it the name only when it is complete; a process that comes second uses
 * the first one's. */
static int create_file(const char *path, const struct fake_machine *machine, uint64_t hash) {
  char temporary[4096];
  if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary) {
    errno = ENAMETOOLONG;
    return complain("state file", path);
  }
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0) return complain("cannot create the state file", path);
  struct fake_state *fresh = MAP_FAILED;
  int failed = ftruncate(fd, sizeof *fresh) || fchmod(fd, 0666);
  if (!failed) fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  failed = failed || fresh == MAP_FAILED;
  if (!failed) {
    memcpy(fresh->magic, magic, sizeof magic);
    fresh->machine_hash = hash;
    fresh->size = sizeof *fresh;
    fresh->machine = *machine;
    fresh->counting = machine->counters;
    fresh->armed = machine->counters;
    munmap(fresh, sizeof *fresh);
    failed = link(temporary, path) && errno != EEXIST;
  }
  int cause = errno;
  close(fd);
  unlink(temporary);
  errno = cause;
  return failed ? complain("cannot create the state file", path) : 0;
}

static int map_file(const char *path) {
  struct stat status;
  state_fd = open(path, O_RDWR | O_CLOEXEC);
  if (state_fd < 0) return errno == ENOENT ? 1 : complain("cannot open the state file", path);
  if (fstat(state_fd, &status)) return complain("cannot read the state file", path);
  struct fake_state *mapped = MAP_FAILED;
  if ((uint64_t)status.st_size == sizeof *mapped)
    mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
  if (mapped == MAP_FAILED || memcmp(mapped->magic, magic, sizeof magic) != 0 || mapped->size != sizeof *mapped) {
    fprintf(stderr,
            "fake driver: %s is not a state file of this version; remove it or set FAKEDRIVER_STATE to another path\n",
            path);
    if (mapped != MAP_FAILED) munmap(mapped, sizeof *mapped);
    return -1;
  }
  fake_state = mapped;
  return 0;
}

static int attach(const char *machine_path, const char *state_path) {
  char path[4096], error[FAKE_TEXT];
  struct fake_machine machine;
  uint64_t hash = 0;
  if (machine_path && machine_load(machine_path, &machine, &hash, error)) {
    fprintf(stderr, "fake driver: %s\n", error);
    return -1;
  }
  if (!machine_path && !state_path) {
    fprintf(stderr, "fake driver: set FAKEDRIVER_MACHINE to a machine file (tests/fakedriver/machines/*.txt)\n");
    return -1;
  }
  if (state_path) {
    snprintf(path, sizeof path, "%s", state_path);
  } else {
    snprintf(path, sizeof path, "%s/fakedriver-%u-%016llx", fake_env_temporary_directory(), getuid(),
             (unsigned long long)hash);
  }
  int result = map_file(path);
  if (result > 0 && !machine_path) {
    errno = ENOENT;
    return complain("FAKEDRIVER_MACHINE is not set and there is no state file", path);
  }
  if (result > 0) result = create_file(path, &machine, hash) || map_file(path);
  if (result) return -1;
  if (machine_path && fake_state->machine_hash != hash) {
    fprintf(stderr,
            "fake driver: %s was made from another machine file than %s; remove it or set FAKEDRIVER_STATE to another "
            "path\n",
            path, machine_path);
    munmap(fake_state, sizeof *fake_state);
    fake_state = NULL;
    return -1;
  }
  return 0;
}

/* The child has no slot, as record locks are not inherited, and needs an open file description of its own to exclude
 * its parent from the table. */
static void after_fork_in_child(void) {
  own_slot = -1;
  pthread_mutex_init(&table_mutex, NULL);
  if (state_fd < 0) return;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", state_fd);
  int fresh = open(path, O_RDWR | O_CLOEXEC);
  if (fresh < 0) return;
  dup3(fresh, state_fd, O_CLOEXEC);
  close(fresh);
}

int state_attach(void) {
  static int registered;
  pthread_mutex_lock(&table_mutex);
  if (!registered) registered = pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
  int result = 0;
  if (!fake_state && (result = attach(fake_env_machine(), fake_env_state())) && state_fd >= 0) {
    close(state_fd);
    state_fd = -1;
  }
  pthread_mutex_unlock(&table_mutex);
  return result ? result : limits_attach();
}

/* --- control ---------------------------------------------------------------------------------------------------- */

void state_raise_event(unsigned gpu, uint64_t type, uint64_t data) {
  state_table_lock();
  uint64_t number = atomic_load(&fake_state->event_count);
  fake_state->event[number % FAKE_EVENTS] = (struct fake_event){.gpu = gpu, .type = type, .data = data};
  atomic_store(&fake_state->event_count, number + 1);
  state_table_unlock();
}

void state_rearm(void) {
  uint32_t armed = atomic_load(&fake_state->counting);
  for (unsigned i = 0; i < FAKE_FAILURES; i++) armed += atomic_load(&fake_state->failure[i].left) != 0;
  atomic_store(&fake_state->armed, armed);
}

int state_add_failure(const char *call, int result, uint32_t count, pid_t pid) {
  uint32_t generation = 0;
  unsigned high = atomic_load(&fake_state->slot_high);
  for (unsigned i = 0; pid && i < high; i++)
    if (state_slot_pid(i) == pid) generation = atomic_load(&fake_state->slot[i].generation);
  state_table_lock();
  struct fake_failure *place = NULL;
  for (unsigned i = 0; i < FAKE_FAILURES && !place; i++)
    if (atomic_load(&fake_state->failure[i].left) == 0) place = &fake_state->failure[i];
  if (place) {
    snprintf(place->call, sizeof place->call, "%s", call);
    place->result = result;
    place->pid = pid;
    place->generation = generation;
    atomic_store(&place->left, count);
    state_rearm();
  }
  state_table_unlock();
  return place ? 0 : -1;
}

void state_reset_control(void) {
  state_table_lock();
  for (unsigned i = 0; i < FAKE_FAILURES; i++) atomic_store(&fake_state->failure[i].left, 0);
  for (unsigned i = 0; i < FAKE_CALLS; i++) atomic_store(&fake_state->calls[i], 0);
  for (unsigned i = 0; i < FAKE_MAX_GPUS; i++) atomic_store(&fake_state->gpu[i].lost, 0);
  atomic_store(&fake_state->counting, fake_state->machine.counters);
  state_rearm();
  state_table_unlock();
}
