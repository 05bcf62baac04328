/* SPDX-License-Identifier: Apache-2.0 */
/* See abi.h. The rules are the driver's, as 535 to 555 follow them: the newest form that the version allows, and of
 * those with the thread's own default stream, which came with CUDA 7, whenever they are asked for and there is one. The
 * versions are those of cudaTypedefs.h.
 * Tests: tests/integration/test_native_proc_address.py. */
#include "abi.h"

#include <stdio.h>
#include <string.h>

enum { FORMS = 9, FIRST_64_BIT = 3020, FIRST_PER_THREAD = 7000, LONGEST_NAME = 80, LONGEST_KEY = 32 };

/* Second forms came with 64-bit addresses, in CUDA 3.2; but these. No addresses in it, as in symbols.h. */
static const struct {
  char name[LONGEST_KEY];
  int version;
} later[] = {
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuCtxDestroy_v2", 4000},
    {"cuCtxSynchronize_v2", 13000},
    {"cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuGetProcAddress_v2", 12000},
    {"cuGraphInstantiate_v2", 11000},
    {"cuMemAdvise_v2", 12020},
    {"cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuMemPrefetchAsync_v2", 12020},
    {"cuMulticastBindAddr_v2", 13010},
    {"cuMulticastBindMem_v2", 13010},
    {"cuStreamBeginCapture_v2", 10010},
    {"cuStreamDestroy_v2", 4000},
};

/* A first form is in any driver that gave an address for the name. */
static int first_version(const char *name, int form) {
  if (form == 1) return 0;
  for (size_t i = 0; i < sizeof later / sizeof *later; i++)
    if (strcmp(later[i].name, name) == 0) return later[i].version;
  return FIRST_64_BIT;
}

static const struct hook *newest(const char *name, int version, const char *stream) {
  char text[LONGEST_NAME];
  for (int form = FORMS; form >= 1; form--) {
    int length = form > 1 ? snprintf(text, sizeof text, "%s_v%d", name, form) : snprintf(text, sizeof text, "%s", name);
    int first = length < LONGEST_NAME ? first_version(text, form) : version + 1;
    if (*stream != 0 && first < FIRST_PER_THREAD) first = FIRST_PER_THREAD;
    if (first > version || length + strlen(stream) >= sizeof text) continue;
    strcat(text, stream);
    const struct hook *hook = names_find(text);
    if (hook != NULL) return hook;
  }
  return NULL;
}

const struct hook *abi_pick(const char *name, int version, int per_thread) {
  const struct hook *hook = NULL;
  if (per_thread) hook = newest(name, version, "_ptsz");
  if (per_thread && hook == NULL) hook = newest(name, version, "_ptds");
  return hook != NULL ? hook : newest(name, version, "");
}
