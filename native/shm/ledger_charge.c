/* SPDX-License-Identifier: Apache-2.0 */
/* The usage ledger, process side: charge, give back, read. Lock-free, exact, crash-proof.
 *
 * Theory of operation
 * - Every process has a slot with one word per GPU: bytes used and a change count (ledger_layout.h). Only its owner
 *   adds to it; the sum over all slots plus the page's unhooked bytes is what the container uses.
 * - Charge: (1) mark the slot "deciding"; (2) if the sum leaves room, add to the own word; (3) read the others again.
 *   Both the addition and the reading are sequentially consistent, so of two processes that race at least one sees the
 *   other's addition. Still within the limit: charged. Over it: take the addition back and go the slow way. The sum of
 *   decided charges is therefore never over the limit, and a process killed between any two instructions leaves at
 *   worst its addition behind in a slot whose locks the kernel has dropped.
 * - Slow way: refuse only on certain ground. Two equal collections of all words are a snapshot of one instant, thanks
 *   to the change counts; if it leaves no room and no other process was deciding (a mark), the memory is really taken.
 *   Otherwise some addition seen may be about to be taken back: try again, with growing pauses. After a bounded time a
 *   mark that stays (its process was stopped, or is dead and not yet reclaimed) counts as taken: no process hangs.
 * - A refusal counts no dead process: after the snapshot every owner of a counted slot is found alive, and no slot has
 *   changed hands since before it; else the dead are gone now (ledger_slots.c), and we try again.
 * - A mark is a byte of its own for each of the first threads, so setting and clearing it are plain stores; the
 *   read-modify-write of step 2 is the only locked instruction of a charge.
 * - Where several processes share a quota each reserves some of the room beforehand, and charges within that without
 *   reading the others (ledger_allowance.h).
 * - A container that may use host memory has three limits: what is on the GPU, what may lie on the host, and both
 *   together. Each has words of its own and is charged as above; a charge is one in a part and then one in the whole,
 *   and what is given back is given back to the whole first. So the whole never holds what no part holds, and as the
 *   parts' limits add up to its own, it has room where a part has it, except after a live change; what is taken from a
 *   part and then refused by the whole may meanwhile refuse another process, no more.
 * Uses nothing of CUDA or NVML. Tests: tests/native/test_ledger.c, test_ledger_race.c, test_ledger_kill.c,
 * test_ledger_step.c, test_ledger_split.c. */
#include "ledger_allowance.h"
#include "ledger_slots.h"
#include "os.h"

enum {
  SPIN_ROUNDS = 64,     /* pauses of a few ns to 1 µs */
  YIELD_ROUNDS = 256,   /* then give the CPU away: the other one may need it to decide */
  SLEEP_ROUNDS = 400,   /* then sleep: 144 × 200 µs ≈ 30 ms until a mark that never goes counts as taken */
  SLEEP_US = 200,
  PEAK_EVERY = 64,      /* changes between two readings of the others by a process that need not read them */
  CONFIRM_EVERY = 1024, /* changes between two checks whether our record lock still names us */
};

static _Thread_local uint32_t thread_number; /* 1 + mark cell; 0: not yet given */

/* The cell of this thread's mark, 1-based; more than LEDGER_MARKS: it shares one. */
static inline uint32_t mark_cell(struct ledger *ledger) {
  uint32_t cell = thread_number;
  if (__builtin_expect(cell == 0, 0)) cell = thread_number = 1 + atomic_fetch_add(&ledger->threads, 1);
  return cell;
}

static inline void mark_set(struct ledger_slot *slot, uint32_t cell) {
  if (__builtin_expect(cell <= LEDGER_MARKS, 1))
    /* Ordered before the addition by the addition itself, which is a full barrier or at least a release. */
    atomic_store_explicit(&slot->mark[cell - 1], 1, memory_order_relaxed);
  else
    atomic_fetch_add(&slot->shared_marks, 1);
}

