/* The usage ledger of native/shm/ledger_charge.c and ledger_slots.c as a model for spin: every interleaving of a few processes,
 * with kill -9, SIGSTOP and lost locks between any two steps. docs/proofs/README.md says how to read a result.
 *
 * One step of the model is one access to memory that others can write, or one system call; it carries the name of the C
 * function, and the expression where that is not obvious. Left out is what cannot matter to the properties: peaks,
 * names, the number of refusals, further columns (they share nothing but the slot), pauses, and the file system.
 * Memory is sequentially consistent here. The C code may rely on that: words, generations, high_water and what
 * take_instant reads are seq_cst; a mark is stored relaxed before a read-modify-write of the same thread, which no later
 * hardware lets a plain store pass (ledger_charge.c, mark_set), and cleared with release.
 *
 * What is checked (names as in docs/proofs/README.md):
 *   OVER    at no instant do living processes hold more charged bytes than the limit
 *   FALSE   who is refused was, at some instant of the call, really without room: charged bytes of living processes
 *           plus the request were over the limit
 *   HANG    every process that lives and runs gets an answer, whichever was killed or stopped, wherever
 *   RETURN  when all is quiet, a process that comes now is allowed the whole limit: what the dead and the living had
 *           is back, to the byte
 *   WHOLE   (SPLIT, with host memory) who is allowed a part is allowed the whole
 *   LITTLE  a process that holds a current slot is counted there with no less than it holds
 *
 * Configuration by -D: see run.py, which also lists the mutations (MUT_…) that must be found. */

#ifndef LIMIT
#define LIMIT 2 /* charges of 1 and 2: two that fit together, and two that do not */
#endif
#ifndef OPS
#define OPS 1 /* charges of each thread */
#endif
#ifndef OPS_FIRST
#define OPS_FIRST OPS /* charges of thread 0 */
#endif
#ifndef OPS_LAST
#define OPS_LAST OPS /* charges of the last thread */
#endif
#ifndef SIZE_MAX
#define SIZE_MAX LIMIT
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef LOSSES
#define LOSSES 0 /* times a process loses its record locks while it lives: closed descriptors */
#endif
#ifdef UNMAPS /* and with them what it holds: the program unmaps what it does not know. Then another process may count too little */
#define SURE 0
#else
#define SURE 1
#endif
#ifndef ROUNDS
#define ROUNDS 0 /* 0: as many tries as it takes; else the bound of charge_slowly */
#endif
#ifndef PROCS
#define PROCS 2
#endif
#ifndef THREADS
#define THREADS PROCS /* one more than PROCS: the last two threads are of one process */
#endif
#ifndef ALLOW
#define ALLOW 0 /* reservations that are tried in all: allowances of ledger_allowance.c */
#endif
#ifdef SPLIT /* a container with host memory: words of each part besides the whole's, each with a limit */
#define PLANES 3
#define ALL 0
#define REAL 1
#define MANAGED 2
#define PHYSICAL 1 /* of LIMIT so much on the GPU, and the rest on the host */
#define LIMIT_OF(p) ((p) == ALL -> LIMIT : ((p) == REAL -> PHYSICAL : LIMIT - PHYSICAL))
#else
#define PLANES 1
#define ALL 0
#define LIMIT_OF(p) LIMIT
#endif
#define HEIRS_OPS (PLANES == 1 -> 1 : 2) /* all there is of each part */
#define HEIR PROCS
/* What no process changes is read in the same step as what comes next: that step commutes with all of the others. With
 * all registered and no lock lost, slots keep their owners (FIXED); without kills their generations too, and a process that
 * asks whether another is dead hears no (SETTLED). The heir comes when all is quiet: its order does not matter. */
#if defined(REGISTERED) && LOSSES == 0 && !defined(CORPSE)
#define FIXED
#if KILLS == 0
#define SETTLED
#endif
#endif
#if defined(FIXED) && THREADS == PROCS && !defined(LINGER)
#define OWN_WORD_ALONE /* and its own word changes by its own hand alone */
#endif
#ifdef CORPSE
#define SLOTS (PROCS + 2)
#else
#define SLOTS (PROCS + 1)
#endif
#define CELLS (THREADS - PROCS + 1) /* LEDGER_MARKS that are in use */
#define NO_PROCESS 0
#define WHO(p) ((p) + 1) /* as a pid and as an owner of locks */
#define NONE 255

/* --- the file: struct ledger_file --------------------------------------------------------------------------------- */
byte high_water;
byte generation[SLOTS];
byte written[SLOTS]; /* pid */
short bytes[SLOTS * PLANES]; /* used, real and managed[column]: the low 48 bits; below zero: wrapped, so that readers see
                              * more than any limit */
#ifdef OLD_BLIND_MARKS
bit touched[SLOTS * PLANES]; /* the high 16 bits are not 0 */
#define TOUCH(w) touched[w] = 1
#else
#define TOUCH(w) skip
#endif
bit mark[SLOTS * CELLS];
#if ALLOW
byte level[SLOTS]; /* the word of allowance_cell: bytes */
byte level_of[SLOTS]; /* and the generation of whom it was written for */
#endif

#ifdef LINGER /* a record of ledger_linger.c: whose slot, at which generation, how much */
byte record_slot = NONE, record_generation, record_bytes;
#endif

/* --- the kernel --------------------------------------------------------------------------------------------------- */
byte lock_owner[SLOTS]; /* the record lock on the slot's byte */
byte holder[SLOTS]; /* the lock of an open file that only a mapping keeps: ledger_hold.h */
bool alive[PROCS + 2]; /* the last one is dead from the start */
bool stopped[PROCS + 1];

/* --- struct ledger of each process -------------------------------------------------------------------------------- */
byte own_slot[PROCS + 1];
byte own_generation[PROCS + 1];
bit claiming[PROCS + 1];
#if ALLOW
byte allowed[PROCS + 1]; /* ledger_allowed: bytes */
bit renewing[PROCS + 1];
byte reservations = ALLOW;
#endif

/* --- what only the proof sees ------------------------------------------------------------------------------------- */
byte held[(THREADS + 1) * PLANES]; /* charged by the thread and not yet given back */
byte total[PLANES];                /* of all living processes */
byte asking[THREADS + 1];          /* bytes of the charge under way */
#ifdef SPLIT
byte asked[THREADS + 1];           /* of which plane */
byte table[(THREADS + 1) * PLANES]; /* what the process itself knows of: charged as a whole */
#endif
bool was_full[THREADS + 1];
#ifdef LINGER
byte lingers[(THREADS + 1) * PLANES]; /* let go of by the thread and still charged; part of total */
byte record_of;
#endif
bool finished[THREADS + 1];
byte ending;                       /* of which thread end_steps speaks */
bit watching[(THREADS + 1) * SLOTS * PLANES]; /* read a first time by take_instant, and not yet again */
bit changed[(THREADS + 1) * SLOTS * PLANES];  /* has another count since */

