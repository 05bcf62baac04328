/* SPDX-License-Identifier: Apache-2.0 */
/* See refusal.h. A refusal that is not answered by a success of its thread waits with its finished line in one of a few
 * places: nothing has to be asked, of NVML least of all, while the process exits. What is counted for others to read
 * is counted where it is decided (ledger_charge.c, ledger_refusal.c), said or not.
 * Charges nothing. Tests: tests/integration/test_native_refusals.py. */
#include "refusal.h"

#include <stdio.h>
#include <string.h>

#include "ledger.h"
#include "notice.h"
#include "nvml_probe.h"
#include "place.h"
#include "runtime_state.h"
#include "text.h"

enum { PLACES = 8, LINE_BYTES = 384 };

enum { FREE, WRITING, READY };
struct waiting_line {
  _Atomic int state;
  char text[LINE_BYTES];
};

static VC_LARGE struct waiting_line places[PLACES];
_Atomic uint32_t refusal_waiting;

enum { UNTOLD, TELLING, TOLD };
static _Atomic int told;

/* The calling thread's refusals. */
static _Thread_local struct {
  uint64_t bytes;
  uint8_t kind; /* of a refusal that has not been answered yet */
  uint8_t column;
  uint8_t in_a_row; /* 2: two or more */
  uint8_t place;    /* 1 + its number; 0: none */
} own;

void refusal_note(enum refusal_kind kind, uint32_t column, uint64_t bytes) {
  own.kind = (uint8_t)kind;
  own.column = (uint8_t)column;
  own.bytes = bytes;
}

/* Others may have the text at this moment only while the process exits. */
static void leave_place(void) {
  if (own.place != 0) atomic_store_explicit(&places[own.place - 1].state, FREE, memory_order_release);
  own.place = 0;
}

void refusal_forget(void) {
  if (own.in_a_row == 0) return;
  own.in_a_row = 0;
  leave_place();
  atomic_fetch_sub_explicit(&refusal_waiting, 1, memory_order_relaxed);
}

/* --- the sentence ------------------------------------------------------------------------------------------------ */

/* The GPU's name in a sentence, where there are several. */
static const char *gpu_of(uint32_t column, char text[48]) {
  uint8_t uuid[VC_UUID_BYTES];
  uint32_t flags;
  text[0] = 0;
  if (ledger_gpu_count(runtime_ledger) < 2) return text;
  ledger_column_uuid(runtime_ledger, column, uuid, &flags);
  if (uuid_format(uuid, flags, text, 48) != VC_OK) text[0] = 0;
  return text;
}

static const char *asked_of(uint64_t bytes, char text[TEXT_SIZE + 16]) {
  char size[TEXT_SIZE];
  text[0] = 0;
  if (bytes != 0) text_join(text, TEXT_SIZE + 16, ", ", text_size(bytes, size), " asked");
  return text;
}

/* What the quota's other processes are. */
static uint32_t other_processes(uint32_t column) {
  struct ledger_holding holding = {0, 0};
  int count = ledger_processes(runtime_ledger, column, NULL, 0);
  ledger_holding(runtime_ledger, column, &holding);
  return count > 0 ? (uint32_t)count - (holding.bytes != 0) : 0;
}

/* What the quota had room for and neither of its two parts: an allocation is never divided between them. */
static int is_too_large_for_either_part(uint32_t column, uint64_t quota, uint64_t used, uint64_t bytes) {
  if (!ledger_is_split(runtime_ledger) || ledger_physical(runtime_ledger, column) >= quota) return 0;
  return bytes != 0 && used <= quota && bytes <= quota - used;
}

static int say_quota(char *line, uint32_t column, uint64_t bytes) {
  char limit[TEXT_SIZE], real[TEXT_SIZE], in_use[TEXT_SIZE], asked[TEXT_SIZE + 16], gpu[48], size[96], whose[160], part[64] = "";
  uint64_t quota, used;
  int container = runtime_is_container();
  ledger_view(runtime_ledger, column, &quota, &used);
  uint32_t others = container ? 0 : other_processes(column);
  snprintf(size, sizeof size, "%s%s%s", text_size(quota, limit), gpu_of(column, gpu)[0] != 0 ? " of " : "", gpu);
  if (others != 0)
    snprintf(whose, sizeof whose, "the %s that this program shares with %u other%s", size, others, others == 1 ? "" : "s");
  else
    snprintf(whose, sizeof whose, "this %s's %s", container ? "container" : "program", size);
  if (ledger_is_split(runtime_ledger) && ledger_physical(runtime_ledger, column) < quota)
    snprintf(part, sizeof part, ", %s of them on the GPU,", text_size(ledger_physical(runtime_ledger, column), real));
  int too_large = is_too_large_for_either_part(column, quota, used, bytes);
  const char *why = used < quota / 2 ? "are too few" : "are used up";
  if (too_large) why = "have no room for it on the GPU alone nor on the host alone";
  return snprintf(line, LINE_BYTES, "vcuda: %s%s %s (%s in use%s); %s, or %s\n", whose, part, why,
                  text_size(used, in_use), asked_of(bytes, asked), too_large ? "ask for smaller pieces" : "use less",
                  container ? "ask for more GPU memory in the pod's limits"
                            : "give it more, with vcuda run --memory or VCUDA_MEMORY_LIMIT");
}

