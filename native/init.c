/* SPDX-License-Identifier: Apache-2.0 */
/* Order of start-up, the one decision what happens when limits cannot be used (refuse: fail closed), the list of
 * allocators, and the list of what a forked child resets.
 *
 * The first hooked call attaches. Nothing that runs the dynamic loader happens under a lock: a library that another
 * thread loads may call a hook from its constructor while that thread holds the loader's lock. So each of the first
 * threads prepares by itself, and only the attachment is made once.
 * Tests: tests/integration/test_native_config.py, test_native_root.py. */
#define _GNU_SOURCE
#include "init.h"

#include <stddef.h>
#include <stdio.h>

#include "allocators.h"
#include "config.h"
#include "device.h"
#include "driver.h"
#include "gpu.h"
#include "ledger.h"
#include "limits_layout.h"
#include "lock.h"
#include "log.h"
#include "os.h"
#include "runtime_state.h"
#include "standalone.h"
#include "stderr.h"

struct ledger *runtime_ledger;

/* What holds device memory, in the order in which it is asked (cuda/allocators.h). */
extern ALLOCATOR(charge);
extern ALLOCATOR(context_table);
extern ALLOCATOR(graph_memory);
extern ALLOCATOR(pool);
extern ALLOCATOR(pool_blocks);
extern ALLOCATOR(holding);
extern ALLOCATOR(exported);
extern ALLOCATOR(sparse);
extern ALLOCATOR(limit);
const struct allocator *const allocators[] = {
    &charge_allocator,  &context_table_allocator, &graph_memory_allocator, &pool_allocator,  &pool_blocks_allocator,
    &holding_allocator, &exported_allocator,      &sparse_allocator,       &limit_allocator, NULL,
};

/* Each part that keeps state has a function NAME_after_fork() for a forked child, which has no context and no memory.
 * All of them are async-signal-safe. */
#define PARTS(PART)                                                                                                  \
  PART(driver) PART(gpu) PART(charge) PART(context_table) PART(context) PART(context_made) PART(graph_memory)        \
  PART(pool) PART(pool_blocks) PART(pool_find) PART(holding) PART(exported) PART(vmm) PART(sparse) PART(limit)       \
  PART(managed) PART(time_slice) PART(undeclared) PART(poller) PART(refusal)
#define PART(name) void name##_after_fork(void);
PARTS(PART)
#undef PART

enum state { UNDECIDED, INERT, READY, FAILED };
enum limited { UNKNOWN, UNLIMITED, LIMITED };

static _Atomic int state;
static _Atomic int limited;
static struct long_lock attaching;
static int in_container; /* written before READY is */
static _Thread_local int entered; /* this thread is inside prepare_and_attach() */

/* pthread_atfork() is a static wrapper around this in every glibc; the symbol itself is older than all of them. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso);

/* Names this object to __register_atfork. Usually from the compiler's start files, which the library does without:
 * they bring a constructor. */
void *__dso_handle __attribute__((visibility("hidden"))) = &__dso_handle;

/* A program may have another root directory or another environment by the time it first looks for CUDA: what was
 * configured when the library was loaded counts. What was not may still come, as with os.environ of Python. And by then
 * descriptor 2 may be a file of the program's own. */
static __attribute__((constructor)) void note_limits(int count, char **arguments, char **environment) {
  (void)count;
  (void)arguments;
  stderr_at_load();
  if (config_at_load(environment)) atomic_store_explicit(&limited, LIMITED, memory_order_relaxed);
}

int runtime_is_limited(void) {
  int known = atomic_load_explicit(&limited, memory_order_relaxed);
  if (known == UNKNOWN) {
    known = config_is_present() ? LIMITED : UNLIMITED;
    atomic_store_explicit(&limited, known, memory_order_relaxed);
  }
  return known == LIMITED;
}

/* What the page says when the process starts. Later changes of a share that there is are live, but a process that began
 * without one has been handed the driver's own functions. */
enum { HAS_SHARE = 4, HAS_HOST = 8 };

/* The page that was read first, for the attachment: opened, mapped and checked once. */
static _Atomic(const struct limits_page *) first_page;

static void keep_page(const struct limits_page *page) {
  const struct limits_page *other = atomic_exchange(&first_page, page);
  if (other != NULL) limits_unmap(other);
}

static int what_is_configured(void) {
  struct config config;
  const struct limits_page *page;
  char why[CONFIG_WHY] = "";
  int found = 0;
  if (!runtime_is_limited()) return 0;
  if (config_read(&config, why) != VC_OK || config.kind == CONFIG_INERT) return HAS_SHARE | HAS_HOST;
  if (config.cores != NULL) found |= HAS_SHARE;
  if (config.physical_limit != NULL) found |= HAS_HOST;
  int status = limits_map(config.limits, &page);
  if (status != VC_OK) return status == VC_ENOENT ? found : HAS_SHARE | HAS_HOST;
  for (uint32_t i = 0; i < page->gpu_count; i++) {
    if (sealed_or(page->gpu[i].cores_percent, 0) != 0) found |= HAS_SHARE;
    if (sealed_or(page->share[i].compute_policy, 0) != 0) found |= HAS_SHARE;
    if (sealed_or(page->share[i].physical_bytes, 0) != 0) found |= HAS_HOST;
  }
  keep_page(page);
  return found;
}