static inline void mark_clear(struct ledger_slot *slot, uint32_t cell, int ours) {
  if (__builtin_expect(cell <= LEDGER_MARKS, 1))
    atomic_store_explicit(&slot->mark[cell - 1], 0, memory_order_release);
  else if (ours)
    atomic_fetch_sub(&slot->shared_marks, 1);
}

static int slot_is_deciding(const struct ledger_slot *slot) {
  /* Eight marks at a time: that one of them is set is all that is asked. */
  const _Atomic uint64_t *marks = (const _Atomic uint64_t *)(const void *)slot->mark;
  uint64_t any = atomic_load(&slot->shared_marks);
  for (uint32_t i = 0; i < LEDGER_MARKS / 8; i++) any |= atomic_load(&marks[i]);
  return any != 0;
}

static inline void raise_peak(_Atomic uint64_t *peak, uint64_t value) {
  uint64_t seen = atomic_load_explicit(peak, memory_order_relaxed);
  while ((seen & PEAK_BYTES_MASK) < value &&
         !atomic_compare_exchange_weak(peak, &seen, (seen & ~PEAK_BYTES_MASK) | value))
    continue;
}

/* The owner that a call acts as: the slot, and the generation at which it was taken. */
struct registration {
  int32_t slot;
  uint32_t generation;
};

static inline struct registration registered(const struct ledger *ledger) {
  int32_t slot = atomic_load_explicit(&ledger->slot, memory_order_acquire);
  return (struct registration){slot, atomic_load_explicit(&ledger->generation, memory_order_acquire)};
}

/* Whether that still holds. The process that empties a slot raises the generation first; the index is compared too,
 * because another thread may have registered us elsewhere under a number that this slot has had, and with what was
 * known before the change, because it may have registered us here again. A process that loses its slot between this
 * question and its next instruction adds to a slot that is another process's by now: too much is counted then until
 * that one ends, never too little. */
static inline int slot_is_ours(const struct ledger *ledger, struct registration as) {
  return atomic_load_explicit(&ledger->file->slot[as.slot].generation, memory_order_seq_cst) == as.generation &&
         atomic_load_explicit(&ledger->slot, memory_order_relaxed) == as.slot;
}

/* Takes away what is there, at most BYTES. The slot is asked for after its word was read: the process that empties it
 * changes the generation first and the word, with its count, afterwards. */
static __attribute__((noinline)) void subtract_at_most(const struct ledger *ledger, struct registration as,
                                                       used_t *cell, uint64_t bytes) {
  uint64_t word = atomic_load(cell), next;
  do {
    if (!slot_is_ours(ledger, as)) return;
    uint64_t held = used_bytes(word);
    next = word - (bytes < held ? bytes : held) + USED_TICK;
  } while (!atomic_compare_exchange_weak(cell, &word, next));
}

/* Never below zero, and never from a slot that changed hands: what we had there is gone already, and comes back right
 * when we register again. An exchange-and-add, because a compare-and-swap would have to wait for the load before it:
 * 5 against 8 ns. */
static inline void subtract(const struct ledger *ledger, struct registration as, used_t *cell, uint64_t bytes) {
  if (!slot_is_ours(ledger, as)) return;
  if (__builtin_expect(bytes > used_bytes(atomic_load_explicit(cell, memory_order_relaxed)), 0)) {
    subtract_at_most(ledger, as, cell, bytes);
    return;
  }
  uint64_t held = used_bytes(atomic_fetch_sub(cell, bytes - USED_TICK));
  uint64_t back = bytes > held ? bytes - held : 0; /* two threads freed more than there is */
  if (__builtin_expect(!slot_is_ours(ledger, as), 0)) back = bytes; /* taken from the process that has the slot now */
  if (__builtin_expect(back != 0, 0)) atomic_fetch_add(cell, back + USED_TICK);
}

enum outcome { CHARGED, NO_ROOM, LOST_SLOT };

