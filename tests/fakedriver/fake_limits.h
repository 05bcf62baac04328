/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits of cgroups, as drivers from branch 615 on have them: which groups there are, what their processes hold,
 * and what may be taken. The rules and their sources stand in README.md.
 * Uses nothing of CUDA or NVML. Tests: tests/unit/fakedriver/test_limits.py.
 *
 * A process is in one group (FAKEDRIVER_CGROUP) for as long as it lives. Its slot has the chain from there up to the
 * root, and counts what it holds by level of that chain: level 1 is its own group, 0 is what no limit counts. */
#ifndef FAKE_LIMITS_H
#define FAKE_LIMITS_H

#include "fake_machine.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
  FAKE_LEVELS = 20, /* groups above each other */
  FAKE_GROUPS = 1024,
  FAKE_GROUP_PATH = 480,
  FAKE_BILL_PARTS = 4,
};
#define FAKE_NO_LIMIT UINT64_MAX /* NVML_DEVICE_MEMORY_LIMIT_MAX */

/* A group. Its place in the table is its address in the kernel: what the driver keys limits by. */
struct fake_group {
  uint64_t device, inode, born_ns; /* who the directory is; inode 0: a free place */
  uint32_t parent;                 /* place + 1, 0: none above */
  uint32_t root;
  _Atomic uint32_t controller; /* the controller's files were there when somebody last looked */
  char path[FAKE_GROUP_PATH];
  struct {
    _Atomic uint32_t entry; /* FAKE_ENTRY_… */
    _Atomic uint64_t soft, hard;
  } limit[FAKE_MAX_GPUS];
};
enum { FAKE_ENTRY_NONE, FAKE_ENTRY_SET, FAKE_ENTRY_BLIND /* set without the controller: never found */ };

/* The chain of a process or directory. */
struct fake_chain {
  uint32_t levels;
  uint16_t group[FAKE_LEVELS]; /* places in the table, the own group first */
};

/* What somebody who takes and gives memory in pieces has taken, by level. The last taken is given back first. */
struct fake_bill {
  uint64_t bytes[FAKE_BILL_PARTS];
  uint8_t level[FAKE_BILL_PARTS];
};

struct fake_limits_shown {
  int there;            /* else the GPU is shown */
  uint64_t total, used; /* USED may be more than TOTAL */
};

int limits_are_on(void); /* the machine has a backend */
/* Registers FAKEDRIVER_CGROUP and what is above it, once per process. -1 with one line on stderr. */
int limits_attach(void);
const struct fake_chain *limits_own_chain(void);
/* The chain of a directory. Under the table lock. -1 with errno. */
int limits_chain_of(const char *directory, struct fake_chain *chain);

/* The level of CHAIN that memory taken now counts at. */
unsigned limits_level(unsigned gpu, const struct fake_chain *chain);
/* The same, and whether BYTES more fit there and above. -1: no. Under the GPU's lock. */
int limits_fit(unsigned gpu, const struct fake_chain *chain, uint64_t bytes, unsigned *level);
/* What the driver counts for a group, with what it counts more than NVML shows. */
uint64_t limits_used(unsigned gpu, unsigned group);
/* dmem: brings dmem.current of the chain up to date. */
void limits_publish(unsigned gpu, const struct fake_chain *chain);
/* The limit that this process sees in place of the GPU. */
struct fake_limits_shown limits_shown(unsigned gpu);
/* The same, for what would be shown otherwise. */
void limits_narrow(unsigned gpu, uint64_t *total, uint64_t *available);

/* The answers of NVML. Negative: -errno of a directory that cannot be opened. */
enum fake_limits_result {
  FAKE_LIMITS_DONE,
  FAKE_LIMITS_NOT_SUPPORTED,
  FAKE_LIMITS_NOT_FOUND,
  FAKE_LIMITS_BELOW_USE,
  FAKE_LIMITS_NO_PERMISSION,
};
int limits_set(unsigned gpu, const char *directory, uint64_t soft, uint64_t hard);
int limits_get(unsigned gpu, const char *directory, uint64_t *soft, uint64_t *hard, uint64_t *used);
/* The GPU's driver state has gone, and all limits with it. */
void limits_forget(unsigned gpu);

/* --- files of the dmem controller: fake_limits_files.c ------------------------------------------------------------ */

int limits_file_is_there(const char *directory, const char *name);
/* The number of the GPU's region in a file; FAKE_NO_LIMIT: "max", or no line. -1: no such file. */
int limits_file_read(const char *directory, const char *name, unsigned gpu, uint64_t *value);
/* Writes it, as text "max" for FAKE_NO_LIMIT. -1 with errno. */
int limits_file_write(const char *directory, const char *name, unsigned gpu, uint64_t value);
void limits_region_name(unsigned gpu, char *text, unsigned long size);

#endif
