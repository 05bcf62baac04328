/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA devices as columns of the ledger.
 * Uses the driver and the ledger's columns, and charges nothing. Tests: tests/integration/test_native_nvml.py. */
#ifndef VC_CUDA_DEVICE_H
#define VC_CUDA_DEVICE_H

#include "nvidia.h"
#include "shm.h"

/* Column of a device; VC_ENOENT: the container has no share of it, or its UUID cannot be found (either is said once
 * on stderr): it has no memory; VC_EINVAL: the driver itself says that there is no such device, or that it is not
 * initialised. */
int device_column(CUdevice dev);

/* How many devices the driver shows; -1: it does not say. */
int device_count(void);
/* The device of a column; -1: none. */
CUdevice device_in_column(uint32_t column);

/* Device that memory of a place is on, all of it or a part of it. LOCATION_HOST: on none. LOCATION_UNKNOWN: a kind of place
 * that came after this library. */
enum { LOCATION_HOST = -1, LOCATION_UNKNOWN = -2 };
CUdevice device_of_location(const CUmemLocation *location);

/* Column for memory at such a device: as device_column(), and VC_ENOENT for LOCATION_UNKNOWN. Not for LOCATION_HOST. */
int device_place_column(CUdevice dev);

/* Devices of the driver in its own order, which CUDA_VISIBLE_DEVICES changes; for machines without NVML. Initialises
 * the driver. Returns how many, at most MAX, or VC_ENODRIVER, also when one of them cannot be told: the others would be
 * counted wrongly. */
int device_list(uint8_t (*uuids)[VC_UUID_BYTES], int max);

/* What the container may see: TOTAL is the limit, AVAIL what is left of it. 0 and 0 for a device without a share. */
void device_memory(int column, uint64_t *avail, uint64_t *total);

#endif