/* The first slot, all there is for most containers. */
static inline int is_alone(const struct ledger *ledger, int32_t own) {
  return ledger_slots_in_use(ledger) == 1 && own == 0;
}

/* What is not there for this process: of a part the others' used bytes, of the whole their allowances too. */
static inline uint64_t others_hold(const struct ledger *ledger, enum plane plane, uint32_t column, int32_t own) {
  if (is_alone(ledger, own)) return 0;
  if (plane != PLANE_ALL || !allowances_exist(ledger)) return sum_others(ledger, plane, column, own);
  return ledger_sum_reserved(ledger, column, own, ledger_slots_in_use(ledger));
}

/* The largest sum that a charge has produced: of what is used, not of what is reserved. The words are read one after
 * the other, and later than they were for the charge: what gives more than MOST, which the charge made sure of, never
 * was. */
static void raise_common_peak(const struct ledger *ledger, int32_t own, uint32_t column, uint64_t mine, uint64_t most) {
  uint64_t sum = mine + sum_others(ledger, PLANE_ALL, column, own) + ledger_unhooked(ledger, column);
  raise_peak(&ledger->file->peak[column], sum < most ? sum : most);
}

/* Within its allowance: the own word is all it needs. NO_ROOM: that did not do, and nothing has changed. */
static __attribute__((noinline)) enum outcome decide_by_allowance(struct ledger *ledger, struct ledger_slot *slot,
                                                                  struct registration as, uint32_t column,
                                                                  uint64_t bytes) {
  int32_t own = as.slot;
  used_t *cell = &slot->used[column];
  uint64_t before = used_bytes(atomic_load_explicit(cell, memory_order_relaxed));
  uint64_t limit = ledger_memory(ledger, column);
  if (!allowance_promises(ledger, own, column, before + bytes, limit, ledger_unhooked(ledger, column))) return NO_ROOM;
  uint64_t word = atomic_fetch_add(cell, bytes + USED_TICK), now = used_bytes(word) + bytes;
  if (__builtin_expect(!allowance_holds(ledger, own, column, now), 0)) {
    subtract(ledger, as, cell, bytes);
    return NO_ROOM;
  }
  if (__builtin_expect(!slot_is_ours(ledger, as), 0)) return LOST_SLOT;
  raise_peak(&slot->peak[column], now);
  if (__builtin_expect((word / USED_TICK) % PEAK_EVERY == 0, 0)) raise_common_peak(ledger, own, column, now, limit);
  if (__builtin_expect((word / USED_TICK) % CONFIRM_EVERY == 0, 0)) ledger_confirm_lock(ledger);
  return CHARGED;
}

/* Steps 2 and 3 of a charge, between setting and clearing the mark. */
static inline __attribute__((always_inline)) enum outcome decide(struct ledger *ledger, struct ledger_slot *slot,
                                                                 enum plane plane, struct registration as,
                                                                 uint32_t column, uint64_t bytes) {
  int32_t own = as.slot;
  used_t *cell = plane_cell(ledger, plane, own, column);
  uint64_t limit = plane_limit(ledger, plane, column), unhooked = plane_unhooked(ledger, plane, column);
  if (!slot_is_ours(ledger, as)) return LOST_SLOT;
  if (plane == PLANE_ALL && !is_alone(ledger, own) && allowances_exist(ledger)) {
    enum outcome outcome = decide_by_allowance(ledger, slot, as, column, bytes);
    if (outcome != NO_ROOM) return outcome;
  }
  uint64_t before = used_bytes(atomic_load_explicit(cell, memory_order_relaxed));
  if (before + others_hold(ledger, plane, column, own) + unhooked + bytes > limit) return NO_ROOM;
  /* What the addition returns is the truth about our own word: other threads of this process charge it too. */
  uint64_t word = atomic_fetch_add(cell, bytes + USED_TICK), now = used_bytes(word) + bytes;
  uint64_t others = others_hold(ledger, plane, column, own), total = now + others + unhooked;
  if (__builtin_expect(total > limit, 0)) {
    subtract(ledger, as, cell, bytes);
    return NO_ROOM;
  }
  if (__builtin_expect(!slot_is_ours(ledger, as), 0)) return LOST_SLOT;
  if (plane != PLANE_ALL) return CHARGED;
  raise_peak(&slot->peak[column], now);
  if (__builtin_expect(others == 0, 1)) {
    raise_peak(&ledger->file->peak[column], total);
  } else {
    raise_common_peak(ledger, own, column, now, total);
    ledger_allow(ledger, own, column, now, total, limit, unhooked);
  }
  if (__builtin_expect((word / USED_TICK) % CONFIRM_EVERY == 0, 0)) ledger_confirm_lock(ledger);
  return CHARGED;
}