#define OF(t) ((t) == THREADS -> HEIR : ((t) < PROCS -> (t) : PROCS - 1))
#define CELL(t) ((t) >= PROCS && (t) < THREADS -> (t) - PROCS + 1 : 0)
#ifdef SPLIT
#define W(i) (plane * SLOTS + (i)) /* plane_cell */
#define IN_PLANE(p) (plane == (p))
#define HELD(t) held[(t) * PLANES + plane]
#define TOTAL total[plane]
#define IS_ASKED(t) (asked[t] == plane)
#else
#define W(i) (i)
#define IN_PLANE(p) true
#define HELD(t) held[t]
#define TOTAL total[0]
#define IS_ASKED(t) true
#endif
#define READ_AT(w) (bytes[w] < 0 -> 100 : bytes[w])
#define READ(i) READ_AT(W(i))
#define RUNS(p) (alive[p] && !stopped[p])
#ifdef FIXED
#define IS_OURS(i) true
#else
#ifdef OLD_GENERATION_ASKED_ANEW
#define IS_OURS(i) (generation[i] == own_generation[me] && own_slot[me] == (i))
#else
#define IS_OURS(i) (generation[i] == as && own_slot[me] == (i))
#endif
#endif
#define CURRENT(p) (own_slot[p] != NONE && generation[own_slot[p]] == own_generation[p])
/* A word changes with its count. Instead of counts that grow, every reader between its two collections is told: equal
 * words are words that no process changed in between, as long as no count comes round (65,536 changes between two loads). */
#define WATCH(t, w) ((t) * SLOTS * PLANES + (w))
#ifdef MUT_NO_TICK
#define TICK_AT(w) skip
#else
#define TICK_AT(w)                                                                      \
  TOUCH(w);                                                                             \
  note = 0;                                                                             \
  do                                                                                    \
  :: note <= THREADS ->                                                                 \
     changed[WATCH(note, w)] = changed[WATCH(note, w)] || watching[WATCH(note, w)];     \
     note++                                                                             \
  :: else -> break                                                                      \
  od;                                                                                   \
  note = 0
#endif
#define TICK(i) TICK_AT(W(i))

/* A process's share grew: one that is asking and has no room now has reason to be refused. */
inline note_charge() {
  note = 0;
  do
  :: note <= THREADS ->
     if
     :: asking[note] != 0 && IS_ASKED(note) && TOTAL + asking[note] > LIMIT_OF(plane) -> was_full[note] = true
     :: else
     fi;
     note++
  :: else -> break
  od;
  note = 0
}

/* --- ledger_plane.h: sum_others ----------------------------------------------------------------------------------- */
#define COUNTS(i) (count > (i) && own != (i) && !(count == 1 && own == 0))
#if ALLOW /* ledger_sum_reserved: the allowance first */
#define MORE(a, b) ((a) > (b) -> (a) : (b))
#ifdef MUT_USED_FIRST
#define EARLY(i) READ(i)
#define LATE(i) level[i]
#else
#define EARLY(i) level[i]
#define LATE(i) READ(i)
#endif
#define ADD_WORD(i)                                                                     \
  d_step { word = (COUNTS(i) -> EARLY(i) : 0) };                                        \
  d_step { sum = sum + MORE(word, (COUNTS(i) -> LATE(i) : 0)); word = 0 }
#define WORD_IF_COUNTED(i) (COUNTS(i) -> MORE(EARLY(i), LATE(i)) : 0)
#else
#define ADD_WORD(i) d_step { sum = sum + WORD_IF_COUNTED(i) }
#define WORD_IF_COUNTED(i) (COUNTS(i) -> READ(i) : 0)
#endif

#ifdef FIXED
#define OTHER_1 (me == 0 -> 1 : 0) /* slots are taken in order */
#define OTHER_2 (me == 2 -> 1 : 2)
inline sum_others(own) {
  if
  :: d_step { me == HEIR -> /* alone */
       count = high_water;
       sum = WORD_IF_COUNTED(0) + WORD_IF_COUNTED(1) + WORD_IF_COUNTED(2);
#if SLOTS > 3
       sum = sum + WORD_IF_COUNTED(3);
#endif
       count = 0
     }
#if ALLOW
  :: d_step { me != HEIR -> word = EARLY(OTHER_1) }
     d_step { sum = MORE(word, LATE(OTHER_1)); word = 0 }
#if PROCS > 2
     d_step { word = EARLY(OTHER_2) }
     d_step { sum = sum + MORE(word, LATE(OTHER_2)); word = 0 }
#endif
#else
  :: d_step { me != HEIR -> sum = READ(OTHER_1) }
#if PROCS > 2
     d_step { sum = sum + READ(OTHER_2) }
#endif
#endif
  fi
}
#else
inline sum_others(own) {
  d_step { count = high_water; sum = 0 } /* ledger_slots_in_use */
  ADD_WORD(0); /* sum_loop: one load each */
  ADD_WORD(1);
#if SLOTS > 3
  ADD_WORD(2);
#endif
#if SLOTS > 4
#error "write one line more for every slot, here and in surely_full"
#endif
  ADD_WORD(SLOTS - 1);
  count = 0
}
#endif

/* --- ledger_charge.c: registered ---------------------------------------------------------------------------------- */
#if THREADS == PROCS
#define REGISTERED_AS d_step { mine = own_slot[me]; as = own_generation[me] } /* no other process writes them */
#else
#define REGISTERED_AS d_step { mine = own_slot[me] }; d_step { as = own_generation[me] }
#endif

/* --- ledger_charge.c: subtract ------------------------------------------------------------------------------------ */
/* LAST: 1 when the program gives back what it holds, 0 when a charge takes its own addition back. */
#ifdef OWN_WORD_ALONE
inline subtract(own, amount, last) {
  d_step {
    bytes[W(own)] = (amount < READ(own) -> bytes[W(own)] - amount : 0);
    TICK(own);
    if :: last -> TOTAL = TOTAL - amount; HELD(t) = HELD(t) - amount :: else fi
  }
}
#else
inline subtract(own, amount, last) {
  if
  :: IS_OURS(own) -> /* slot_is_ours */
     if
     :: amount > READ(own) -> /* the relaxed load before */
        d_step { /* subtract_at_most: loads, asks whose the slot is, and compares and swaps. Who empties it in between
                  * changes the word: as if all were done when the question is asked. */
          if
#ifndef OLD_SUBTRACT_BLINDLY
          :: IS_OURS(own) ->
#else
          :: true ->
#endif
             bytes[W(own)] = (amount < READ(own) -> bytes[W(own)] - amount : 0);
             TICK(own)
          :: else
          fi;
          if :: last -> TOTAL = TOTAL - amount; HELD(t) = HELD(t) - amount :: else fi
        }
     :: amount <= READ(own) ->
        d_step { /* atomic_fetch_sub */
          short_by = (amount > READ(own) -> amount - READ(own) : 0);
          bytes[W(own)] = bytes[W(own)] - amount;
          TICK(own);
          if :: last -> TOTAL = TOTAL - amount; HELD(t) = HELD(t) - amount :: else fi
        }
#ifndef OLD_SUBTRACT_BLINDLY
        d_step { if :: !IS_OURS(own) -> short_by = amount :: else fi }
#endif
        if
        :: short_by > 0 -> /* more than there was, or from the process that has the slot now */
           d_step { bytes[W(own)] = bytes[W(own)] + short_by; TICK(own) }
           short_by = 0
        :: else
        fi
     fi
  :: d_step { !IS_OURS(own) -> /* another process's by now: nothing of ours is there */
       if :: last -> TOTAL = TOTAL - amount; HELD(t) = HELD(t) - amount :: else fi
     }
  fi
}
#endif

