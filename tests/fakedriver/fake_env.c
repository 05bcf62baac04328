/* SPDX-License-Identifier: Apache-2.0 */
/* The environment variables of the simulated driver. Uses nothing else. Tests: tests/unit/fakedriver/test_visibility.py. */
#include "fake_env.h"

#include "fake_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NEWEST_KNOWN = 13050 }; /* of the headers */

static const char *filled(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

const char *fake_env_machine(void) { return filled("FAKEDRIVER_MACHINE"); }
const char *fake_env_state(void) { return filled("FAKEDRIVER_STATE"); }
const char *fake_env_cgroup(void) { return filled("FAKEDRIVER_CGROUP"); }
const char *fake_env_container_devices(void) { return getenv("NVIDIA_VISIBLE_DEVICES"); }
const char *fake_env_cuda_devices(void) { return getenv("CUDA_VISIBLE_DEVICES"); }

const char *fake_env_latency(void) {
  const char *value = filled("FAKEDRIVER_LATENCY");
  return value ? value : "";
}

const char *fake_env_temporary_directory(void) {
  const char *value = filled("TMPDIR");
  return value ? value : "/tmp";
}

int fake_env_is_admin(void) {
  const char *value = filled("FAKEDRIVER_ADMIN");
  return value ? !strcmp(value, "yes") : geteuid() == 0;
}

uint32_t fake_env_process_kind(void) {
  const char *value = filled("FAKEDRIVER_PROCESS");
  if (value && !strcmp(value, "graphics")) return FAKE_GRAPHICS;
  return value && !strcmp(value, "mps") ? FAKE_MPS : FAKE_COMPUTE;
}

int fake_env_import_is_same(void) {
  const char *value = filled("FAKEDRIVER_IMPORT");
  return value && !strcmp(value, "same");
}

int fake_env_proc_is_other(int version) {
  const char *value = filled("FAKEDRIVER_PROC");
  if (!value) return 0;
  return !strcmp(value, "other") || (!strcmp(value, "newer") && version > NEWEST_KNOWN);
}

uint64_t fake_env_linger_ns(void) {
  const char *value = filled("FAKEDRIVER_LINGER");
  return value ? strtoull(value, NULL, 10) * 1000 : 0;
}