/* AS: the owner that was charged. */
static inline __attribute__((always_inline)) enum outcome try_charge(struct ledger *ledger, enum plane plane,
                                                                     uint32_t column, uint64_t bytes,
                                                                     struct registration *as) {
  const struct registration own = registered(ledger);
  *as = own; /* not read again: two words that were just written come back slowly as one */
  if (__builtin_expect(own.slot < 0, 0)) return LOST_SLOT;
  struct ledger_slot *slot = &ledger->file->slot[own.slot];
  uint32_t cell = mark_cell(ledger);
  mark_set(slot, cell);
  enum outcome outcome = decide(ledger, slot, plane, own, column, bytes);
  mark_clear(slot, cell, outcome != LOST_SLOT);
  return outcome;
}

/* A column at one instant. */
struct instant {
  int full;             /* no room for what was asked, and no other thread was deciding (threads of this process count) */
  int alone;            /* no other process held anything */
  uint64_t generations; /* of all slots, added up; from before */
};

static uint64_t generations(const struct ledger *ledger, uint32_t slots) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < slots; i++) sum += atomic_load(&ledger->file->slot[i].generation);
  return sum;
}

static struct instant take_instant(const struct ledger *ledger, enum plane plane, uint32_t column, uint64_t bytes) {
  uint64_t words[2] = {0, 0}, sum = 0, own_bytes = 0;
  int deciding = 0;
  uint32_t slots = ledger_slots_in_use(ledger);
  int32_t own = atomic_load(&ledger->slot);
  struct instant now = {.generations = generations(ledger, slots)};
  /* Two collections, compared through a hash of (position, word): equal words, equal hash. */
  for (int pass = 0; pass < 2; pass++) {
    sum = 0;
    for (uint32_t i = 0; i < slots; i++) {
      uint64_t word = atomic_load(plane_cell(ledger, plane, (int32_t)i, column));
      sum += used_bytes(word);
      if ((int32_t)i == own) own_bytes = used_bytes(word);
      words[pass] = (words[pass] ^ word) * UINT64_C(0x9e3779b97f4a7c15);
      words[pass] ^= words[pass] >> 29;
      /* Where there is nothing there is nothing to be taken back; and an empty slot's marks may be a dead process's. */
      if (used_bytes(word) != 0) deciding |= slot_is_deciding(&ledger->file->slot[i]);
    }
  }
  now.full = slots == ledger_slots_in_use(ledger) && words[0] == words[1] && !deciding &&
             sum + plane_unhooked(ledger, plane, column) + bytes > plane_limit(ledger, plane, column);
  now.alone = sum == own_bytes;
  return now;
}

/* Whether all processes lived whose bytes were counted at that instant: one that lives now, in a slot of the same
 * generation, did. Empties the slots of the dead. */
static int all_lived(struct ledger *ledger, const struct instant *then) {
  int unsure = 0;
  return ledger_reclaim(ledger, &unsure) == 0 && !unsure &&
         then->generations == generations(ledger, ledger_slots_in_use(ledger));
}

