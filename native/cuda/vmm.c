/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: physical memory by handle, and its mappings. Memory is charged to the device that the call
 * names, whatever context is current, and paid until nothing holds it; addresses cost nothing.
 * Imported memory costs nothing either: its exporter pays (docs/adr/0014-shared-memory-is-paid-once.md).
 * Counts nothing: holding.c does. Tests: tests/integration/test_native_vmm.py, test_native_import.py. */
#include "cuda_bodies.h"
#include "device.h"
#include "driver.h"
#include "exported.h"
#include "holding.h"
#include "place.h"
#include "refusal.h"
#include "undeclared.h"

/* Address of a mapping -> its size, and its holding as the owner. Every mapping stands here, also of what costs
 * nothing, so that a range can be walked. Those that a call under way unmaps have LEAVING in their key: another thread
 * may map something there before that call is back. */
static VC_LARGE struct table mappings;
enum { LEAVING = 1 }; /* addresses are those of pages */

/* Host memory costs nothing. */
static __attribute__((noinline)) CUresult create_free(CUmemGenericAllocationHandle *handle, size_t size,
                                                      const CUmemAllocationProp *prop, unsigned long long flags) {
  CUmemGenericAllocationHandle made = 0;
  CUresult result = real_cuda.cuMemCreate(&made, size, prop, flags);
  if (result == CUDA_SUCCESS && !holding_open(made, NULL, LOCATION_HOST)) {
    real_cuda.cuMemRelease(made);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result == CUDA_SUCCESS) *handle = made;
  return result;
}

/* On a device that the driver says it does not have: its error is the answer, and nothing else is. */
static __attribute__((noinline, cold)) CUresult create_nowhere(size_t size, const CUmemAllocationProp *prop,
                                                               unsigned long long flags) {
  CUmemGenericAllocationHandle made = 0;
  CUresult result = real_cuda.cuMemCreate(&made, size, prop, flags);
  if (result != CUDA_SUCCESS) return result;
  real_cuda.cuMemRelease(made);
  return CUDA_ERROR_INVALID_DEVICE;
}

VC_HOT CUresult vc_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                        unsigned long long flags) {
  struct charge charge;
  CUmemGenericAllocationHandle made = 0;
  if (handle == NULL || size == 0 || prop == NULL) return real_cuda.cuMemCreate(handle, size, prop, flags);
  CUdevice dev = device_of_location(&prop->location);
  if (dev == LOCATION_HOST) return create_free(handle, size, prop, flags);
  int column = device_place_column(dev);
  if (column == VC_EINVAL) return create_nowhere(size, prop, flags);
  CUresult result = charge_begin_at(&charge, column, OWNER_PROCESS, size);
  if (result != CUDA_SUCCESS) return result;
  result = real_cuda.cuMemCreate(&made, size, prop, flags);
  if (VC_LIKELY(result == CUDA_SUCCESS)) {
    if (!holding_open(made, &charge, dev)) {
      real_cuda.cuMemRelease(made);
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    charge_driver_refused(charge.column, charge.bytes);
  }
  if (result != CUDA_SUCCESS) {
    charge_cancel(&charge);
    return result;
  }
  refusal_passed();
  *handle = made;
  return CUDA_SUCCESS;
}

VC_HOT CUresult vc_cuMemRelease(CUmemGenericAllocationHandle handle) {
  struct release_probe probe = {.column = -1};
  uint32_t holding = holding_take(handle);
  holding_probe_release(holding, &probe);
  CUresult result = real_cuda.cuMemRelease(handle);
  holding_release_probed(holding, result == CUDA_SUCCESS, &probe);
  release_probe_end(&probe);
  return result;
}

/* The mapping takes over the hold. 0: there is no memory for it. */
static int record_mapping(CUdeviceptr address, size_t size, uint32_t holding) {
  const struct table_entry entry = {address, size, 0, holding};
  struct table_entry old;
  int status = table_put(&mappings, &entry, &old);
  if (status == 1) holding_release(old.owner); /* what was mapped there was unmapped by a call that is not hooked */
  return status >= 0;
}

CUresult vc_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags) {
  uint32_t holding = holding_take(handle);
  CUresult result = real_cuda.cuMemMap(ptr, size, offset, handle, flags);
  if (result == CUDA_SUCCESS && !record_mapping(ptr, size, holding)) {
    real_cuda.cuMemUnmap(ptr, size);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS) holding_release(holding);
  return result;
}

