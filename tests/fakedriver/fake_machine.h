/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated machine as one flat value, and its text form.
 * Uses nothing of processes, CUDA or NVML: it is stored as it is in the shared state file.
 * Tests: tests/unit/fakedriver/test_machine_file.py, test_topology_text.py. */
#ifndef FAKE_MACHINE_H
#define FAKE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

enum {
  FAKE_MAX_GPUS = 16,
  FAKE_MAX_LINKS = 18, /* NVLinks of one GPU, as many as NVML counts */
  FAKE_TEXT = 256,     /* room for one error line */
  FAKE_LATENCY_TEXT = 1024,
};

/* How two GPUs reach each other over PCI Express; the order is "nearer is smaller". */
enum fake_level {
  FAKE_LEVEL_SELF,
  FAKE_LEVEL_PIX,
  FAKE_LEVEL_PXB,
  FAKE_LEVEL_PHB,
  FAKE_LEVEL_NODE,
  FAKE_LEVEL_SYS,
};

enum { FAKE_LIMITS_NONE, FAKE_LIMITS_OFF, FAKE_LIMITS_MISC, FAKE_LIMITS_DMEM };
enum { FAKE_BELOW_BACKEND, FAKE_BELOW_REFUSED, FAKE_BELOW_TAKEN }; /* a limit below what is used */
enum { FAKE_SHOWN_OWN, FAKE_SHOWN_TIGHTEST, FAKE_SHOWN_NO };       /* what a process in a group sees as total */

struct fake_gpu {
  char model[64];
  uint8_t uuid[16];
  uint64_t memory_bytes;
  uint64_t reserved_bytes; /* held by the system itself; part of "used" */
  uint32_t pci_domain, pci_bus, pci_device;
  int32_t numa;     /* -1: the machine does not say */
  int32_t gpu_numa; /* node that the GPU's own memory is; -1: none */
  uint32_t minor;
  uint32_t major_capability, minor_capability;
  uint32_t multiprocessors;
  uint64_t cpus[4]; /* bit n: CPU n is near */
};

/* What a process list shows of a process that is not visible in the asking program's PID namespace: a 0 for its PID;
 * nothing (as the real driver from 565.57.01 on); or the number that it has in its own namespace, as if lists were not
 * translated. */
enum fake_invisible { FAKE_INVISIBLE_ZERO, FAKE_INVISIBLE_LEFT_OUT, FAKE_INVISIBLE_LISTED };

struct fake_machine {
  char driver_version[32];
  uint32_t cuda_version; /* 1000 * major + 10 * minor */
  uint32_t gpu_count;
  uint32_t nvswitch;         /* the NVLinks end at switches, not at other GPUs */
  uint32_t counters;         /* count every call */
  uint32_t accounting;       /* NVML's accounting mode is on */
  uint32_t confidential;     /* all memory is protected (confidential computing) */
  uint32_t mig;              /* the GPUs are MIG devices */
  uint32_t persistence;      /* NVML says that persistence mode is on */
  uint32_t memory_limits;    /* FAKE_LIMITS_…: what stands behind limits of cgroups; the rules are in README.md */
  uint32_t memory_limits_overcount;  /* per cent that a limit counts more than NVML shows */
  uint32_t memory_limits_reuse;      /* a new group may get the address of a removed one, and its entry */
  uint32_t memory_limits_controller; /* misc: a group without the controller's files has no limit */
  uint32_t memory_limits_earlier;    /* misc: memory taken before a limit counts */
  uint32_t memory_limits_below;      /* FAKE_BELOW_… */
  uint32_t memory_limits_shown;      /* FAKE_SHOWN_… */
  uint32_t memory_limits_total;      /* cuDeviceTotalMem shows it, too */
  uint32_t invisible;        /* enum fake_invisible */
  uint32_t private_head;     /* bytes of a row of NVML's private lists before its name; 0: those of the branch */
  uint64_t context_bytes;    /* cost of one context */
  uint64_t module_bytes;     /* cost of one loaded module */
  uint64_t granularity;      /* device memory is taken in multiples of this */
  uint64_t pool_granularity; /* and for memory pools */
  uint64_t launch_ns;        /* time one kernel takes */
  uint64_t paging_ns;        /* time one MiB of managed memory takes between GPU and host */
  uint32_t managed_access;   /* kernels and host may use managed memory at once, and it may be larger than the GPU */
  char latency[FAKE_LATENCY_TEXT];
  struct fake_gpu gpu[FAKE_MAX_GPUS];
  uint8_t level[FAKE_MAX_GPUS][FAKE_MAX_GPUS]; /* enum fake_level */
  uint8_t links[FAKE_MAX_GPUS][FAKE_MAX_GPUS]; /* NVLinks between two GPUs */
};

/* Reads PATH. On failure returns -1 and leaves one line in ERROR that names file, line and cause. */
int machine_load(const char *path, struct fake_machine *machine, uint64_t *hash, char error[FAKE_TEXT]);

/* One line of `nvidia-smi topo -m` after the other goes in; machine_topology_end checks the whole. Both return -1 and a
 * text without file and line on failure. PCIE: the matrix shows only PCI Express levels (what NVLinks hide). */
struct fake_topology {
  int pcie, columns, rows, finished;
  int column_gpu[64]; /* GPU of a column, -1: another device */
  uint8_t seen[FAKE_MAX_GPUS];
  uint8_t level[FAKE_MAX_GPUS][FAKE_MAX_GPUS];
  uint8_t links[FAKE_MAX_GPUS][FAKE_MAX_GPUS];
  int32_t numa[FAKE_MAX_GPUS], gpu_numa[FAKE_MAX_GPUS];
  uint64_t cpus[FAKE_MAX_GPUS][4];
};
int topology_line(struct fake_topology *topology, const char *line, char error[FAKE_TEXT]);
int topology_end(const struct fake_topology *topology, struct fake_machine *machine, char error[FAKE_TEXT]);
/* "0-31,64-95" to bits; -1 when it is not such a list. */
int machine_parse_cpus(const char *text, uint64_t cpus[4]);

/* "3us", "10ms", "0" to nanoseconds. */
int machine_parse_time(const char *text, uint64_t *ns);
const char *machine_level_name(unsigned level);
/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"; OUT has room for 41 bytes. */
void machine_uuid_text(const uint8_t uuid[16], char out[41]);
/* The same for a GPU as programs name it; of a MIG device: "MIG-" and the same bytes. */
void machine_gpu_name(const struct fake_machine *machine, const struct fake_gpu *gpu, char out[41]);

#endif
