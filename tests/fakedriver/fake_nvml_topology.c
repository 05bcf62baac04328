/* SPDX-License-Identifier: Apache-2.0 */
/* How GPUs are connected: PCI Express levels, NVLinks, near CPUs and memory.
 * Must not depend on processes. Tests: tests/unit/fakedriver/test_nvml.py. */
#include "fake_nvml.h"

static const struct fake_machine *machine(void) { return &fake_state->machine; }

static nvmlGpuTopologyLevel_t level_between(nvmlDevice_t a, nvmlDevice_t b) {
  static const nvmlGpuTopologyLevel_t levels[] = {
      [FAKE_LEVEL_SELF] = NVML_TOPOLOGY_INTERNAL, [FAKE_LEVEL_PIX] = NVML_TOPOLOGY_SINGLE,
      [FAKE_LEVEL_PXB] = NVML_TOPOLOGY_MULTIPLE,  [FAKE_LEVEL_PHB] = NVML_TOPOLOGY_HOSTBRIDGE,
      [FAKE_LEVEL_NODE] = NVML_TOPOLOGY_NODE,     [FAKE_LEVEL_SYS] = NVML_TOPOLOGY_SYSTEM,
  };
  return levels[machine()->level[a->gpu][b->gpu]];
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level) {
  ENTER_DEVICE(nvmlDeviceGetTopologyCommonAncestor, a);
  TRY(nvml_check(b));
  NONNULL(level);
  if (a == b) return NVML_ERROR_INVALID_ARGUMENT;
  *level = level_between(a, b);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned *count,
                                              nvmlDevice_t *devices) {
  ENTER_DEVICE(nvmlDeviceGetTopologyNearestGpus, device);
  NONNULL(count);
  unsigned room = *count, number = 0;
  for (unsigned i = 0; i < nvml_count; i++) {
    nvmlDevice_t other = &nvml_devices[i];
    if (other == device || level_between(device, other) != level) continue;
    if (number < room && devices) devices[number] = other;
    number++;
  }
  *count = devices && number > room ? room : number;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *devices) {
  ENTER(nvmlSystemGetTopologyGpuSet);
  NONNULL(count);
  unsigned room = *count, number = 0;
  for (unsigned i = 0; i < nvml_count && cpu < 256; i++) {
    if (!(nvml_gpu(&nvml_devices[i])->cpus[cpu / 64] >> (cpu % 64) & 1)) continue;
    if (number < room && devices) devices[number] = &nvml_devices[i];
    number++;
  }
  *count = devices && number > room ? room : number;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same) {
  ENTER_DEVICE(nvmlDeviceOnSameBoard, a);
  TRY(nvml_check(b));
  NONNULL(same);
  *same = a == b;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t index,
                                    nvmlGpuP2PStatus_t *status) {
  ENTER_DEVICE(nvmlDeviceGetP2PStatus, a);
  TRY(nvml_check(b));
  if (!status || a == b || index >= NVML_P2P_CAPS_INDEX_UNKNOWN) return NVML_ERROR_INVALID_ARGUMENT;
  int linked = machine()->links[a->gpu][b->gpu] > 0;
  int needs_link = index == NVML_P2P_CAPS_INDEX_NVLINK || index == NVML_P2P_CAPS_INDEX_ATOMICS;
  *status = needs_link && !linked ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
  return NVML_SUCCESS;
}

/* --- near CPUs and memory --------------------------------------------------------------------------------------- */

static int no_bits(const uint64_t bits[4]) { return !(bits[0] | bits[1] | bits[2] | bits[3]); }

