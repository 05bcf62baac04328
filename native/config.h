/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: which directory holds limits page and ledger, and which limits the environment asks for.
 * Reads the environment and checks whether files exist; opens nothing, decides nothing about a broken page.
 * Uses neither CUDA nor NVML. Tests: tests/native/test_config.c, tests/integration/test_native_config.py. */
#ifndef VC_CONFIG_H
#define VC_CONFIG_H

#include "shm.h"

enum { CONFIG_PATH = 256, CONFIG_WHY = 480 };

enum config_kind {
  CONFIG_INERT,     /* nothing is configured */
  CONFIG_CONTAINER, /* the mounted page; the environment is not read */
  CONFIG_DIRECTORY, /* a directory of the user's */
};

/* Whose directory it is: what follows when it is missing, unused, or has other limits. */
enum config_origin {
  CONFIG_GIVEN, /* VCUDA_DIR: a directory of the user's, or of vcuda run */
  CONFIG_HEAD,  /* that of the program which had VCUDA_MEMORY_LIMIT first: this one, or one that it descends from */
  CONFIG_NAMED, /* VCUDA_QUOTA */
};

struct config {
  enum config_kind kind;
  enum config_origin origin;
  char directory[CONFIG_PATH];
  char limits[CONFIG_PATH + 8];
  char ledger[CONFIG_PATH + 8];
  const char *memory_limit;   /* VCUDA_MEMORY_LIMIT, NULL: not set */
  const char *physical_limit; /* VCUDA_PHYSICAL_LIMIT, likewise */
  const char *cores;          /* VCUDA_CORES, likewise */
  int32_t head;               /* CONFIG_HEAD: the process that heads the quota */
  uint64_t values, head_values; /* sums of what the variables say now, and of what they said to the head */
};

/* 1: something is configured, whether or not it can be used. */
int config_is_present(void);

/* The same while the library is being loaded into a process with this ENVIRONMENT: one system call, and no function of
 * the C library where nothing is configured. A page that is there now is never held to be absent later. A program that
 * heads a quota has its directory in the environment from here on (head.h). */
int config_at_load(char **environment);

/* VCUDA_REFUSALS, which is read in containers too, like VCUDA_LOG: whether the first refusal has a line on stderr. */
int config_tells_refusals(void);

/* VC_EINVAL: a variable makes no sense, or a container was given two quotas; WHY (CONFIG_WHY bytes) says which, and what to
 * write instead. */
int config_read(struct config *out, char *why);

/* What the two variables ask for. */
struct request {
  enum { REQUEST_EVERY_GPU, REQUEST_UUID, REQUEST_INDEX } kind;
  uint8_t uuid[VC_UUID_BYTES];
  uint32_t flags;
  uint32_t index;
  uint64_t bytes;
  uint64_t physical; /* of them in the GPU's own memory at most; 0: all */
  uint32_t cores;    /* percent of the GPU's time; 0: all */
};

struct requests {
  uint32_t count;
  struct request request[VC_MAX_GPUS];
};

/* "8GiB", or "GPU-<uuid>=8GiB,1=4GiB" (index: in NVML's order). VC_EINVAL with WHY. */
int config_parse_memory(const char *text, struct requests *out, char *why);

/* The same for VCUDA_PHYSICAL_LIMIT: what it says goes into the requests of the same GPUs. */
int config_parse_physical(const char *text, struct requests *inout, char *why);
/* Adds what VCUDA_CORES says: "30", or "GPU-<uuid>=30,1=50", percent. */
int config_parse_cores(const char *text, struct requests *inout, char *why);

/* Whether the requests name a GPU by index, so that the machine has to be asked which one. */
int config_needs_gpus(const struct requests *requests);

/* The requests as entries of a page for a machine with these GPUs, in its order. Returns how many, or VC_EINVAL with
 * WHY (no such GPU, named twice). GPUs that are not named get no entry. */
int config_resolve(const struct requests *requests, const uint8_t (*gpus)[VC_UUID_BYTES], uint32_t gpu_count,
                 struct vc_gpu_limit out[VC_MAX_GPUS], char *why);

/* A page that exists says the same as the environment, or WHY tells both values (VC_EINVAL). GPUS may be empty unless
 * config_needs_gpus(). PLACE: whose page it is, REMEDY: what the user can do, for WHY. */
int config_compare(const struct requests *requests, const uint8_t (*gpus)[VC_UUID_BYTES], uint32_t gpu_count,
                   const struct vc_limits *page, const char *place, const char *remedy, char *why);

#endif
