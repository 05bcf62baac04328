/* SPDX-License-Identifier: Apache-2.0 */
/* Latency, ordered failures and call counters. See fake_call.h. Must not depend on what a call does.
 * Tests: tests/unit/fakedriver/test_control.py. */
#include "fake_call.h"

#include "fake_env.h"
#include "fake_state.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const uint32_t always = 1;
const volatile uint32_t *call_armed = &always;
static int ready;
static uint64_t latency_ns[CALLS_END];

static const struct {
  const char *name;
  int early;
} calls[CALLS_END] = {
#define SYMBOL(symbol, name, version, stream, early) [CALL_##symbol] = {#symbol, early},
#include "cuda.def"
#undef SYMBOL
    [CALLS_CUDA_END] = {"", 0},
#define SYMBOL(symbol, early) [CALL_##symbol] = {#symbol, early},
#include "nvml.def"
#undef SYMBOL
};
_Static_assert((int)CALLS_END <= (int)FAKE_CALLS, "the shared state has no room for so many counters");

const char *call_name(unsigned call) { return calls[call].name; }

int call_find(const char *name) {
  for (int i = 0; i < CALLS_END; i++)
    if (*name && !strcmp(calls[i].name, name)) return i;
  return -1;
}

static void wait_ns(uint64_t ns) {
  uint64_t end = state_now_ns() + ns;
  if (ns > 200000) {
    struct timespec rest = {.tv_sec = (time_t)((ns - 100000) / 1000000000),
                            .tv_nsec = (long)((ns - 100000) % 1000000000)};
    nanosleep(&rest, NULL);
  }
  while (state_now_ns() < end) continue; /* a short wait must be exact */
}

static int ordered_failure(const char *name) {
  struct fake_slot *own = state_own_slot();
  for (unsigned i = 0; i < FAKE_FAILURES; i++) {
    struct fake_failure *failure = &fake_state->failure[i];
    uint32_t left = atomic_load(&failure->left);
    if (!left || strcmp(failure->call, name) != 0) continue;
    int mine =
        failure->pid == 0 || failure->pid == getpid() || (own && failure->generation == atomic_load(&own->generation));
    while (mine && left && !atomic_compare_exchange_weak(&failure->left, &left, left - 1)) continue;
    if (!mine || !left) continue;
    int result = failure->result;
    if (left == 1) state_rearm();
    return result;
  }
  return 0;
}

int call_enter_slowly(unsigned call, int not_ready) {
  if (latency_ns[call]) wait_ns(latency_ns[call]);
  if (fake_state) {
    if (atomic_load(&fake_state->counting)) atomic_fetch_add(&fake_state->calls[call], 1);
    int result = ordered_failure(calls[call].name);
    if (result) return result;
  }
  return ready || calls[call].early ? 0 : not_ready;
}

/* "a=3us, b*=1ms, *=0": the first entry that matches a call counts. */
static int read_latencies(const char *text, const char *prefix, const char *origin, uint8_t set[CALLS_END]) {
  char copy[FAKE_LATENCY_TEXT], *rest = NULL;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *item = strtok_r(copy, ", \t", &rest); item; item = strtok_r(NULL, ", \t", &rest)) {
    char *equals = strchr(item, '=');
    uint64_t ns = 0;
    if (!equals || machine_parse_time(equals + 1, &ns)) {
      fprintf(stderr, "fake driver: latency: \"%s\" is not <call>=<time>, such as cuMemAlloc_v2=3us (%s)\n", item,
              origin);
      return -1;
    }
    *equals = '\0';
    size_t length = strlen(item);
    int pattern = length && item[length - 1] == '*', known = pattern;
    for (int i = 0; i < CALLS_END; i++) {
      int match = pattern ? !strncmp(calls[i].name, item, length - 1) : !strcmp(calls[i].name, item);
      known |= match;
      if (!match || set[i] || strncmp(calls[i].name, prefix, strlen(prefix)) != 0) continue;
      latency_ns[i] = ns;
      set[i] = 1;
    }
    if (!known) {
      fprintf(stderr, "fake driver: latency: no call is named \"%s\" (%s)\n", item, origin);
      return -1;
    }
  }
  return 0;
}

int call_ready(const char *prefix) {
  uint8_t set[CALLS_END] = {0};
  if (read_latencies(fake_env_latency(), prefix, "FAKEDRIVER_LATENCY", set) ||
      read_latencies(fake_state->machine.latency, prefix, "machine file", set))
    return -1;
  int slow = 0;
  for (int i = 0; i < CALLS_END; i++) slow |= latency_ns[i] != 0;
  ready = 1;
  call_armed = slow ? &always : (const volatile uint32_t *)&fake_state->armed;
  return 0;
}

void call_not_ready(void) {
  ready = 0;
  call_armed = &always;
}