/* --- ledger_slots.c: slot_life ------------------------------------------------------------------------------------ */
inline slot_life(index) {
  d_step { who = (lock_owner[index] != WHO(me) -> lock_owner[index] : NO_PROCESS) } /* os_lock_owner: F_GETLK */
  d_step {
    is_held(index);
    if
    :: !lives && who != NO_PROCESS && who == written[index] -> lives = 1
#ifndef MUT_NOT_BUSY
    :: !lives && who != NO_PROCESS && who != written[index] -> lives = 1; busy = 1 /* a process that empties or takes it just now */
#endif
    :: else
    fi;
    who = 0
  }
}

/* ledger_is_held: a living process holds its slot, stopped or not. */
inline is_held(index) {
  lives = (holder[index] != NO_PROCESS -> 1 : 0)
#ifdef MUT_NO_HOLD /* of who registered first: else they would take slots from each other without end */
  ; if :: generation[index] < 2 -> lives = 0 :: else fi
#endif
}

/* --- ledger_slots.c: clear_slot, empty_slot ----------------------------------------------------------------------- */
/* With the generation that was read before the slot was judged; cleared: 0 when another process was there since. */
#ifdef OLD_BLIND_CLEARING
#define STILL(index) true
#define BEGUN(index) true
#else
#define STILL(index) (generation[index] == raised)
#define BEGUN(index) (generation[index] == judged)
#endif
/* Stores, that nothing makes fail: so not before the slot is known to be the process's own. */
inline clear_marks(index) {
  d_step {
    i = 0;
    do :: i < CELLS -> mark[index * CELLS + i] = 0; i++ :: else -> break od;
    i = 0
  }
}

inline clear_slot(index) {
#ifdef MUT_NO_GENERATION
  d_step { raised = generation[index]; cleared = 1 }
#else
  d_step {
    cleared = (BEGUN(index) -> 1 : 0);
    if :: cleared -> generation[index]++; raised = generation[index] :: else fi
  }
#endif
  if
  :: cleared ->
     d_step { if :: STILL(index) -> bytes[index] = 0; TICK_AT(index) :: else fi } /* clear_word */
#ifdef SPLIT
     d_step { if :: STILL(index) -> bytes[REAL * SLOTS + index] = 0; TICK_AT(REAL * SLOTS + index) :: else fi }
#ifndef MUT_PART_NOT_CLEARED
     d_step { if :: STILL(index) -> bytes[MANAGED * SLOTS + index] = 0; TICK_AT(MANAGED * SLOTS + index) :: else fi }
#endif
#endif
#if ALLOW
     d_step { if :: STILL(index) -> level[index] = 0 :: else fi }
#endif
     d_step { cleared = (STILL(index) -> 1 : 0) }
     if
     :: cleared ->
#ifdef OLD_BLIND_MARKS
        clear_marks(index)
#else
        skip
#endif
#ifdef OLD_BLIND_CLEARING
        ; raise_again(index)
#endif
     :: else
     fi
  :: else
  fi
}

/* Once more: from here on the slot is empty, or taken. */
inline raise_again(index) {
#if !defined(MUT_NO_GENERATION) && !defined(MUT_RAISED_ONCE)
  d_step {
    cleared = (STILL(index) -> 1 : 0);
    if :: cleared -> generation[index]++; raised = generation[index] :: else fi
  }
#else
  skip
#endif
}

inline empty_slot(index) {
  clear_slot(index);
#ifndef OLD_BLIND_CLEARING
  if :: cleared -> raise_again(index) :: else fi;
#endif
  if
  :: cleared ->
#ifdef OLD_BLIND_CLEARING
     written[index] = NO_PROCESS
#else
     d_step { written[index] = (written[index] == who -> NO_PROCESS : written[index]) } /* compare-and-swap */
#endif
  :: else
  fi
}

/* --- ledger_slots.c: reclaim_slot, slot_needs_reclaim ------------------------------------------------------------- */
inline reclaim_slot(index) {
  slot_life(index);
  if
  :: lives
  :: else ->
     if
#ifdef MUT_NO_LOCK
     :: true ->
#else
     :: d_step { lock_owner[index] == NO_PROCESS || lock_owner[index] == WHO(me) -> lock_owner[index] = WHO(me) } /* F_SETLK */
#endif
        judged = generation[index]; /* find_owner */
        who = written[index];
#ifndef OLD_NO_RECHECK
        d_step { is_held(index) } /* again, now that no other process can take it */
#endif
        if
        :: lives
        :: else ->
           empty_slot(index);
           d_step { emptied = (cleared -> 1 : emptied); cleared = 0 }
        fi;
        d_step { judged = 0; who = 0 };
        unlock(index)
#ifndef MUT_NO_LOCK
#ifdef MUT_NOT_BUSY
     :: lock_owner[index] != NO_PROCESS && lock_owner[index] != WHO(me)
#else
     :: lock_owner[index] != NO_PROCESS && lock_owner[index] != WHO(me) -> busy = 1
#endif
#endif
     fi
  fi;
  lives = 0
}

#ifdef SPLIT
#define HOLDS_BYTES(k) (bytes[k] != 0 || bytes[REAL * SLOTS + k] != 0 || bytes[MANAGED * SLOTS + k] != 0)
#else
#define HOLDS_BYTES(k) (bytes[k] != 0)
#endif
#define NEEDS_RECLAIM(k) (written[k] != NO_PROCESS || HOLDS_BYTES(k))

/* ledger_reclaim, and (ONLY_OURS) drop_own_leftovers; sweep_some is ledger_reclaim of a few. */
inline reclaim_all(only_ours) {
  d_step { k = 0 }
  do
  :: k < high_water && k != own_slot[me] && NEEDS_RECLAIM(k) && (!only_ours || written[k] == WHO(me)) ->
     reclaim_slot(k);
     d_step { k++ }
  :: atomic { k < high_water && !(k != own_slot[me] && NEEDS_RECLAIM(k) && (!only_ours || written[k] == WHO(me))) -> k++ }
  :: d_step { k >= high_water -> k = 0 } break
  od
}

/* --- ledger_slots.c: confirm_own_lock ----------------------------------------------------------------------------- */
inline confirm_own_lock() {
  if
  :: own_slot[me] != NONE ->
     d_step {
       if
       :: lock_owner[own_slot[me]] == NO_PROCESS -> lock_owner[own_slot[me]] = WHO(me)
       :: else
       fi
     }
#ifndef OLD_KEEP_LOST_LOCK
     d_step { /* slot_is_current: a lock on a slot that is not ours would make its dead seem alive */
       if
       :: generation[own_slot[me]] != own_generation[me] && lock_owner[own_slot[me]] == WHO(me) ->
          lock_owner[own_slot[me]] = NO_PROCESS
       :: else
       fi
     }
#endif
  :: else
  fi
}

inline unlock(index) { /* os_lock_release */
  d_step { if :: lock_owner[index] == WHO(me) -> lock_owner[index] = NO_PROCESS :: else fi }
}
inline let_go(index) { /* ledger_hold_give */
  d_step { if :: holder[index] == WHO(me) -> holder[index] = NO_PROCESS :: else fi }
}

