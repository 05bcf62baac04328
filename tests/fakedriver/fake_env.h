/* SPDX-License-Identifier: Apache-2.0 */
/* The environment variables of the simulated driver: the only place that reads them.
 * Uses nothing of the state. Tests: tests/unit/fakedriver/test_visibility.py. */
#ifndef FAKE_ENV_H
#define FAKE_ENV_H

#include <stdint.h>

const char *fake_env_machine(void);             /* FAKEDRIVER_MACHINE or NULL */
const char *fake_env_state(void);               /* FAKEDRIVER_STATE or NULL */
const char *fake_env_latency(void);             /* FAKEDRIVER_LATENCY or "" */
const char *fake_env_temporary_directory(void); /* TMPDIR or /tmp */
uint32_t fake_env_process_kind(void);           /* FAKEDRIVER_PROCESS: compute, graphics, mps */
uint64_t fake_env_linger_ns(void);               /* FAKEDRIVER_LINGER, microseconds */
int fake_env_import_is_same(void);              /* FAKEDRIVER_IMPORT=same */
int fake_env_proc_is_other(int version);        /* FAKEDRIVER_PROC, for a program of that CUDA version */
const char *fake_env_cgroup(void);              /* FAKEDRIVER_CGROUP or NULL */
int fake_env_is_admin(void);                    /* FAKEDRIVER_ADMIN, else whether this is root */
const char *fake_env_container_devices(void);   /* NVIDIA_VISIBLE_DEVICES or NULL */
const char *fake_env_cuda_devices(void);        /* CUDA_VISIBLE_DEVICES or NULL */

#endif