static nvmlReturn_t cpu_affinity(nvmlDevice_t device, unsigned words, unsigned long *set) {
  const uint64_t *cpus = nvml_gpu(device)->cpus;
  if (!set || !words) return NVML_ERROR_INVALID_ARGUMENT;
  if (no_bits(cpus)) return NVML_ERROR_NOT_SUPPORTED;
  for (unsigned i = 0; i < words; i++) set[i] = i < 4 ? cpus[i] : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set) {
  ENTER_DEVICE(nvmlDeviceGetCpuAffinity, device);
  return cpu_affinity(device, words, set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set,
                                                 nvmlAffinityScope_t scope) {
  ENTER_DEVICE(nvmlDeviceGetCpuAffinityWithinScope, device);
  return scope > NVML_AFFINITY_SCOPE_SOCKET ? NVML_ERROR_INVALID_ARGUMENT : cpu_affinity(device, words, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set,
                                         nvmlAffinityScope_t scope) {
  ENTER_DEVICE(nvmlDeviceGetMemoryAffinity, device);
  int node = nvml_gpu(device)->numa;
  if (!set || !words || scope > NVML_AFFINITY_SCOPE_SOCKET) return NVML_ERROR_INVALID_ARGUMENT;
  if (node < 0 || (unsigned)node >= words * 64) return NVML_ERROR_NOT_SUPPORTED;
  memset(set, 0, words * sizeof *set);
  set[node / 64] = 1ul << (node % 64);
  return NVML_SUCCESS;
}

/* Only where the GPU's own memory is a NUMA node of the host: what the matrix calls "GPU NUMA ID". */
nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node) {
  ENTER_DEVICE(nvmlDeviceGetNumaNodeId, device);
  NONNULL(node);
  if (nvml_gpu(device)->gpu_numa < 0) return NVML_ERROR_NOT_SUPPORTED;
  *node = (unsigned)nvml_gpu(device)->gpu_numa;
  return NVML_SUCCESS;
}

/* --- NVLinks ---------------------------------------------------------------------------------------------------- */

/* Where link number LINK of a GPU ends: another GPU's index, or -1 for a switch. -2: there is no such link.
 * Behind switches each GPU has as many links as to its best connected neighbour; else links are numbered by
 * neighbour. */
static int link_end(unsigned gpu, unsigned link) {
  unsigned most = 0, first = 0;
  for (unsigned peer = 0; peer < machine()->gpu_count; peer++) {
    unsigned links = machine()->links[gpu][peer];
    if (links > most) most = links;
    if (!machine()->nvswitch && link >= first && link < first + links) return (int)peer;
    first += links;
  }
  return machine()->nvswitch && link < most ? -1 : -2;
}

static nvmlReturn_t find_link(nvmlDevice_t device, unsigned link, int *end) {
  TRY(nvml_check(device));
  if (link >= NVML_NVLINK_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
  *end = link_end(device->gpu, link);
  return *end == -2 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *active) {
  ENTER(nvmlDeviceGetNvLinkState);
  int end;
  NONNULL(active);
  TRY(find_link(device, link, &end));
  *active = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version) {
  ENTER(nvmlDeviceGetNvLinkVersion);
  int end;
  NONNULL(version);
  TRY(find_link(device, link, &end));
  *version = nvml_gpu(device)->major_capability >= 9 ? 4 : 3;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, nvmlNvLinkCapability_t capability,
                                           unsigned *result) {
  ENTER(nvmlDeviceGetNvLinkCapability);
  int end;
  if (!result || capability >= NVML_NVLINK_CAP_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  TRY(find_link(device, link, &end));
  *result = capability == NVML_NVLINK_CAP_P2P_SUPPORTED || capability == NVML_NVLINK_CAP_P2P_ATOMICS ||
            capability == NVML_NVLINK_CAP_VALID;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, nvmlIntNvLinkDeviceType_t *type) {
  ENTER(nvmlDeviceGetNvLinkRemoteDeviceType);
  int end;
  NONNULL(type);
  TRY(find_link(device, link, &end));
  *type = end < 0 ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
  return NVML_SUCCESS;
}

static nvmlReturn_t remote_pci(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci) {
  int end;
  NONNULL(pci);
  TRY(find_link(device, link, &end));
  struct fake_gpu nvswitch = {.pci_bus = 0x05 + link % 4}; /* four switches */
  nvml_fill_pci(end < 0 ? &nvswitch : &machine()->gpu[end], pci);
  return NVML_SUCCESS;
}
ENTRY(nvmlDeviceGetNvLinkRemotePciInfo, (nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci), remote_pci,
      (device, link, pci))
ENTRY(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci), remote_pci,
      (device, link, pci))

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *value) {
  ENTER(nvmlDeviceGetNvLinkErrorCounter);
  int end;
  if (!value || counter >= NVML_NVLINK_ERROR_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  TRY(find_link(device, link, &end));
  *value = 0;
  return NVML_SUCCESS;
}

unsigned nvml_link_count(unsigned gpu) {
  unsigned count = 0;
  while (link_end(gpu, count) != -2) count++;
  return count;
}