/* Different processes wait differently long, or two that collide would collide again. */
static void pause_for(const struct ledger *ledger, uint32_t round) {
  if (round < SPIN_ROUNDS) {
    uint32_t thread = (uint32_t)atomic_load(&ledger->slot) + thread_number * 5u;
    uint32_t loops = 4 + (round * 7u + thread * 13u) % (32u + 8u * round);
    for (volatile uint32_t i = 0; i < loops; i++) continue;
  } else if (round < YIELD_ROUNDS) {
    os_yield();
  } else {
    os_sleep_us(SLEEP_US + (uint32_t)atomic_load(&ledger->slot) % 64u);
  }
}

/* One reading of a column that has no room. 1: the memory is really taken, refuse. */
static int is_certain(struct ledger *ledger, enum plane plane, uint32_t column, uint64_t bytes, uint32_t round) {
  struct instant now = take_instant(ledger, plane, column, bytes);
  if (now.full && now.alone) return 1;
  /* After a while also for marks of processes that died deciding. */
  if ((now.full || round >= YIELD_ROUNDS) && all_lived(ledger, &now) && now.full) return 1;
  /* What was full may have room now that the dead are gone: try again at once, but do not hammer. */
  if (!now.full || round > 2) pause_for(ledger, round);
  return 0;
}

static __attribute__((noinline)) int charge_slowly(struct ledger *ledger, enum plane plane, uint32_t column,
                                                   uint64_t bytes, struct registration *as) {
  ledger_lapse(ledger);
  for (uint32_t round = 0; round < SLEEP_ROUNDS; round++) {
    enum outcome outcome = try_charge(ledger, plane, column, bytes, as);
    if (outcome == CHARGED) return VC_OK;
    if (outcome == LOST_SLOT) {
      int status = ledger_own_slot(ledger);
      if (status != VC_OK) return status;
    } else if (plane == PLANE_ALL && ledger_revoke(ledger, column)) {
      continue; /* what was only reserved may do */
    } else if (is_certain(ledger, plane, column, bytes, round)) {
      break;
    }
  }
  return VC_ENOMEM;
}

static __attribute__((noinline, cold)) int refuse(const struct ledger *ledger, int status) {
  int32_t own = atomic_load(&ledger->slot);
  if (status == VC_ENOMEM && own >= 0)
    atomic_fetch_add_explicit(&ledger->file->slot[own].refused, 1, memory_order_relaxed);
  return status;
}

static inline int charge_plane(struct ledger *ledger, enum plane plane, uint32_t column, uint64_t bytes,
                               struct registration *as) {
  if (try_charge(ledger, plane, column, bytes, as) == CHARGED) return VC_OK;
  return charge_slowly(ledger, plane, column, bytes, as);
}

static inline void uncharge_plane(const struct ledger *ledger, struct registration as, enum plane plane, uint32_t column,
                                  uint64_t bytes) {
  subtract(ledger, as, plane_cell(ledger, plane, as.slot, column), bytes);
}

/* Registered anew between the two, the process has in its new slot only what its allocation tables hold, and this is
 * not yet there. */
static __attribute__((noinline)) int charge_split(struct ledger *ledger, enum plane part, uint32_t column,
                                                  uint64_t bytes) {
  struct registration first, then;
  int status = part == PLANE_REAL ? charge_plane(ledger, PLANE_REAL, column, bytes, &first)
                                  : charge_plane(ledger, PLANE_MANAGED, column, bytes, &first);
  if (status != VC_OK) return status;
  status = charge_plane(ledger, PLANE_ALL, column, bytes, &then);
  if (status != VC_OK)
    uncharge_plane(ledger, first, part, column, bytes);
  else if (first.slot != then.slot || first.generation != then.generation)
    atomic_fetch_add(plane_cell(ledger, part, then.slot, column), bytes + USED_TICK);
  return status;
}

int ledger_is_split(const struct ledger *ledger) { return ledger->split != NULL; }

