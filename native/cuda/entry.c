/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation and the driver's own name lookup.
 * Charges nothing itself. Tests: tests/integration/test_native_lookup.py, test_native_proc_address.py. */
#include <stdatomic.h>

#include "abi.h"
#include "cuda_bodies.h"
#include "driver.h"
#include "log.h"
#include "pointers.h"
#include "runtime_state.h"

CUresult vc_cuInit(unsigned int flags) { return real_cuda.cuInit(flags); }

/* --- the driver's own name lookup --------------------------------------------------------------------------------- */

/* The driver decides about name, version and flags; its pointer tells which function and form that was. Status, NULL
 * pointers and the old form's habit of leaving *pfn alone on failure stay as they are. */
struct query {
  const char *name;
  int version;
  cuuint64_t flags;
};

/* The driver's answer to a program made for another version; NULL: none. */
static void *ask(const struct query *query, int version) {
  CUdriverProcAddressQueryResult status;
  void *found = NULL;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (real_cuda.cuGetProcAddress_v2 != NULL)
    result = real_cuda.cuGetProcAddress_v2(query->name, &found, version, query->flags, &status);
  else if (real_cuda.cuGetProcAddress != NULL)
    result = real_cuda.cuGetProcAddress(query->name, &found, version, query->flags);
  return result == CUDA_SUCCESS ? found : NULL;
}

static __attribute__((noinline, cold)) void *refuse(const struct query *query) {
  static _Atomic int said;
  if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
    log_line(LOG_ERROR, "this driver has a newer %.64s than the library knows, and what it takes could not be limited: it is "
                        "not handed out; use a newer version of the library", query->name);
  return NULL;
}

/* FOUND is none of the functions that dlsym gives for the names in the lists: it is not hooked, or hooked and at
 * another address, or of a form that came after this library. NULL: there is no way to limit it. */
static __attribute__((noinline, cold)) void *judge_ours(const struct query *query, void *found) {
  int per_thread = (query->flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, newest = 0;
  if (real_cuda.cuDriverGetVersion == NULL || real_cuda.cuDriverGetVersion(&newest) != CUDA_SUCCESS) return refuse(query);
  int version = query->version < newest ? query->version : newest;
  if (version > ABI_NEWEST && ask(query, ABI_NEWEST) != found) return refuse(query);
  const struct hook *hook = abi_pick(query->name, version, per_thread);
  return hook != NULL ? names_place(hook) : refuse(query);
}

/* Hooks of work that may have to wait take nothing's place in a process that never waits. */
static __attribute__((noinline)) void *judge_by_name(const struct query *query, void *found) {
  const struct hook *hook = names_find(query->name);
  if (VC_LIKELY(hook == NULL) || (hook->shared && !runtime_may_be_held())) return found;
  return judge_ours(query, found);
}

/* What the program is given for FOUND. */
static inline void *replace(const struct query *query, void *found) {
  void *wrapper = pointers_wrapper(found);
  return VC_LIKELY(wrapper != NULL) ? wrapper : judge_by_name(query, found);
}

CUresult vc_cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
  const struct query query = {symbol, version, flags};
  void *before = pfn != NULL ? *pfn : NULL;
  CUresult result = real_cuda.cuGetProcAddress(symbol, pfn, version, flags);
  if (result != CUDA_SUCCESS || pfn == NULL || *pfn == NULL) return result;
  void *place = replace(&query, *pfn);
  *pfn = place != NULL ? place : before;
  return place != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult vc_cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                CUdriverProcAddressQueryResult *status) {
  const struct query query = {symbol, version, flags};
  CUresult result = real_cuda.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
  if (result != CUDA_SUCCESS || pfn == NULL || *pfn == NULL) return result;
  *pfn = replace(&query, *pfn);
  if (*pfn == NULL && status != NULL) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  return CUDA_SUCCESS;
}