/* Marks the mappings that lie side by side in a range as LEAVING, or, with the key's mark FROM, takes the mark off. */
static void mark_range(CUdeviceptr ptr, size_t size, CUdeviceptr from, struct release_probe *probe) {
  CUdeviceptr end = ptr + size, to = from ^ LEAVING;
  struct table_entry entry, old;
  for (CUdeviceptr at = ptr; at >= ptr && at < end; at += entry.bytes) {
    if (!table_rename(&mappings, at | from, at | to, &entry, &old)) return;
    if (to == LEAVING) holding_probe_release(entry.owner, probe);
    if (old.key != 0) holding_release(old.owner); /* mapped or unmapped there by a call that is not hooked */
  }
}

/* Lets go of what those held. */
static void forget_range(CUdeviceptr ptr, size_t size, const struct release_probe *probe) {
  CUdeviceptr end = ptr + size;
  struct table_entry entry;
  for (CUdeviceptr at = ptr; at >= ptr && at < end && table_take(&mappings, at | LEAVING, &entry); at += entry.bytes)
    holding_release_probed(entry.owner, 0, probe);
}

CUresult vc_cuMemUnmap(CUdeviceptr ptr, size_t size) {
  struct release_probe probe = {.column = -1};
  mark_range(ptr, size, 0, &probe);
  CUresult result = real_cuda.cuMemUnmap(ptr, size);
  if (result == CUDA_SUCCESS)
    forget_range(ptr, size, &probe);
  else
    mark_range(ptr, size, LEAVING, NULL);
  release_probe_end(&probe);
  return result;
}

/* A handle that is in no table is not one of the holdings, a pool's for example; or it was, and while the driver
 * answered another thread let go of the last that held it. Then nothing is mapped at ADDR any more, and asking again
 * shows it. */
CUresult vc_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUmemGenericAllocationHandle found = 0;
  if (handle == NULL) return real_cuda.cuMemRetainAllocationHandle(handle, addr);
  CUresult result = real_cuda.cuMemRetainAllocationHandle(&found, addr);
  if (result == CUDA_SUCCESS && !holding_add_reference(found)) {
    real_cuda.cuMemRelease(found);
    result = real_cuda.cuMemRetainAllocationHandle(&found, addr);
    if (result == CUDA_SUCCESS) holding_add_reference(found);
  }
  if (result == CUDA_SUCCESS) *handle = found;
  return result;
}

/* Costs nothing, but from now on the memory may outlive this process's last hold on it. */
CUresult vc_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                         unsigned long long flags) {
  uint32_t holding = holding_take(handle);
  CUresult result = real_cuda.cuMemExportToShareableHandle(out, handle, type, flags);
  if (result == CUDA_SUCCESS) {
    holding_note_export(holding);
    exported_begin();
  }
  holding_release(holding);
  return result;
}

/* The handle may be one that the process has already, with one reference more. */
CUresult vc_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                           CUmemAllocationHandleType type) {
  CUmemGenericAllocationHandle made = 0;
  if (handle == NULL) return real_cuda.cuMemImportFromShareableHandle(handle, os_handle, type);
  CUresult result = real_cuda.cuMemImportFromShareableHandle(&made, os_handle, type);
  if (result != CUDA_SUCCESS) return result;
  if (!holding_add_reference(made) && !holding_open(made, NULL, -1)) {
    real_cuda.cuMemRelease(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  undeclared_prepare(); /* once its exporter is gone, this process has to find it on itself */
  *handle = made;
  return CUDA_SUCCESS;
}

void vmm_after_fork(void) { table_reset(&mappings); }
