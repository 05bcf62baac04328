/* SPDX-License-Identifier: Apache-2.0 */
/* The real CUDA and NVML functions, typed by NVIDIA's headers, taken from the driver object that satisfied the program.
 * Wrappers of other tools that stand between this library and the driver are passed over on purpose: calling them
 * could come back here without end. Tools that are loaded before this library keep their place in the chain.
 * Uses no policy. Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_DRIVER_H
#define VC_HOOKS_DRIVER_H

#include "symbols.h"

enum driver_kind { DRIVER_CUDA, DRIVER_NVML, DRIVER_KINDS };

/* Finds the loaded driver library, else loads it by name. 1: its functions are known. */
int driver_cuda(void);
int driver_nvml(void);

/* Whether driver_nvml() has answered 1 already. Loads nothing. */
int driver_nvml_is_known(void);

/* Whether the driver library is loaded, in any scope. Loads nothing. */
int driver_is_loaded(enum driver_kind kind);

enum driver_owner {
  DRIVER_NOT,     /* ADDRESS lies in no driver library of this kind */
  DRIVER_ADOPTED, /* in the one whose functions are known */
  DRIVER_ANOTHER, /* in a second copy: of cuda-compat, or in a namespace that the program made with dlmopen */
};

/* ADDRESS came from a lookup of the program. A process has one driver: the first that is recognised is adopted. */
enum driver_owner driver_recognise(enum driver_kind kind, const void *address);

/* The adopted driver's function of this name, hooked or not; NULL (and dlerror) when it has none. */
void *driver_function(enum driver_kind kind, const char *name);

/* In a forked child: the thread that held the lock is not here. What the lock guards is written again with the same
 * values. */
void driver_after_fork(void);

#endif
