/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the simulated libnvidia-ml.so.1 share. Uses nothing of CUDA.
 * Tests: tests/unit/fakedriver/test_nvml_*.py. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "fake_call.h"
#include "fake_state.h"

#include <string.h>

#pragma GCC visibility push(default)
#include <nvml.h>
/* Exported by real drivers and asked for by nvidia-smi, but in no header. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
#pragma GCC visibility pop

#define ENTER(symbol) CALL_ENTER(symbol, NVML_ERROR_UNINITIALIZED)
#define ENTRY(symbol, parameters, impl, arguments) \
  nvmlReturn_t symbol parameters { \
    ENTER(symbol); \
    return impl arguments; \
  }
#define TRY(call) \
  do { \
    nvmlReturn_t result_ = (call); \
    if (result_ != NVML_SUCCESS) return result_; \
  } while (0)
#define NONNULL(pointer) \
  do { \
    if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT; \
  } while (0)
/* Begins a function about one GPU: the call's orders, the handle, the GPU itself. */
#define ENTER_DEVICE(symbol, device) \
  ENTER(symbol); \
  TRY(nvml_check(device))

struct nvmlDevice_st {
  unsigned gpu;   /* index in the machine */
  unsigned index; /* as NVML counts */
};

extern unsigned nvml_count;
extern struct nvmlDevice_st nvml_devices[FAKE_MAX_GPUS];

nvmlReturn_t nvml_check(nvmlDevice_t device); /* also: has it fallen off the bus? */
static inline const struct fake_gpu *nvml_gpu(nvmlDevice_t device) { return &fake_state->machine.gpu[device->gpu]; }
void nvml_pci_text(const struct fake_gpu *gpu, char *text, size_t size);
void nvml_fill_pci(const struct fake_gpu *gpu, nvmlPciInfo_t *pci);
unsigned nvml_link_count(unsigned gpu);

struct nvml_process {
  pid_t pid;
  uint64_t used;
};
enum { FAKE_ANY_KIND = 100 };
/* Processes of KIND with a context or memory on the GPU, at most FAKE_SLOTS. PIDs are those of the caller's namespace;
 * what becomes of one that is invisible there the machine file says (enum fake_invisible). */
unsigned nvml_list_processes(unsigned gpu, uint32_t kind, struct nvml_process *out);
/* Fills *COUNT entries of STRIDE bytes; ENTRY writes one. The size protocol is the same in all versions. */
nvmlReturn_t nvml_answer_list(nvmlDevice_t device, uint32_t kind, unsigned *count, void *infos, size_t stride,
                              void (*entry)(void *info, const struct nvml_process *process));
/* First word of the command line, cut to SIZE. -1: no such process. */
int nvml_process_name(unsigned pid, char *name, size_t size);
/* Copies TEXT, which must fit. */
nvmlReturn_t nvml_text(char *out, unsigned length, const char *text);

#endif
