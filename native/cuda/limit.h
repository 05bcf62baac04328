/* Limits of contexts that reserve device memory.
 * Tests: tests/integration/test_native_module.py. */
#ifndef VC_CUDA_LIMIT_H
#define VC_CUDA_LIMIT_H

#include <stdint.h>

/* Its limits go with a context. */
void limit_forget_owner(uint32_t owner);

/* In a forked child. */
void limit_after_fork(void);

#endif
