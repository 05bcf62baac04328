/* The real CUDA and NVML functions, typed by NVIDIA's headers, taken from the driver object that satisfied the program.
 * Wrappers of other tools that stand between this library and the driver are passed over on purpose: calling them
 * could come back here without end. Tools that are loaded before this library keep their place in the chain.
 * Knows no policy. Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_DRIVER_H
#define VC_HOOKS_DRIVER_H

#include "nvidia.h"

#define HOOK(body, symbol, params, args) __typeof__(&symbol) symbol;
#define NEED(symbol) __typeof__(&symbol) symbol;
struct cuda_api {
#include "cuda.def"
};
struct nvml_api {
#include "nvml.def"
};
#undef HOOK
#undef NEED

/* Members are NULL where the driver has no such function. Valid after driver_cuda() / driver_nvml() answered 1. */
extern struct cuda_api real_cuda __attribute__((visibility("hidden")));
extern struct nvml_api real_nvml __attribute__((visibility("hidden")));

enum driver_kind { DRIVER_CUDA, DRIVER_NVML, DRIVER_KINDS };

/* Looks for the loaded driver library, else loads it by name. 1: its functions are known. */
int driver_cuda(void);
int driver_nvml(void);

/* Whether the driver library is loaded, in any scope. Loads nothing. */
int driver_is_loaded(enum driver_kind kind);

/* ADDRESS came from a lookup of the program. 1: it lies in a driver library of this kind, whose functions are known
 * now; 0: it is somebody else's. */
int driver_adopt(enum driver_kind kind, void *address);

/* In a forked child, as names_after_fork(). */
void driver_after_fork(void);

#endif