/* --- ledger_slots.c: take_slot, claim_slot, ledger_own_slot ------------------------------------------------------- */
inline take_slot(index) {
  judged = generation[index]; /* find_owner */
  if
  :: written[index] != NO_PROCESS
  :: written[index] == NO_PROCESS ->
     if
     :: holder[index] != NO_PROCESS /* ledger_hold_take */
     :: d_step { holder[index] == NO_PROCESS -> holder[index] = WHO(me) }
        if
        :: lock_owner[index] != NO_PROCESS && lock_owner[index] != WHO(me) -> let_go(index) /* os_lock_try */
        :: d_step { lock_owner[index] == NO_PROCESS || lock_owner[index] == WHO(me) -> lock_owner[index] = WHO(me) }
        if
#ifdef OLD_PLAIN_PID /* read once more, and wrote the pid when the slot was empty */
        :: written[index] == NO_PROCESS ->
           empty_slot(index);
           high_water = (high_water < index + 1 -> index + 1 : high_water);
           written[index] = WHO(me);
           own_generation[me] = generation[index];
           d_step { own_slot[me] = index; took = 1 }
        :: written[index] != NO_PROCESS ->
           unlock(index);
           let_go(index)
#else
#ifdef MUT_NO_SECOND_READ
        :: true -> written[index] = WHO(me);
#else
        :: d_step { written[index] == NO_PROCESS -> written[index] = WHO(me) } /* compare-and-swap */
#endif
           clear_slot(index);
           if
           :: cleared ->
              high_water = (high_water < index + 1 -> index + 1 : high_water); /* raise_high_water */
#ifndef OLD_BLIND_CLEARING
              raise_again(index);
#endif
#ifndef OLD_BLIND_MARKS
              if :: cleared -> clear_marks(index) :: else fi;
#endif
              /* Still ours, after whatever the program closed meanwhile? os_lock_try, generation, pid: */
              d_step { if :: lock_owner[index] == NO_PROCESS -> lock_owner[index] = WHO(me) :: else fi }
              if
              :: cleared && lock_owner[index] == WHO(me) && generation[index] == raised && written[index] == WHO(me) ->
                 own_generation[me] = raised;
                 d_step { own_slot[me] = index; took = 1 }
              :: else
              fi
           :: else
           fi;
           if
           :: !took ->
#ifndef OLD_BLIND_CLEARING
              d_step { if :: written[index] == WHO(me) -> written[index] = NO_PROCESS :: else fi }
#endif
              unlock(index);
              let_go(index)
           :: else
           fi;
           cleared = 0
#ifndef MUT_NO_SECOND_READ
        :: written[index] != NO_PROCESS ->
           unlock(index);
           let_go(index)
#endif
#endif
        fi
        fi
     fi
  fi
}

#ifdef SPLIT /* one process, one thread */
#define RESTORE(p) bytes[(p) * SLOTS + own_slot[me]] = bytes[(p) * SLOTS + own_slot[me]] + table[me * PLANES + (p)]; TICK_AT((p) * SLOTS + own_slot[me])
#else
#define OWN_TABLE (me == HEIR -> held[THREADS] : held[me] + (me == PROCS - 1 && THREADS > PROCS -> held[THREADS - 1] : 0))
#endif

inline own_a_slot() {
  d_step { claiming[me] == 0 -> claiming[me] = 1 } /* claim_lock */
  if
  :: CURRENT(me) -> /* another thread was quicker */
  :: d_step { !CURRENT(me) ->
       lost = (own_slot[me] != NONE);
       if /* ledger_hold_release */
       :: lost -> if :: holder[own_slot[me]] == WHO(me) -> holder[own_slot[me]] = NO_PROCESS :: else fi
       :: else
       fi;
       own_slot[me] = NONE; took = 0
     }
     reclaim_all(true);
     reclaim_all(false); /* sweep_some */
     do
     :: took -> break
     :: else ->
        take_slot(j);
        d_step {
          if :: !took -> j = (j + 1) % SLOTS :: else fi
        }
     od;
     confirm_own_lock();
 #ifdef SPLIT
     if
     :: lost -> /* restore_usage: the whole last */
        d_step { RESTORE(MANAGED) };
        d_step { RESTORE(REAL) };
        d_step { RESTORE(ALL) }
     :: else
     fi;
#endif
     atomic { /* restore_usage: the allocation table of the process, all its threads */
#ifndef SPLIT
       if
       :: lost -> bytes[own_slot[me]] = bytes[own_slot[me]] + OWN_TABLE; TICK_AT(own_slot[me])
       :: else
       fi;
#endif
       lost = 0; took = 0; j = 0; raised = 0; judged = 0; busy = 0; emptied = 0
     }
  fi;
  d_step { claiming[me] = 0 } /* claim_unlock */
}

/* --- ledger_allowance.c ------------------------------------------------------------------------------------------- */
#if ALLOW
#define COVERS(i, amount) (level[i] >= (amount) && level_of[i] == own_generation[me])
#define MANY (!(high_water == 1 && mine == 0))

/* ledger_charge.c: decide_by_allowance. The terms under which it was taken do not change here. */
inline decide_by_allowance() {
  if
  :: IS_OURS(mine) && MANY && allowed[me] >= READ(mine) + amount && COVERS(mine, READ(mine) + amount) ->
     d_step { before = READ(mine); bytes[mine] = bytes[mine] + amount; TICK(mine) } /* atomic_fetch_add */
#ifdef MUT_NOT_CHECKED
     d_step { decided = 1; before = 0 }
#else
     d_step { decided = COVERS(mine, before + amount) } /* allowance_holds, the word first */
     d_step { decided = decided && allowed[me] >= before + amount; before = 0 }
#endif
     if
     :: !decided -> subtract(mine, amount, false)
     :: d_step { decided && !IS_OURS(mine) -> outcome = LOST_SLOT }
     :: d_step { decided && IS_OURS(mine) ->
          outcome = CHARGED;
          TOTAL = TOTAL + amount;
          HELD(t) = HELD(t) + amount;
#if SURE || LOSSES == 0
          assert(TOTAL <= LIMIT_OF(plane)); /* OVER */
#endif
          note_charge()
        }
     fi
  :: else
  fi
}

/* ledger_allow: now and then, a level of any height. */
inline ledger_allow() {
  if
  :: d_step { reservations > 0 && MANY && renewing[me] == 0 -> reservations--; renewing[me] = 1 }
#ifndef MUT_NOT_FORGOTTEN
     allowed[me] = 0;
#endif
     if
     :: word = 1
     :: word = LIMIT
     fi;
     d_step { lev = word; word = 0; level[mine] = lev; level_of[mine] = own_generation[me] }
     sum_others(mine);
     if
#ifdef MUT_NOT_CONFIRMED
     :: true -> allowed[me] = lev
#else
     :: sum + lev <= LIMIT -> allowed[me] = lev
     :: sum + lev > LIMIT ->
        d_step { /* compare-and-swap */
          if :: level[mine] == lev && level_of[mine] == own_generation[me] -> level[mine] = 0 :: else fi
        }
#endif
     fi;
     d_step { sum = 0; lev = 0; renewing[me] = 0 }
  :: skip
  fi
}

/* ledger_revoke */
inline ledger_revoke() {
  d_step { k = 0; decided = 0 }
  do
  :: k < high_water && k != own_slot[me] && level[k] != 0 -> d_step { decided = decided || level[k] != 0; level[k] = 0; k++ }
  :: atomic { k < high_water && !(k != own_slot[me] && level[k] != 0) -> k++ }
  :: d_step { k >= high_water -> k = 0 } break
  od
}
#endif