int ledger_charge(struct ledger *ledger, uint32_t column, uint64_t bytes) {
  if (column >= ledger->columns) return VC_EINVAL;
  if (bytes > VC_MAX_BYTES) return VC_ENOMEM;
  if (__builtin_expect(ledger->split != NULL, 0)) return ledger_charge_part(ledger, LEDGER_REAL, column, bytes, 1);
  struct registration as;
  int status = charge_plane(ledger, PLANE_ALL, column, bytes, &as);
  return status == VC_OK ? status : refuse(ledger, status);
}

__attribute__((noinline)) int ledger_charge_part(struct ledger *ledger, enum ledger_part part, uint32_t column,
                                                 uint64_t bytes, int counted) {
  if (column >= ledger->columns) return VC_EINVAL;
  if (bytes > VC_MAX_BYTES) return VC_ENOMEM;
  struct registration as;
  int status = VC_ENOMEM;
  if (ledger->split != NULL)
    status = charge_split(ledger, (enum plane)part, column, bytes);
  else if (part == LEDGER_REAL)
    status = charge_plane(ledger, PLANE_ALL, column, bytes, &as);
  return counted && status != VC_OK ? refuse(ledger, status) : status;
}

static inline void uncharge(const struct ledger *ledger, enum plane part, uint32_t column, uint64_t bytes) {
  struct registration as = registered(ledger);
  if (as.slot < 0 || column >= ledger->columns) return;
  uncharge_plane(ledger, as, PLANE_ALL, column, bytes);
  if (__builtin_expect(ledger->split != NULL, 0)) uncharge_plane(ledger, as, part, column, bytes);
}

void ledger_uncharge(struct ledger *ledger, uint32_t column, uint64_t bytes) {
  uncharge(ledger, PLANE_REAL, column, bytes);
}

void ledger_uncharge_part(struct ledger *ledger, enum ledger_part part, uint32_t column, uint64_t bytes) {
  if (part == LEDGER_REAL)
    uncharge(ledger, PLANE_REAL, column, bytes);
  else if (ledger->split != NULL)
    uncharge(ledger, PLANE_MANAGED, column, bytes);
}

static struct ledger_slot *own_slot(const struct ledger *ledger, uint32_t column) {
  struct registration as = registered(ledger);
  if (as.slot < 0 || column >= ledger->columns) return NULL;
  return slot_is_ours(ledger, as) ? &ledger->file->slot[as.slot] : NULL;
}

void ledger_charge_anyway(struct ledger *ledger, uint32_t column, uint64_t bytes) {
  struct ledger_slot *slot = own_slot(ledger, column);
  if (slot == NULL) return;
  uint64_t more = (bytes & USED_BYTES_MASK) + USED_TICK;
  if (ledger->split != NULL) atomic_fetch_add(&ledger->split[slot - ledger->file->slot].real[column], more);
  atomic_fetch_add(&slot->used[column], more);
}

int ledger_holding(const struct ledger *ledger, uint32_t column, struct ledger_holding *out) {
  struct ledger_slot *slot = own_slot(ledger, column);
  if (slot == NULL) return VC_ENOENT;
  out->state = atomic_load(&slot->used[column]);
  out->bytes = used_bytes(out->state);
  return VC_OK;
}

void ledger_note_undeclared(struct ledger *ledger, uint32_t column, uint64_t bytes) {
  struct ledger_slot *slot = own_slot(ledger, column);
  if (slot == NULL) return;
  uint64_t units = (bytes < LEDGER_UNDECLARED_MAX ? bytes : LEDGER_UNDECLARED_MAX) / VC_UNDECLARED_UNIT;
  uint64_t word = atomic_load(&slot->peak[column]), next;
  do {
    next = (word & PEAK_BYTES_MASK) | units << PEAK_UNDECLARED_SHIFT;
  } while (word != next && !atomic_compare_exchange_weak(&slot->peak[column], &word, next));
}