static int configured(void) {
  static _Atomic int settled;
  int known = atomic_load_explicit(&settled, memory_order_relaxed);
  if (known == UNKNOWN) {
    known = LIMITED | what_is_configured();
    atomic_store_explicit(&settled, known, memory_order_relaxed);
  }
  return known;
}

int runtime_may_have_shares(void) { return (configured() & HAS_SHARE) != 0; }

int runtime_may_be_held(void) { return (configured() & (HAS_SHARE | HAS_HOST)) != 0; }

/* A thread that does not see it done does it itself, since another thread may fork at any time: a child without the
 * handler would find the library's locks taken for ever, and hold its parent's slot for its own. So it may be
 * registered twice, and what it does may be done twice. */
int runtime_may_lock(void) {
  static _Atomic int registered;
  if (atomic_load_explicit(&registered, memory_order_acquire)) return 1;
  if (__register_atfork(NULL, NULL, init_after_fork, &__dso_handle) != 0) return 0;
  atomic_store_explicit(&registered, 1, memory_order_release);
  return 1;
}

void init_after_fork(void) {
#define PART(name) name##_after_fork();
  PARTS(PART)
#undef PART
  long_lock_give(&attaching);
  if (runtime_ledger != NULL) ledger_after_fork(runtime_ledger);
}

static int list_gpus(uint8_t (*uuids)[VC_UUID_BYTES], int max) {
  int count = gpu_list(uuids, max);
  return count > 0 ? count : device_list(uuids, max);
}

/* With the page that is mapped already; unless it no longer goes with the ledger, as in a directory that was made anew
 * meanwhile. */
static int attach_files(const struct config *config, struct ledger **out, char *why) {
  const struct limits_page *page = atomic_exchange(&first_page, NULL);
  if (page != NULL && ledger_attach_under(page, config->ledger, out, why, CONFIG_WHY) == VC_OK) return VC_OK;
  if (page != NULL) limits_unmap(page);
  return ledger_attach(config->limits, config->ledger, out, why, CONFIG_WHY);
}

static int attach(const struct config *config, char *why) {
  struct ledger *ledger;
  int status = attach_files(config, &ledger, why);
  if (status != VC_OK) return status;
  ledger_set_usage(ledger, allocators_usage, allocators_managed_usage);
  runtime_ledger = ledger;
  return VC_OK;
}

static void decide(int status, const struct config *config, const char *why) {
  if (status != VC_OK) {
    log_line(LOG_ERROR, "%s (until then CUDA is refused to this program)", why);
    atomic_store_explicit(&state, FAILED, memory_order_release);
  } else if (config->kind == CONFIG_INERT) {
    atomic_store_explicit(&state, INERT, memory_order_release);
  } else {
    stderr_at_first_use();
    in_container = config->kind == CONFIG_CONTAINER;
    log_line(LOG_INFO, "limits of %s are in force", config->directory);
    atomic_store_explicit(&state, READY, memory_order_release);
  }
}

/* runtime_is_limited(), and nothing is configured. */
static int say_what_is_gone(char *why) {
  snprintf(why, CONFIG_WHY, "the limits that were there when this library was loaded, or when the program first looked "
           "for CUDA, have gone from its environment; leave VCUDA_* set until cuInit");
  return VC_ENOENT;
}

static int say_no_handler(char *why) {
  snprintf(why, CONFIG_WHY, "the C library has no memory left to remember what a fork has to do; free some");
  return VC_EIO;
}

static void prepare_and_attach(void) {
  struct config config;
  char why[CONFIG_WHY] = "";
  int lock = -1, status = config_read(&config, why);
  if (status == VC_OK && !runtime_may_lock()) status = say_no_handler(why);
  if (status == VC_OK && config.kind == CONFIG_INERT) status = say_what_is_gone(why);
  if (status == VC_OK && config.kind == CONFIG_DIRECTORY) status = standalone_prepare(&config, list_gpus, &lock, why);
  if (!long_lock_take(&attaching, &entered)) return standalone_done(lock);
  if (atomic_load_explicit(&state, memory_order_relaxed) == UNDECIDED) {
    if (status == VC_OK && config.kind != CONFIG_INERT) status = attach(&config, why);
    decide(status, &config, why);
  }
  long_lock_give(&attaching);
  standalone_done(lock);
}

int runtime_tells_refusals(void) { return config_tells_refusals(); }

int runtime_is_container(void) { return in_container; }

/* The driver comes back in while it is asked about its GPUs, and is not limited; a signal handler of the program's
 * would be taken for that. */
static void enter_first(void) {
  uint64_t signals;
  os_signals_block(&signals);
  entered = 1;
  prepare_and_attach();
  entered = 0;
  os_signals_restore(&signals);
}

enum runtime_passage runtime_enter(void) {
  int known = atomic_load_explicit(&state, memory_order_acquire);
  if (known == UNDECIDED) {
    if (entered) return RUNTIME_FORWARD;
    if (!runtime_is_limited()) return RUNTIME_FORWARD;
    enter_first();
    known = atomic_load_explicit(&state, memory_order_acquire);
  }
  if (known == READY) return RUNTIME_HOOK;
  return known == FAILED ? RUNTIME_REFUSE : RUNTIME_FORWARD;
}