/* --- ledger_charge.c: try_charge, decide -------------------------------------------------------------------------- */
#ifdef MUT_NO_MARK
#define MARK_SET skip
#else
#define MARK_SET mark[mine * CELLS + CELL(t)] = 1
#endif
#define OVER (before + sum + amount > LIMIT_OF(plane))

inline try_charge() {
#ifdef FIXED /* whose slot it is, is no question */
  if
  :: d_step { own_slot[me] == NONE -> outcome = LOST_SLOT }
  :: d_step { own_slot[me] != NONE -> mine = own_slot[me]; MARK_SET }
#else
  REGISTERED_AS;
  if
  :: mine == NONE -> outcome = LOST_SLOT
  :: d_step { mine != NONE -> MARK_SET }
#endif
#if ALLOW
     decide_by_allowance();
#endif
     if
#if ALLOW
     :: d_step { decided -> decided = 0 }
     :: d_step { !decided && !IS_OURS(mine) -> outcome = LOST_SLOT } /* slot_is_ours */
     :: d_step { !decided && IS_OURS(mine) -> skip }
#elif !defined(FIXED)
     :: d_step { !IS_OURS(mine) -> outcome = LOST_SLOT } /* slot_is_ours */
     :: IS_OURS(mine) ->
#else
     :: true ->
#endif
        d_step { before = READ(mine) } /* the relaxed load */
        sum_others(mine);
        if
        :: d_step { OVER -> outcome = NO_ROOM }
        :: d_step { !OVER -> before = READ(mine); bytes[W(mine)] = bytes[W(mine)] + amount; TICK(mine) } /* atomic_fetch_add */
#ifndef MUT_NO_SECOND_SUM
           sum_others(mine);
#endif
           if
           :: OVER ->
#ifdef MUT_EARLY_CLEAR
              d_step { mark[mine * CELLS + CELL(t)] = 0 }
#endif
#ifndef MUT_NO_TAKING_BACK
              subtract(mine, amount, false);
#endif
#ifdef MUT_REFUND_TWICE
              subtract(mine, amount, false);
#endif
              outcome = NO_ROOM
           :: d_step { !OVER && !IS_OURS(mine) -> outcome = LOST_SLOT }
           :: d_step { !OVER && IS_OURS(mine) -> /* CHARGED: from here on it counts */
                outcome = CHARGED;
                TOTAL = TOTAL + amount;
                HELD(t) = HELD(t) + amount;
#if SURE || LOSSES == 0
                assert(TOTAL <= LIMIT_OF(plane)); /* OVER */
#endif
                note_charge()
              }
#if LOSSES > 0 /* ledger_confirm_lock, now and then */
              if
              :: d_step { IN_PLANE(ALL) && claiming[me] == 0 -> claiming[me] = 1 }
                 confirm_own_lock();
                 d_step { claiming[me] = 0 }
              :: skip
              fi
#endif
#if ALLOW
              ; ledger_allow()
#endif
           fi
        fi
     fi;
     d_step { before = 0; sum = 0; mark[mine * CELLS + CELL(t)] = 0 } /* mark_clear */
  fi
}

/* --- ledger_charge.c: take_instant, is_certain -------------------------------------------------------------------- */
/* Once it is certain that this reading refuses no process, what it would still read is of no interest: it ends there. */
#define UNSURE                                                                          \
  sure = 0; alone = 0; sum = 0; count = 0; mine_seen = 0; gens = 0;                     \
  i = 0;                                                                                \
  do :: i <= LAST_SLOT -> FORGET(i); i++ :: else -> break od;                           \
  i = 0
/* slot_is_deciding, one mark after the other; only where the word just read held something. */
#define DECIDING(n, m) mark[(n) * CELLS + (m)]
#define MARK(n, m)                                                                      \
  if                                                                                    \
  :: d_step { !DECIDING(n, m) -> skip }                                                 \
  :: d_step { DECIDING(n, m) -> UNSURE } goto read_all                                    \
  fi
#if CELLS > 1
#define MARKS(n) MARK(n, 0); MARK(n, 1)
#else
#define MARKS(n) MARK(n, 0)
#endif
#ifdef OLD_BLIND_MARKS
#define NOT_ZERO(w) (bytes[w] != 0 || touched[w])
#else
#define NOT_ZERO(w) (bytes[w] != 0)
#endif
#define COLLECT(n)                                                                      \
  if                                                                                    \
  :: (n) >= count                                                                       \
  :: d_step { (n) < count && !NOT_ZERO(W(n)) -> FIRST(n) }                              \
  :: d_step { (n) < count && NOT_ZERO(W(n)) -> FIRST(n) }                               \
     MARKS(n)                                                                           \
  fi
#define COLLECT_AGAIN(n)                                                                \
  if                                                                                    \
  :: (n) >= count                                                                       \
  :: d_step { (n) < count && !SAME(n) -> UNSURE } goto read_all                           \
  :: d_step { (n) < count && SAME(n) && !NOT_ZERO(W(n)) -> FORGET(n) }                  \
  :: d_step { (n) < count && SAME(n) && NOT_ZERO(W(n)) ->                               \
       sum = sum + READ(n);                                                             \
       if :: own_slot[me] == (n) -> mine_seen = READ(n) :: else fi;                     \
       FORGET(n)                                                                        \
     }                                                                                  \
     MARKS(n)                                                                           \
  fi
#ifdef MUT_NO_TICK
#define FIRST(i) seen_bytes[i] = READ(i)
#define SAME(i) (seen_bytes[i] == READ(i))
#define FORGET(i) seen_bytes[i] = 0
#else
#define FIRST(i) watching[WATCH(t, W(i))] = 1
#define SAME(i) (!changed[WATCH(t, W(i))])
#define FORGET(i) watching[WATCH(t, W(i))] = 0; changed[WATCH(t, W(i))] = 0
#endif
#ifdef FIXED
#define LAST_SLOT (PROCS - 1) /* the heir's is not there before all is quiet */
#else
#define LAST_SLOT (SLOTS - 1)
#endif

#define GENERATION(n) d_step { gens = gens + ((n) < count -> generation[n] : 0) }
#define GENERATION_AGAIN(n) d_step { gens = gens - ((n) < count -> generation[n] : 0) }
#ifdef FIXED /* who is alone reads all at once; and no process raises a living one's generation */
#define ALL_GENERATIONS (generation[0] + generation[1] + (PROCS > 2 -> generation[2 % SLOTS] : 0))
#endif

/* No generation was raised since: gens is 0 again. */
inline generations_again() {
#ifdef FIXED
  if
  :: d_step { me == HEIR -> gens = gens - ALL_GENERATIONS }
  :: d_step { me != HEIR -> gens = gens - generation[me] - generation[OTHER_1] }
#if PROCS > 2
     d_step { gens = gens - generation[OTHER_2] }
#endif
  fi
#else
  d_step { count = high_water }
  GENERATION_AGAIN(0);
  GENERATION_AGAIN(1);
  GENERATION_AGAIN(2);
#if SLOTS > 3
  GENERATION_AGAIN(3);
#endif
  count = 0
#endif
}

