/* What C and Python may do with a limits page and a usage ledger. Read by the compiler and by cffi, so there is no
 * preprocessor line in this file; the memory layouts are in limits_layout.h and ledger_layout.h.
 * Sizes are bytes. Every function returns 0 or a count on success and a negative VC_E… status (base/status.def) on
 * failure; outputs are written only on success. Tests: tests/native/test_limits.c, test_ledger*.c, tests/unit/vcuda. */

enum { VC_MAX_GPUS = 16, VC_UUID_BYTES = 16, VC_ID_BYTES = 16, VC_MAX_SLOTS = 1024, VC_NAME_BYTES = 16 };

/* What a process measures on itself beyond its declarations is counted in multiples of this, the piece in which a driver
 * takes memory from the GPU. */
enum { VC_EXCESS_UNIT = 2097152 };

/* A GPU of a limits page. The UUID is the 16 raw bytes that cuDeviceGetUuid and the text "GPU-xxxxxxxx-…" share. */
struct vc_gpu_limit {
  uint8_t uuid[16];
  uint64_t memory_bytes;   /* quota of the container on this GPU; > 0 */
  uint64_t unhooked_bytes; /* seen by NVML beyond what the ledger declares (contexts, code, graphics); counts as used */
  uint32_t cores_percent;  /* share of the GPU's time, 1..100; 0: no compute limit */
  uint32_t flags;          /* VC_GPU_… */
  uint64_t physical_bytes; /* of memory_bytes so much at most in the card's own memory; 0: all of it */
  uint32_t compute_policy; /* VC_COMPUTE_… and the weight */
  uint32_t reserved;
};

enum { VC_GPU_MIG = 1 }; /* the UUID's text form begins with "MIG-" */

/* How a compute share is meant. ELASTIC: idle time of others may be used. The weight, above the flags, says in which
 * proportion idle time is lent: 0 means 1. */
enum { VC_COMPUTE_ELASTIC = 1, VC_COMPUTE_WEIGHT_SHIFT = 8, VC_COMPUTE_MAX = 65535 };

struct vc_limits {
  uint32_t version;
  uint32_t gpu_count;
  uint8_t id[16];   /* of the allocation; a ledger with another id is refused */
  uint64_t changes; /* number of live changes since creation */
  struct vc_gpu_limit gpu[16];
};

/* Creates the page complete or not at all; VC_EEXIST when PATH exists. mode: permission bits of the new file. */
int limits_create(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count,
                  uint32_t mode);
/* Reads and checks the whole page. */
int limits_read(const char *path, struct vc_limits *out);
/* Live changes: one aligned atomic store each, seen by every process that has the page mapped. */
int limits_set_memory(const char *path, const uint8_t uuid[16], uint64_t bytes);
int limits_set_unhooked(const char *path, const uint8_t uuid[16], uint64_t bytes);
int limits_set_cores(const char *path, const uint8_t uuid[16], uint32_t percent);
int limits_set_physical(const char *path, const uint8_t uuid[16], uint64_t bytes);
int limits_set_compute(const char *path, const uint8_t uuid[16], uint32_t policy);
/* What the node's arbiter decides: permille of the GPU's time now, microseconds given back, whose turn it is. */
int limits_set_granted(const char *path, const uint8_t uuid[16], uint32_t permille);
int limits_set_credit(const char *path, const uint8_t uuid[16], uint64_t microseconds);
int limits_set_turn(const char *path, const uint8_t uuid[16], uint64_t turn);

struct vc_ledger_info {
  uint32_t version;
  uint32_t gpu_count;
  uint32_t slot_count;
  uint8_t id[16];
  uint8_t uuid[16][16];
  uint64_t peak[16]; /* largest sum over all slots that a granted charge has produced */
};

/* One process that has charged something, or did until it died. */
struct vc_slot_usage {
  uint32_t slot;
  int32_t pid;        /* owner's PID in the reader's PID namespace, from the kernel (F_GETLK); 0: nobody holds the slot */
  int32_t pid_inside; /* the PID the process wrote itself: its own namespace's, and only its word */
  uint64_t start_time; /* of that process, clock ticks since boot, likewise only its word */
  uint64_t used[16];   /* declared, and excess */
  uint64_t excess[16]; /* the part of used that no call declared: measured by the process on itself; never more than used */
  uint64_t managed[16]; /* the part of used that may lie in host memory; never more than used */
  uint64_t peak[16];
  uint64_t refused; /* charges that were answered with "out of memory" */
  char name[16];    /* command name, truncated, not trusted: control characters replaced by '?' */
};

/* Creates an empty ledger, complete or not at all; VC_EEXIST when PATH exists. Its size is fixed: ledger_file_bytes(), and
 * more when a GPU has physical_bytes, because those containers have books for host memory too (version 2). */
int ledger_create(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count,
                  uint32_t mode);
uint64_t ledger_file_bytes(void);
/* Reads by pread, never maps, trusts nothing: returns the number of slots written to SLOTS (at most MAX). Slots that
 * nobody owns and that hold nothing are left out. A file of the wrong size or with a damaged header is VC_ECORRUPT;
 * numbers above 2^48 - 1 cannot be represented and so never come out. */
int ledger_read(const char *path, struct vc_ledger_info *info, struct vc_slot_usage *slots, uint32_t max);
/* Cuts a ledger that grew back to its size. Returns 1 when it had to, 0 when there was nothing to do. */
int ledger_trim(const char *path);

/* "8GiB", "512MiB", "8G" (= GiB), "1073741824": what users and options write. VC_EINVAL for anything else, zero,
 * negative numbers and sizes above 2^47 bytes. */
int size_parse(const char *text, uint64_t *bytes);
/* "GPU-<8-4-4-4-12 hex>" or "MIG-…" to bytes and flags, and back (OUT: at least 41 bytes). */
int uuid_parse(const char *text, uint8_t uuid[16], uint32_t *flags);
int uuid_format(const uint8_t uuid[16], uint32_t flags, char *out, size_t size);

/* Name ("VC_ECORRUPT") and sentence of a status. */
const char *status_name(int status);
const char *status_text(int status);
