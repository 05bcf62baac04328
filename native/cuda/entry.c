/* Initialisation and the driver's own name lookup.
 * Knows no accounting. Tests: tests/integration/test_native_lookup.py. */
#include "cuda_bodies.h"
#include "driver.h"
#include "pointers.h"

CUresult vc_cuInit(unsigned int flags) { return real_cuda.cuInit(flags); }

/* The driver decides about name, version and flags; its pointer tells which function and ABI that was. Status, NULL
 * pointers and the old ABI's habit of leaving *pfn alone on failure stay as they are. */
CUresult vc_cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
  CUresult result = real_cuda.cuGetProcAddress(symbol, pfn, version, flags);
  if (result == CUDA_SUCCESS && pfn != NULL) *pfn = pointers_replace(*pfn);
  return result;
}

CUresult vc_cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                CUdriverProcAddressQueryResult *status) {
  CUresult result = real_cuda.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
  if (result == CUDA_SUCCESS && pfn != NULL) *pfn = pointers_replace(*pfn);
  return result;
}