/* Who else is on the GPU, by NVML. HELD: without what this quota has. COUNT: -1 where the driver lists nobody. */
static int others_of(uint32_t column, uint64_t quota_used, uint64_t *held, int *count) {
  struct growth_view view;
  nvml_probe_prepare();
  if (!nvml_probe_read(column, &view)) return 0;
  const struct growth_process *process = view.many != NULL ? view.many : view.few;
  *count = view.listed ? 0 : -1;
  for (uint32_t i = 0; view.listed && i < view.count; i++)
    if (!ledger_has_process(runtime_ledger, (int32_t)process[i].pid)) ++*count;
  *held = view.total > quota_used ? view.total - quota_used : 0;
  nvml_probe_drop(&view);
  return 1;
}

static void say_others(char *out, size_t size, uint32_t column, uint64_t used) {
  char text[TEXT_SIZE];
  uint64_t held = 0;
  int count = -1;
  if (!others_of(column, used, &held, &count))
    snprintf(out, size, "others hold the rest");
  else if (count < 0)
    snprintf(out, size, "others hold %s", text_size(held, text));
  else if (count == 0)
    snprintf(out, size, "%s are held by no other program", text_size(held, text));
  else
    snprintf(out, size, "%d other%s hold%s %s", count, count == 1 ? "" : "s", count == 1 ? "s" : "", text_size(held, text));
}

static int say_driver(char *line, uint32_t column, uint64_t bytes) {
  char limit[TEXT_SIZE], in_use[TEXT_SIZE], asked[TEXT_SIZE + 16], gpu[48], has[128], others[96];
  uint64_t quota, used;
  ledger_view(runtime_ledger, column, &quota, &used);
  text_size(quota, limit);
  text_size(used, in_use);
  asked_of(bytes, asked);
  if (gpu_of(column, gpu)[0] == 0) strcpy(gpu, "the card");
  const char *whose = runtime_is_container() ? "container" : "program";
  snprintf(has, sizeof has, "this %s has %s of its %s%s", whose, in_use, limit, asked);
  if (runtime_is_container())
    return snprintf(line, LINE_BYTES, "vcuda: %s is full, or the driver bounds this pod (%s); use less, or ask the "
                    "operator: gigaslice status shows who has the rest\n", gpu, has);
  say_others(others, sizeof others, column, used);
  return snprintf(line, LINE_BYTES, "vcuda: %s is full: %s (%s); end one of them or use less: vcuda ps and nvidia-smi show "
                  "who has it\n", gpu, others, has);
}

static int say(char *line) {
  int length = own.kind == REFUSAL_DRIVER ? say_driver(line, own.column, own.bytes)
                                           : say_quota(line, own.column, own.bytes);
  if (length < LINE_BYTES) return length;
  line[LINE_BYTES - 2] = '\n';
  return LINE_BYTES - 1;
}

/* --- saying it --------------------------------------------------------------------------------------------------- */

/* Where stderr has no room now, the next refusal tries again, and the exit. */
static void tell(const char *line, size_t length) {
  int untold = UNTOLD;
  if (!atomic_compare_exchange_strong(&told, &untold, TELLING)) return;
  atomic_store(&told, notice_write(line, length) ? TOLD : UNTOLD);
}

static void tell_at_exit(void *unused) {
  char line[LINE_BYTES];
  (void)unused;
  for (int i = 0; i < PLACES && atomic_load(&told) == UNTOLD; i++) {
    if (atomic_load_explicit(&places[i].state, memory_order_acquire) != READY) continue;
    memcpy(line, places[i].text, sizeof line);
    if (atomic_load(&places[i].state) == READY) tell(line, strlen(line));
  }
}

/* What atexit() is in every glibc, which is a static wrapper around it. A library that has no destructor costs a
 * process nothing that is never refused. */
int __cxa_atexit(void (*function)(void *), void *argument, void *dso);
extern void *__dso_handle __attribute__((visibility("hidden")));

static void remember_exit(void) {
  static _Atomic int remembered;
  if (atomic_exchange(&remembered, 1)) return;
  if (__cxa_atexit(tell_at_exit, NULL, &__dso_handle) != 0) atomic_store(&remembered, 0);
}

static void take_place(void) {
  for (int i = 0; i < PLACES && own.place == 0; i++) {
    int state = FREE;
    if (atomic_compare_exchange_strong(&places[i].state, &state, WRITING)) own.place = (uint8_t)(i + 1);
  }
  if (own.place != 0) atomic_store(&places[own.place - 1].state, WRITING);
}

/* Beyond a few threads that wait at once, one is told at its second refusal only. */
static void keep(const char *line, size_t length) {
  take_place();
  if (own.place == 0) return;
  memcpy(places[own.place - 1].text, line, length + 1);
  atomic_store_explicit(&places[own.place - 1].state, READY, memory_order_release);
  remember_exit();
}

CUresult refusal_answer(CUresult result) {
  static _Atomic int wanted; /* 1: no, 2: yes */
  char line[LINE_BYTES];
  if (own.kind == REFUSAL_NONE || atomic_load(&told) == TOLD) return result;
  if (atomic_load(&wanted) == 0) atomic_store(&wanted, 1 + runtime_tells_refusals());
  if (atomic_load(&wanted) == 1) return result;
  size_t length = (size_t)say(line);
  own.kind = REFUSAL_NONE;
  if (own.in_a_row == 0) atomic_fetch_add_explicit(&refusal_waiting, 1, memory_order_relaxed);
  if (own.in_a_row < 2) own.in_a_row++;
  if (own.in_a_row == 2) tell(line, length);
  if (atomic_load(&told) != TOLD) keep(line, length);
  return result;
}

/* The thread that forked is the only one, and the places of the others are nobody's. */
void refusal_after_fork(void) {
  memset(&own, 0, sizeof own);
  for (int i = 0; i < PLACES; i++) atomic_store_explicit(&places[i].state, FREE, memory_order_relaxed);
  atomic_store(&refusal_waiting, 0);
  atomic_store(&told, UNTOLD);
}
