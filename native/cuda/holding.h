/* SPDX-License-Identifier: Apache-2.0 */
/* The lives of physical memory. What cuMemCreate gives lives as long as anything holds it: references to its handle,
 * mappings, multicast objects it is bound to. A holding counts them, in whatever order they come and go, and gives the
 * charge back with the last.
 *
 * A hold is counted before the driver is called and given up after the driver has done it, and each call names the
 * holding that it found before. So the counts are never ahead of the driver, whichever of two racing calls it serves
 * first, and a handle may be given out anew while its old holding is still being settled. Uses no hook. Tests:
 * tests/integration/test_native_vmm.py, test_native_import.py. */
#ifndef VC_CUDA_HOLDING_H
#define VC_CUDA_HOLDING_H

#include "charge.h"
#include "exported.h"

/* The driver gave out HANDLE, with one reference, for what CHARGE has paid (NULL: nothing): the charge belongs to the
 * holding now. DEV: where the memory is, -1: on no device. 0: there is no memory for it, nothing changed. */
int holding_open(uint64_t handle, const struct charge *charge, CUdevice dev);

/* One more hold on the memory of HANDLE. Returns the holding, 0 for a handle that is in no table; every function
 * takes a 0 and does nothing. */
uint32_t holding_take(uint64_t handle);
void holding_retain(uint32_t holding); /* and another one on the same */
void holding_release(uint32_t holding);

/* The same after a driver call that PROBE was begun for, and with a reference of the handle that the driver has taken
 * back as well (REFERENCE 1). What ends with it and was exported is paid on: exported.h. */
void holding_release_probed(uint32_t holding, int reference, const struct release_probe *probe);

/* The memory was exported: other processes may hold it when this one does not. */
void holding_note_export(uint32_t holding);
/* Before a driver call that may end the holding: begins PROBE (exported.h) if it was exported and is paid for. */
void holding_probe_release(uint32_t holding, struct release_probe *probe);

/* The driver gave out one more reference of HANDLE. 0: it is in no table. */
int holding_add_reference(uint64_t handle);

/* A tie: the holding OF keeps the holding TO alive until the tie is cut or OF ends. */
struct tie {
  CUdevice dev;
  uint64_t offset, size; /* in OF */
};

/* Ready to be tied, or 0: no memory. */
uint32_t holding_tie_new(void);
/* Ties, or, with TO 0, throws the tie away. WHERE->dev -1: the device TO is on. */
void holding_tie(uint32_t tie, uint32_t of, uint32_t to, const struct tie *where);
/* Cuts the ties of DEV that begin in the range. */
void holding_cut(uint32_t of, const struct tie *where);

#endif
