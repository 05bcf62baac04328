/* Binding memory to something that keeps it: a multicast object or a logical endpoint.
 * Knows no counts, holding.c has them. Tests: tests/integration/test_native_import.py. */
#ifndef VC_CUDA_BIND_H
#define VC_CUDA_BIND_H

#include "holding.h"
#include "nvidia.h"

/* A binding, in all its versions. */
struct bind {
  CUresult (*call)(const struct bind *bind);
  uint64_t to; /* in the table of holding.h */
  CUmemGenericAllocationHandle memory;
  uint64_t offset; /* in the memory */
  CUdeviceptr address;
  struct tie where; /* in what it is bound to */
  unsigned long long flags;
};

/* The driver's answer. The memory is held until it is unbound or what it is bound to ends. */
CUresult bind_memory(const struct bind *bind, CUmemGenericAllocationHandle memory);
/* The same of what is mapped at the address. */
CUresult bind_address(const struct bind *bind);

#endif
