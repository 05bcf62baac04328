/* SPDX-License-Identifier: Apache-2.0 */
/* Event sets: XIDs and other news that fakectl raises.
 * Must not depend on who raises them. Tests: tests/unit/fakedriver/test_control.py. */
#include "fake_nvml.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define SUPPORTED \
  (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState | \
   nvmlEventTypeXidCriticalError | nvmlEventTypeClock)

struct nvmlEventSet_st {
  struct nvmlEventSet_st *next;
  uint64_t seen;                           /* events before this one are old */
  unsigned long long types[FAKE_MAX_GPUS]; /* by the machine's index */
};
static struct nvmlEventSet_st *sets;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int valid(nvmlEventSet_t set) {
  pthread_mutex_lock(&mutex);
  struct nvmlEventSet_st *at = sets;
  while (at && at != set) at = at->next;
  pthread_mutex_unlock(&mutex);
  return at != NULL;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
  ENTER(nvmlEventSetCreate);
  NONNULL(out);
  struct nvmlEventSet_st *set = calloc(1, sizeof *set);
  if (!set) return NVML_ERROR_MEMORY;
  set->seen = atomic_load(&fake_state->event_count);
  pthread_mutex_lock(&mutex);
  set->next = sets;
  sets = set;
  pthread_mutex_unlock(&mutex);
  *out = set;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  ENTER(nvmlEventSetFree);
  if (!valid(set)) return NVML_ERROR_INVALID_ARGUMENT;
  pthread_mutex_lock(&mutex);
  struct nvmlEventSet_st **link = &sets;
  while (*link != set) link = &(*link)->next;
  *link = set->next;
  pthread_mutex_unlock(&mutex);
  free(set);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
  ENTER_DEVICE(nvmlDeviceGetSupportedEventTypes, device);
  NONNULL(types);
  *types = SUPPORTED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  ENTER_DEVICE(nvmlDeviceRegisterEvents, device);
  if (!valid(set)) return NVML_ERROR_INVALID_ARGUMENT;
  if (types & ~SUPPORTED) return NVML_ERROR_NOT_SUPPORTED;
  set->types[device->gpu] |= types;
  return NVML_SUCCESS;
}

static nvmlDevice_t device_of(unsigned gpu) {
  for (unsigned i = 0; i < nvml_count; i++)
    if (nvml_devices[i].gpu == gpu) return &nvml_devices[i];
  return NULL;
}

/* The next event that the set asked for; 0: none yet. */
static int next_event(nvmlEventSet_t set, nvmlEventData_t *out) {
  uint64_t count = atomic_load(&fake_state->event_count);
  if (count - set->seen > FAKE_EVENTS) set->seen = count - FAKE_EVENTS; /* too late for the oldest */
  while (set->seen < count) {
    struct fake_event event = fake_state->event[set->seen++ % FAKE_EVENTS];
    nvmlDevice_t device = device_of(event.gpu);
    if (!device || !(set->types[event.gpu] & event.type)) continue;
    *out = (nvmlEventData_t){.device = device,
                             .eventType = event.type,
                             .eventData = event.data,
                             .gpuInstanceId = 0xffffffff,
                             .computeInstanceId = 0xffffffff};
    return 1;
  }
  return 0;
}

static nvmlReturn_t wait_for(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds) {
  if (!valid(set) || !data) return NVML_ERROR_INVALID_ARGUMENT;
  uint64_t end = state_now_ns() + milliseconds * 1000000ull;
  while (!next_event(set, data)) {
    uint64_t now = state_now_ns();
    if (now >= end) return NVML_ERROR_TIMEOUT;
    uint64_t rest = end - now < 5000000 ? end - now : 5000000;
    nanosleep(&(struct timespec){.tv_nsec = (long)rest}, NULL);
  }
  return NVML_SUCCESS;
}
ENTRY(nvmlEventSetWait, (nvmlEventSet_t set, nvmlEventData_t *data, unsigned ms), wait_for, (set, data, ms))
ENTRY(nvmlEventSetWait_v2, (nvmlEventSet_t set, nvmlEventData_t *data, unsigned ms), wait_for, (set, data, ms))

/* --- sets of system events -------------------------------------------------------------------------------------- */

/* Nothing happens to the system, so a set only exists: it is made and let go. */
struct nvmlSystemEventSet_st {
  struct nvmlSystemEventSet_st *next;
};
static struct nvmlSystemEventSet_st *system_sets; /* under the mutex */

nvmlReturn_t nvmlSystemEventSetCreate(nvmlSystemEventSetCreateRequest_t *request) {
  ENTER(nvmlSystemEventSetCreate);
  NONNULL(request);
  if (request->version != nvmlSystemEventSetCreateRequest_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  struct nvmlSystemEventSet_st *set = calloc(1, sizeof *set);
  if (!set) return NVML_ERROR_MEMORY;
  pthread_mutex_lock(&mutex);
  set->next = system_sets;
  system_sets = set;
  pthread_mutex_unlock(&mutex);
  request->set = set;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemEventSetFree(nvmlSystemEventSetFreeRequest_t *request) {
  ENTER(nvmlSystemEventSetFree);
  NONNULL(request);
  if (request->version != nvmlSystemEventSetFreeRequest_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  pthread_mutex_lock(&mutex);
  struct nvmlSystemEventSet_st **link = &system_sets;
  while (*link && *link != request->set) link = &(*link)->next;
  struct nvmlSystemEventSet_st *set = *link;
  if (set) *link = set->next;
  pthread_mutex_unlock(&mutex);
  free(set);
  return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
