/* What the virtual memory family adds to the list of allocators.
 * Tests: tests/integration/test_native_vmm.py. */
#ifndef VC_CUDA_VMM_H
#define VC_CUDA_VMM_H

/* In a forked child, which has no mappings. */
void vmm_after_fork(void);

#endif