inline surely_full() {
  d_step {
    round = (ROUNDS > 0 -> round + 1 : 0);
    count = high_water; sure = 1; sum = 0; gens = 0
  }
#if !defined(OLD_REFUSAL) && !defined(SETTLED)
#ifdef FIXED
  if
  :: d_step { me == HEIR -> gens = ALL_GENERATIONS }
  :: d_step { me != HEIR -> gens = generation[me] + generation[OTHER_1] }
#if PROCS > 2
     d_step { gens = gens + generation[OTHER_2] }
#endif
  fi;
#else
  GENERATION(0);
  GENERATION(1);
  GENERATION(2);
#if SLOTS > 3
  GENERATION(3);
#endif
#endif
#endif
#ifdef OWN_WORD_ALONE /* neither its own word nor its own mark changes while it reads */
  if
  :: d_step { me == HEIR -> /* alone */
       i = 0;
       do
       :: i <= LAST_SLOT && i < count ->
          sum = sum + READ(i);
          sure = sure && !(NOT_ZERO(W(i)) && DECIDING(i, 0));
          if :: own_slot[me] == i -> mine_seen = READ(i) :: else fi;
          i++
       :: else -> break
       od;
       i = 0
     }
  :: me != HEIR ->
#ifndef MUT_ONE_COLLECTION
     COLLECT(OTHER_1);
#if PROCS > 2
     COLLECT(OTHER_2);
#endif
#endif
     COLLECT_AGAIN(OTHER_1);
#if PROCS > 2
     COLLECT_AGAIN(OTHER_2);
#endif
     d_step { mine_seen = READ(me); sum = sum + mine_seen }
  fi;
#else
#ifndef MUT_ONE_COLLECTION
  COLLECT(0);
  COLLECT(1);
#if !defined(FIXED) || PROCS > 2
  COLLECT(2);
#endif
#if SLOTS > 3 && !defined(FIXED)
  COLLECT(3);
#endif
#endif
  COLLECT_AGAIN(0);
  COLLECT_AGAIN(1);
#if !defined(FIXED) || PROCS > 2
  COLLECT_AGAIN(2);
#endif
#if SLOTS > 3 && !defined(FIXED)
  COLLECT_AGAIN(3);
#endif
#endif
  d_step {
    sure = sure && count == high_water && sum + amount > LIMIT_OF(plane);
#ifndef OLD_REFUSAL
    alone = (sum == mine_seen);
#endif
    gens = (sure -> gens : 0);
    sum = 0; count = 0; mine_seen = 0
  }
}

/* pause_for: pauses are of different lengths, so that sooner or later the one with the lower slot has a whole try to
 * itself. A try without another process between gives an answer. */
#ifdef LINGER
/* --- ledger_linger.c ---------------------------------------------------------------------------------------------- */
#define LET_GO(p) held[t * PLANES + (p)] = held[t * PLANES + (p)] - record_bytes; lingers[t * PLANES + (p)] = record_bytes

/* ledger_linger: what was to be given back ends by itself. The record is one word. */
inline ledger_linger(n) {
  d_step {
    record_slot = own_slot[me]; record_generation = own_generation[me]; record_bytes = n; record_of = t;
    LET_GO(ALL);
#ifdef SPLIT
    LET_GO(REAL);
    table[t * PLANES + ALL] = table[t * PLANES + ALL] - record_bytes;
    table[t * PLANES + REAL] = table[t * PLANES + REAL] - record_bytes
#endif
  }
}

#ifdef MUT_LINGER_NO_GENERATION
#define SAME_OWNER true
#else
#define SAME_OWNER (generation[end_slot] == end_generation)
#endif
/* take_out: loads the word, asks whose the slot is, and compares and swaps */
#define TAKE_OUT(p)                                                                                                   \
  d_step {                                                                                                            \
    if                                                                                                                \
    :: SAME_OWNER ->                                                                                                  \
       bytes[(p) * SLOTS + end_slot] =                                                                                \
         (end_bytes < READ_AT((p) * SLOTS + end_slot) -> bytes[(p) * SLOTS + end_slot] - end_bytes : 0);              \
       TICK_AT((p) * SLOTS + end_slot);                                                                               \
       total[p] = total[p] - lingers[end_of * PLANES + (p)];                                                          \
       lingers[end_of * PLANES + (p)] = 0                                                                             \
    :: else                                                                                                           \
    fi                                                                                                                \
  }

/* ledger_lapse: it may be over, or not yet; when the heir comes it is. */
inline ledger_lapse() {
  if
  :: d_step { record_slot != NONE -> /* end: the process that exchanges the record for 0 */
       end_slot = record_slot; end_generation = record_generation; end_bytes = record_bytes; end_of = record_of;
#ifndef MUT_LINGER_TWICE
       record_slot = NONE
#endif
     }
#ifdef MUT_LINGER_TWICE
     record_slot = NONE;
#endif
     TAKE_OUT(ALL);
#ifdef SPLIT
     TAKE_OUT(REAL);
#endif
     d_step { end_slot = 0; end_generation = 0; end_bytes = 0; end_of = 0 }
  :: me != HEIR || record_slot == NONE
  fi
}
#endif

#ifdef PATIENT
#define PAUSE ; (own_slot[me] == 0 || asking[0] == 0)
#else
#define PAUSE
#endif

/* --- ledger_charge.c: ledger_charge, charge_slowly ---------------------------------------------------------------- */
inline ledger_charge() {
  d_step {
    asking[t] = amount; was_full[t] = (TOTAL + amount > LIMIT_OF(plane)); reclaimed = 0; round = 0; halfway = 0; slowly = 0;
#ifdef SPLIT
    asked[t] = plane
#endif
  }
  do
  :: true ->
     try_charge();
     if
     :: outcome == CHARGED -> break
     :: outcome == LOST_SLOT && slowly -> own_a_slot()
     :: outcome == NO_ROOM && slowly && ROUNDS > 0 && round == ROUNDS -> outcome = GAVE_UP; break
     :: outcome == NO_ROOM && slowly && (ROUNDS == 0 || round < ROUNDS) ->
#if ALLOW
        ledger_revoke();
        if
        :: decided -> decided = 0; goto again
        :: !decided
        fi;
#endif
        surely_full();
read_all:
#ifdef OLD_REFUSAL
        sum_others(own_slot[me]);
        d_step { alone = (sum == 0); sum = 0 }
#endif
        if
#ifdef SETTLED /* no process is dead: ledger_reclaim finds nothing and no generation changes */
        :: me != HEIR && !sure -> d_step { alone = 0; gens = 0 } PAUSE
        :: me != HEIR && sure -> outcome = REFUSED; break
#define UNSETTLED me == HEIR &&
#else
#define UNSETTLED
#endif
#ifndef MUT_NO_RECLAIM
#ifdef OLD_REFUSAL /* reclaimed once in a call, and believed itself alone when it was so after the snapshot */
        :: (sure && reclaimed == 0 && !alone) || (!sure && !halfway && reclaimed < 2) ->
           d_step { halfway = halfway || !sure; reclaimed++; sure = 0; alone = 0 }
#else
        :: UNSETTLED !(sure && alone) ->
           /* round >= YIELD_ROUNDS comes some time: here it may come at once */
           d_step { alone = 0; busy = 0 }
#endif
           d_step { claiming[me] == 0 -> claiming[me] = 1 } /* ledger_reclaim */
#if LOSSES > 0
           confirm_own_lock();
#endif
           reclaim_all(false);
           claiming[me] = 0;
#ifndef OLD_REFUSAL
           generations_again();
           if
           :: sure && !busy && emptied == 0 && gens == 0 ->
              d_step { outcome = REFUSED; sure = 0 }
              break
           :: else ->
              d_step { sure = 0; busy = 0; emptied = 0; gens = 0 }
              PAUSE
           fi
#endif
#ifdef OLD_REFUSAL
        :: sure && !(reclaimed == 0 && !alone) ->
#else
        :: UNSETTLED sure && alone ->
#endif
#else
        :: UNSETTLED sure ->
#endif
           outcome = REFUSED; break
        :: UNSETTLED !sure ->
           d_step { alone = 0; gens = 0 }
           PAUSE
        fi
     :: d_step { outcome != CHARGED && !slowly -> slowly = 1 } /* from ledger_charge to charge_slowly */
#ifdef LINGER
        ledger_lapse()
#endif
     fi;
#if ALLOW
again:
     skip
#endif
  od;
#if SURE || LOSSES == 0
#ifndef ONLY_OVER
  assert(outcome != REFUSED || was_full[t]); /* FALSE */
#endif
#endif
  atomic { asking[t] = 0; was_full[t] = false; halfway = 0; round = 0; reclaimed = 0; slowly = 0; sure = 0; alone = 0 }
}

