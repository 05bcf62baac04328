/* From a function name, or from the driver's own pointer, to the hook that takes its place.
 * Knows no policy. Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_NAMES_H
#define VC_HOOKS_NAMES_H

#include <stddef.h>

enum hook_kind { HOOK_CUDA, HOOK_NVML, HOOK_LOADER };

struct hook {
  const char *name;
  void *wrapper; /* the exported function of this library */
  enum hook_kind kind;
  void *const *real; /* where the driver's function is, or will be */
};

/* NULL: not ours. Costs a few nanoseconds for names that begin like ours, less for all others. */
const struct hook *names_find(const char *name);

/* The driver's functions have one address each, so a pointer says more than a name and a version number could.
 * POINTER itself when it is not hooked or the driver is not known yet. */
void *names_replace_cuda(void *pointer);

/* In a forked child: whoever held the lock is not here. What the lock guards is written again with the same values. */
void names_after_fork(void);

#endif
