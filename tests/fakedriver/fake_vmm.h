/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory as the parts of virtual memory management see it. It is a file in memory, so that two mappings, or
 * two processes after an export, see the same bytes, and lives until nothing refers to it.
 * Uses nothing of pools and blocks. Tests: tests/unit/fakedriver/test_vmm.py, test_vmm_sharing.py. */
#ifndef FAKE_VMM_H
#define FAKE_VMM_H

#include "fake_cuda.h"
#include "fake_handle.h"

enum { GRANULARITY = 2 << 20 };

struct binding;
struct memory {
  struct handle handle;
  uint64_t size, charged; /* charged: 0 for what no process or another one pays */
  unsigned gpu, level; /* level: of the limits that count it */
  int fd; /* -1: the bytes were not touched yet */
  uint32_t references, mappings; /* mappings: of all kinds, also into arrays and multicast objects */
  int host, multicast;
  unsigned devices, devices_required; /* of a multicast object: bit mask, number */
  struct binding *bindings;
  struct fake_share *share; /* who else refers to it, once exported or imported */
  CUmemAllocationProp prop;
};

/* All of the following under the lock. */
void vmm_lock(void);
void vmm_unlock(void);
struct memory *memory_new(void); /* one reference; NULL: too many */
struct memory *memory_check(CUmemGenericAllocationHandle handle);
/* After a reference or mapping went: frees what nothing refers to. */
void memory_settle(struct memory *memory);
/* Gives it a file. The file's name carries what an importing process has to know, its end who shares it. */
int memory_back(struct memory *memory);
/* The memory of this process that has a reference and this file, or NULL. */
struct memory *memory_of_file(int fd);

/* Binds memory, also for a logical endpoint, which is an object of its own kind. DEVICE -1: the memory's. */
CUresult multicast_bind(struct memory *object, CUdevice device, uint64_t offset, struct memory *memory,
                        uint64_t memory_offset, uint64_t size);
CUresult multicast_bind_at(struct memory *object, CUdevice device, uint64_t offset, CUdeviceptr address, uint64_t size);
/* Unbinds what lies in the range. 0: nothing does, or part of a binding only. */
int multicast_unbind(struct memory *object, CUdevice device, uint64_t offset, uint64_t size);
void multicast_forget(struct memory *object); /* unbinds everything */
void share_leave(struct memory *memory);
/* A further reference to the memory behind FD, possibly of another process. */
CUresult share_import(int fd, struct memory **out);

#endif