#ifdef SPLIT
/* --- ledger_charge.c: charge_split: the part, then the whole ------------------------------------------------------ */
inline charge_split() {
  d_step { part = plane; moved = 0 }
  do
  :: true ->
     ledger_charge();
     if
     :: d_step { plane != ALL && outcome == CHARGED ->
          first = as; first_slot = mine;
          plane = ALL
        }
     :: else -> break
     fi
  od;
#if SURE || LOSSES == 0
  assert(plane != ALL || outcome == CHARGED); /* WHOLE: limits do not change here */
#endif
  if
  :: plane != ALL -> skip /* the part has no room */
#if LOSSES > 0 && !SURE
  :: plane == ALL && outcome != CHARGED -> /* another process counts too much, or the process itself in its old slot */
     d_step { plane = part; as = first; mine = first_slot }
     subtract(mine, amount, true)
#endif
  :: plane == ALL && outcome == CHARGED ->
#if LOSSES > 0
#ifdef OLD_GENERATION_ALONE
     moved = (first != as);
#else
     moved = (first != as || first_slot != mine);
#endif
#endif
     d_step { plane = part }
#if LOSSES > 0
     if
     :: moved -> d_step { bytes[W(mine)] = bytes[W(mine)] + amount; TICK(mine) }
     :: else
     fi;
#endif
     d_step {
       table[t * PLANES + part] = table[t * PLANES + part] + amount;
       table[t * PLANES + ALL] = table[t * PLANES + ALL] + amount
     }
  fi;
  d_step { first = 0; first_slot = 0; moved = 0; mine = 0; as = 0 }
}

/* ledger_uncharge_part: of everything that the process has in a part. The whole first: where a part has room, the whole
 * has it then too. */
inline uncharge_split() {
  d_step {
    amount = table[t * PLANES + part];
    table[t * PLANES + ALL] = table[t * PLANES + ALL] - amount;
    table[t * PLANES + part] = 0;
    mine = own_slot[me]; as = own_generation[me];
#ifdef OLD_PART_FREED_FIRST
    plane = part
#else
    plane = ALL
#endif
  }
  do
  :: true ->
     subtract(mine, amount, true);
     if
#ifdef OLD_PART_FREED_FIRST
     :: plane != ALL -> plane = ALL
     :: plane == ALL -> break
#else
     :: plane == ALL -> plane = part
     :: plane != ALL -> break
#endif
     fi
  od
}
#endif

mtype = { CHARGED, NO_ROOM, LOST_SLOT, REFUSED, GAVE_UP };

proctype thread(byte t; byte me) {
  byte ops, amount, i, j, k, count, sum, before, round, mine, reclaimed, raised, note, gens, mine_seen;
#if ALLOW
  byte word, lev;
  bit decided;
#endif
#ifdef SPLIT
  byte plane = REAL, part, first, first_slot; /* charge_split: as whom the part was charged */
  bit moved;
#endif
  short short_by;
  byte judged, who, as;
#ifdef LINGER
  byte end_slot, end_generation, end_bytes, end_of;
#endif
  bit cleared;
  bit lives, lost, took, sure, alone, halfway, slowly, busy, emptied;
#ifdef MUT_NO_TICK
  byte seen_bytes[SLOTS];
#endif
  mtype outcome = CHARGED;

  do
  :: ops < (t == THREADS -> HEIRS_OPS : (t == 0 -> OPS_FIRST : (t == THREADS - 1 -> OPS_LAST : OPS))) ->
     ops++;
#ifdef SPLIT
     if
     :: t == THREADS -> d_step { plane = (ops == 1 -> REAL : MANAGED); amount = LIMIT_OF(plane) }
     :: t != THREADS -> plane = REAL; amount = 1
     :: t != THREADS -> plane = MANAGED; amount = 1
     fi;
     charge_split();
     if
     :: t == THREADS -> assert(outcome == CHARGED) /* RETURN */
     :: t != THREADS && table[t * PLANES + REAL] > 0 -> part = REAL; uncharge_split()
#ifdef LINGER
     :: t != THREADS && table[t * PLANES + REAL] > 0 && record_slot == NONE -> ledger_linger(table[t * PLANES + REAL])
#endif
     :: t != THREADS /* keeps it for now */
     fi
#else
     if
     :: t == THREADS -> amount = LIMIT
     :: t != THREADS && SIZE_MAX >= 1 -> amount = 1
     :: t != THREADS && SIZE_MAX >= 2 -> amount = 2
     :: t != THREADS && SIZE_MAX >= 3 -> amount = 3
     fi;
     ledger_charge();
progress:
     if
     :: t == THREADS -> assert(outcome == CHARGED) /* RETURN */
     :: t != THREADS && held[t] > 0 -> /* ledger_uncharge */
        amount = held[t];
        REGISTERED_AS;
        subtract(mine, amount, true)
#ifdef LINGER
     :: t != THREADS && held[t] > 0 && record_slot == NONE -> ledger_linger(held[t])
#endif
     :: t != THREADS /* keeps it for now */
     fi
#endif
  :: else -> break
  od;
#ifndef KEEP
#ifdef SPLIT
  plane = MANAGED;
  do
  :: t != THREADS && table[t * PLANES + MANAGED] > 0 -> part = MANAGED; uncharge_split()
  :: t != THREADS && table[t * PLANES + MANAGED] == 0 && table[t * PLANES + REAL] > 0 -> part = REAL; uncharge_split()
  :: else -> break
  od;
#else
  if
  :: held[t] > 0 && t != THREADS ->
     amount = held[t];
     REGISTERED_AS;
     subtract(mine, amount, true)
  :: else
  fi;
#endif
#endif
#if defined(KEEP) || defined(SPLIT)
  skip; /* a loop must not end at a d_step */
#endif
  d_step { /* what is not read any more is forgotten: fewer states */
    finished[t] = true;
    ops = 0; amount = 0; mine = 0; as = 0; raised = 0; outcome = CHARGED
  }
  false /* not an end: processes end in order, and that is of no interest */
}

#define DROP(t, p) total[p] = total[p] - held[(t) * PLANES + p]; held[(t) * PLANES + p] = 0

#define STOP_PAYING(t, p) total[p] = total[p] - lingers[(t) * PLANES + p]; lingers[(t) * PLANES + p] = 0

/* Process p takes no more steps, whatever it was about to do. What only its own threads read is forgotten, so that
 * states which differ in nothing else are one. (A thread at its last state does not end: later ones are still there.) */
inline end_steps(p) {
  x = 0;
  do
  :: x < THREADS ->
     if
     :: OF(x) == p ->
        ending = x;
        c_code {
          P0 *ended = (P0 *)pptr(now.ending + 1), was = *ended;
          memset(ended, 0, sizeof *ended);
          ended->_pid = was._pid; ended->_t = was._t; ended->t = was.t; ended->me = was.me;
          ended->_p = _endstate0;
        };
        ending = 0;
        finished[x] = false;
        y = 0;
        do
        :: y < SLOTS * PLANES -> watching[x * SLOTS * PLANES + y] = 0; changed[x * SLOTS * PLANES + y] = 0; y++
        :: else -> break
        od;
        y = 0
     :: else
     fi;
     x++
  :: else -> break
  od;
  x = 0;
  claiming[p] = 0;
#if ALLOW
  allowed[p] = 0;
  renewing[p] = 0
#endif
}

/* kill -9: the kernel drops the locks, the driver the memory. */
inline kill_process(p) {
  d_step {
    alive[p] = false;
    end_steps(p);
    own_slot[p] = NONE;
    own_generation[p] = 0;
    x = 0;
    do
    :: x < SLOTS ->
       if :: lock_owner[x] == WHO(p) -> lock_owner[x] = NO_PROCESS :: else fi;
       if :: holder[x] == WHO(p) -> holder[x] = NO_PROCESS :: else fi;
       x++
    :: else -> break
    od;
    x = 0;
    do
    :: x < THREADS ->
       if
       :: OF(x) == p ->
          DROP(x, ALL);
#ifdef SPLIT
          DROP(x, REAL); DROP(x, MANAGED);
#endif
#ifdef LINGER
          STOP_PAYING(x, ALL);
#ifdef SPLIT
          STOP_PAYING(x, REAL);
#endif
#endif
#ifdef SPLIT
          asked[x] = 0; table[x * PLANES + ALL] = 0; table[x * PLANES + REAL] = 0; table[x * PLANES + MANAGED] = 0;
#endif
          asking[x] = 0; was_full[x] = false
       :: else
       fi;
       x++
    :: else -> break
    od;
    x = 0
  }
}

/* SIGSTOP, for ever */
inline stop_process(p) {
  d_step { stopped[p] = true; end_steps(p) }
}

/* Closing any descriptor of the ledger drops all record locks of the process. */
inline lose_lock(p) {
  d_step {
    x = 0;
    do
    :: x < SLOTS ->
       if :: lock_owner[x] == WHO(p) -> lock_owner[x] = NO_PROCESS :: else fi;
#if !SURE
       if :: holder[x] == WHO(p) -> holder[x] = NO_PROCESS :: else fi;
#endif
       x++
    :: else -> break
    od;
    x = 0
  }
}

#define ENDED(p, t) (!RUNS(p) || finished[t])
#if THREADS > 3
#error "write one line more for every thread"
#elif THREADS > 2
#define ALL_ENDED (ENDED(0, 0) && ENDED(OF(1), 1) && ENDED(OF(2), 2))
#else
#define ALL_ENDED (ENDED(0, 0) && ENDED(1, 1))
#endif

/* Does all that it may, at any time, or less of it: then it stops when there is nothing left to disturb. (No process waits for
 * anything but a thread of its own process, so that what befalls another process ends no wait, and HANG is seen.) */
proctype world() {
  byte kills, stops, losses, x, y;
  do
  :: atomic { kills < KILLS && alive[0] -> kills++; kill_process(0) }
  :: atomic { kills < KILLS && alive[1] -> kills++; kill_process(1) }
#if PROCS > 2
  :: atomic { kills < KILLS && alive[2] -> kills++; kill_process(2) }
#endif
  :: atomic { stops < STOPS && RUNS(0) -> stops++; stop_process(0) }
  :: atomic { stops < STOPS && RUNS(1) -> stops++; stop_process(1) }
  :: atomic { losses < LOSSES && RUNS(0) -> losses++; lose_lock(0) }
  :: atomic { losses < LOSSES && RUNS(1) -> losses++; lose_lock(1) }
#if PROCS > 2
  :: atomic { losses < LOSSES && RUNS(2) -> losses++; lose_lock(2) }
#endif
  :: d_step {
       ALL_ENDED && (kills < KILLS || stops < STOPS || losses < LOSSES) ->
       kills = KILLS; stops = STOPS; losses = LOSSES
     }
  od
}

#ifdef LINGER
#define STILL_PAID(p) lingers[(p) * PLANES]
#else
#define STILL_PAID(p) 0
#endif
#define HELD_BY(p) (STILL_PAID(p) + held[(p) * PLANES] + ((p) == PROCS - 1 && THREADS > PROCS -> held[(THREADS - 1) * PLANES] : 0))

init {
  byte p, x, y;
  atomic {
    p = 0;
    do :: p <= PROCS -> alive[p] = true; own_slot[p] = NONE; p++ :: else -> break od;
    p = 0;
#ifdef REGISTERED /* all have a slot already */
    do
    :: p < PROCS ->
       own_slot[p] = p; own_generation[p] = 1; generation[p] = 1; written[p] = WHO(p); lock_owner[p] = WHO(p); holder[p] = WHO(p);
       p++
    :: else -> break
    od;
    p = 0;
    high_water = PROCS;
#endif
#ifdef CORPSE /* the first slot is that of a process which was killed, maybe while it decided */
    generation[0] = 1; written[0] = WHO(PROCS + 1); bytes[0] = LIMIT; TOUCH(0);
    if :: mark[0] = 1 :: mark[0] = 0 fi;
#ifdef SPLIT
    bytes[REAL * SLOTS] = PHYSICAL; bytes[MANAGED * SLOTS] = LIMIT - PHYSICAL;
#endif
    high_water = 1;
#endif
    do :: p < THREADS -> run thread(p, OF(p)); p++ :: else -> break od;
    p = 0;
#if KILLS + STOPS + LOSSES > 0
    run world()
#endif
  }
#ifndef LIVELOCK
  timeout -> /* no process can do anything any more */
  d_step {
    p = 0;
    do :: p < THREADS -> assert(ENDED(OF(p), p)); p++ :: else -> break od; /* HANG */
    p = 0;
    do
    :: p < PROCS ->
       if
       :: alive[p] && CURRENT(p) ->
          assert(READ_AT(own_slot[p]) >= HELD_BY(p)) /* LITTLE */
#ifdef SPLIT
          ;
          assert(READ_AT(REAL * SLOTS + own_slot[p]) >= held[p * PLANES + REAL]);
          assert(READ_AT(MANAGED * SLOTS + own_slot[p]) >= held[p * PLANES + MANAGED])
#endif
       :: else
       fi;
       p++
    :: else -> break
    od;
    p = 0
  }
#if !defined(KEEP) && STOPS == 0
#if (!SURE && LOSSES > 0) || (defined(LINGER) && KILLS > 0)
  /* Too much may be counted until the processes end: RETURN holds after that. */
  atomic {
    kill_process(0);
    kill_process(1);
#if PROCS > 2
    kill_process(2);
#endif
  }
#endif
  run thread(THREADS, HEIR);
  timeout -> assert(finished[THREADS])
#endif
#endif
}
