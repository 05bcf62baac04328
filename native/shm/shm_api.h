/* SPDX-License-Identifier: Apache-2.0 */
/* What C and Python may do with a limits page and a usage ledger. Read by the compiler and by cffi, so there is no
 * preprocessor line in this file; the memory layouts are in limits_layout.h and ledger_layout.h.
 * Sizes are bytes. Every function returns 0 or a count on success and a negative VC_E… status (base/status.def) on
 * failure; outputs are written only on success. Tests: tests/native/test_limits.c, test_ledger*.c, tests/unit/vcuda. */

enum { VC_MAX_GPUS = 16, VC_UUID_BYTES = 16, VC_ID_BYTES = 16, VC_MAX_SLOTS = 1024, VC_NAME_BYTES = 16 };

/* What a process measures on itself beyond its declarations is counted in multiples of this, the piece in which a
 * driver takes memory from the GPU. */
enum { VC_UNDECLARED_UNIT = 2097152 };

/* A GPU of a limits page. The UUID is the 16 raw bytes that cuDeviceGetUuid and the text "GPU-xxxxxxxx-…" share. */
struct vc_gpu_limit {
  uint8_t uuid[16];
  uint64_t memory_bytes;   /* quota of the container on this GPU; > 0 */
  uint64_t unhooked_bytes; /* seen by NVML beyond what the ledger declares (contexts, code, graphics); counts as used */
  uint32_t cores_percent;  /* share of the GPU's time, 1..100; 0: no compute limit */
  uint32_t flags;          /* VC_GPU_… */
  uint64_t physical_bytes; /* of memory_bytes so much at most in the GPU's own memory; 0: all of it */
  uint32_t compute_policy; /* VC_COMPUTE_… and the weight */
  uint32_t allowed_permille; /* of the GPU's time at this moment, 0: cores_percent holds; only read */
  uint64_t credit_us;        /* of busy time given back ever since; only read */
};

enum { VC_GPU_MIG = 1 }; /* the UUID's text form begins with "MIG-" */

/* The state of a GPU's time slice: the lowest two bits, below the time (milliseconds of CLOCK_MONOTONIC) at which it
 * ends by itself, so that no container waits for an agent that is gone. SHORT: free, but queues are kept short, as in a
 * time slice; older libraries take it for FREE. */
enum {
  VC_TIME_SLICE_FREE = 0,
  VC_TIME_SLICE_HELD = 1,
  VC_TIME_SLICE_YOURS = 2,
  VC_TIME_SLICE_SHORT = 3,
  VC_TIME_SLICE_SHIFT = 2
};
/* A slice that ends later than this from now was written before the machine was started, and is over. */
enum { VC_TIME_SLICE_LONGEST_MS = 60000 };

/* How a compute share is meant. ELASTIC: idle time of others may be used. The weight, above the flags, is the
 * proportion in which idle time is lent: 0 means 1. */
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
/* The same in two steps, of which the first takes all the time: a file of no page yet, and the page in it. In between
 * no other process may open the file, since it is not written all at once. */
int limits_reserve(const char *path, uint32_t mode);
int limits_fill(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count);
/* Reads and checks the whole page. */
int limits_read(const char *path, struct vc_limits *out);
/* Live changes: one aligned atomic store each, seen by every process that has the page mapped. */
int limits_set_memory(const char *path, const uint8_t uuid[16], uint64_t bytes);
int limits_set_unhooked(const char *path, const uint8_t uuid[16], uint64_t bytes);
int limits_set_cores(const char *path, const uint8_t uuid[16], uint32_t percent);
int limits_set_physical(const char *path, const uint8_t uuid[16], uint64_t bytes);
int limits_set_compute(const char *path, const uint8_t uuid[16], uint32_t policy);
/* What the node's arbiter decides: permille of the GPU's time now, microseconds given back, the time slice. */
int limits_set_allowed(const char *path, const uint8_t uuid[16], uint32_t permille);
int limits_set_credit(const char *path, const uint8_t uuid[16], uint64_t microseconds);
int limits_set_time_slice(const char *path, const uint8_t uuid[16], uint64_t time_slice);

struct vc_ledger_info {
  uint32_t version;
  uint32_t gpu_count;
  uint32_t slot_count;
  uint8_t id[16];
  uint8_t uuid[16][16];
  uint64_t peak[16]; /* largest sum over all slots that a charge has produced */
  uint64_t driver_refused[16];       /* allocations that the driver had no memory for though the ledger had room */
  uint64_t driver_refused_bytes[16]; /* what the last of them asked for; 0: nobody knew */
  uint64_t context_bytes[16];        /* what a context takes, as one of its processes measured; 0: none has */
};

/* A container's compute share on one GPU, by its processes' own account, which nothing verifies. */
struct vc_share_usage {
  uint8_t uuid[16];
  uint64_t spent_us;     /* of the GPU's time charged ever since */
  uint64_t throttled_us; /* launches were held ever since, all threads added up */
  uint32_t flying;       /* processes with work under way */
  uint32_t waiting;      /* 1: a launch was held within the last 100 ms */
};

/* One process that has charged something, or did until it died. */
struct vc_slot_usage {
  uint32_t slot;
  int32_t pid;        /* owner's PID in the reader's PID namespace, from the kernel (F_GETLK); 0: dead, or unknown */
  int32_t alive;      /* 1: the owner lives. Without a PID it closed a descriptor of the file: it will name itself again */
  int32_t pid_inside; /* the PID the process wrote itself: its own namespace's, not verified */
  uint32_t generation; /* raised whenever the slot changes hands, likewise not verified */
  uint64_t used[16];   /* declared, and undeclared bytes */
  uint64_t undeclared[16]; /* the part of used that no call declared: measured by the process itself; never above used */
  uint64_t managed[16]; /* the part of used that may lie in host memory; never more than used */
  uint64_t peak[16];
  uint64_t refused; /* charges that were answered with "out of memory" */
  char name[16];    /* command name, truncated, not trusted: control characters replaced by '?' */
};

/* Creates an empty ledger, complete or not at all; VC_EEXIST when PATH exists. Its size is fixed: ledger_file_bytes(),
 * and more when a GPU has physical_bytes, because those ledgers count host memory too (version 2). */
int ledger_create(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count,
                  uint32_t mode);
/* In two steps, as a limits page. Room for counting host memory is made in the second. */
int ledger_reserve(const char *path, uint32_t mode);
int ledger_fill(const char *path, const uint8_t id[16], const struct vc_gpu_limit *gpus, uint32_t count);
uint64_t ledger_file_bytes(void);
/* Reads by pread, never maps, trusts nothing: returns the number of slots written to SLOTS (at most MAX). Slots without
 * an owner that hold nothing are left out. A file of the wrong size or with a damaged header is VC_ECORRUPT; numbers
 * above 2^48 - 1 cannot be represented and so never come out. */
int ledger_read(const char *path, struct vc_ledger_info *info, struct vc_slot_usage *slots, uint32_t max);
/* The same without waiting for the disk, or for a container that writes the file all the time: VC_EBUSY instead. */
int ledger_read_now(const char *path, struct vc_ledger_info *info, struct vc_slot_usage *slots, uint32_t max);
/* The owners of slots, from the kernel's locks alone: on a ledger whose bytes are damaged, too. Returns how many, at
 * most MAX. */
struct vc_slot_owner {
  uint32_t slot;
  int32_t pid; /* in the reader's PID namespace */
};
int ledger_owners(const char *path, struct vc_slot_owner *owners, uint32_t max);
/* 1: a process has a slot of the ledger, or may have one; 0: none has. */
int ledger_is_used(const char *path);
/* Whether a lock that a mapping alone keeps open lasts on the file system of PATH, a file that no process uses: 1 or 0.
 * It is tried with the first slot's. */
int ledger_hold_lasts(const char *path);
/* The compute shares of a ledger, in the order of its GPUs, at most MAX: returns how many. A few microseconds. */
int ledger_read_shares(const char *path, struct vc_share_usage *out, uint32_t max);
int ledger_read_shares_now(const char *path, struct vc_share_usage *out, uint32_t max);
/* The same of an open ledger and without waiting, for frequent readers: a descriptor, to be given to
 * ledger_close(). */
int ledger_open_shares(const char *path);
int ledger_read_open_shares(int fd, struct vc_share_usage *out, uint32_t max);
void ledger_close(int fd);

/* What a container with host memory does on one GPU, by its processes' own account. */
struct vc_time_slice_usage {
  uint64_t progress; /* pieces of work submitted ever since */
  uint64_t held_us;  /* its threads were held back ever since, all added up */
  uint64_t managed;  /* bytes of its living processes that may lie in host memory, and that may not */
  uint64_t real;
  uint32_t waiting;  /* 1: a thread is held back, or was within the last half second */
  uint32_t busy;     /* living processes that wait for work under way, or ask about it again and again */
  uint32_t alive;    /* living processes */
};
/* The same of a ledger, in the order of its GPUs, at most MAX: returns how many, 0 for one without host memory. */
int ledger_read_time_slices(const char *path, struct vc_time_slice_usage *out, uint32_t max);
int ledger_read_time_slices_now(const char *path, struct vc_time_slice_usage *out, uint32_t max);
/* Milliseconds of CLOCK_MONOTONIC, as time slices count them. */
uint64_t time_slice_now_ms(void);

/* Cuts a ledger that grew back to its size, also where it only takes more room than it shows. Returns 1 when it had to,
 * 0 when there was nothing to do. It waits for a process that writes the file at this moment. */
int ledger_trim(const char *path);
int ledger_trim_open(int fd);

/* Quota directories that nobody named by path (quota.h). 1: a process may use the one at DIRECTORY, 0: none does.
 * LAUNCHER_DONE: the launcher's own command has ended, whatever its record says. */
int quota_in_use(const char *directory, int launcher_done);
/* Whether a process names it, as PROC ("/proc") shows. */
int quota_is_named(const char *proc, const char *directory);
/* Removes it unless it is in use. 1: removed. */
int quota_remove_unused(const char *directory, int launcher_done);
/* Removes all in BASE that are not in use, and what is left of unfinished and removed ones. Returns how many. */
int quota_sweep(const char *base);

/* The compute share of a container on one GPU: a bucket of GPU time that all its processes fill and empty, without a
 * lock. Pure: time is an argument. Theory in bucket.c; Python runs the same code in simulated time. */
struct vc_bucket {
  uint64_t last_ns;    /* filled up to this instant; 0: never */
  uint64_t earned_ns; /* GPU time earned ever since, without what did not fit */
  uint64_t spent_ns;   /* GPU time used ever since */
  uint64_t credit_us;  /* of the page's credit so much has been added already */
};
enum { VC_BUCKET_PERIOD_MS = 200, VC_BUCKET_DEBT_MAX_S = 600 };
/* Fills the bucket for the time until NOW_NS at PERMILLE of the GPU, and with credit beyond what it has seen. */
void bucket_fill(struct vc_bucket *bucket, uint64_t now_ns, uint32_t permille, uint64_t credit_us);
void bucket_spend(struct vc_bucket *bucket, uint64_t ns);
/* GPU time that is left; negative: debt. */
int64_t bucket_level(const struct vc_bucket *bucket);

/* A launch that finds the bucket in debt waits for the debt of that moment to be earned, and VC_PACE_GATHER_MS more, so
 * that a container works in bursts of some length; no longer: what work that runs meanwhile adds is waited for by later
 * launches. So work that needs this launch to end never hangs. */
struct vc_pace {
  int64_t owed_ns;
  uint64_t since_ns;
};
enum { VC_PACE_GATHER_MS = 20, VC_PACE_NAP_MIN_NS = 100000, VC_PACE_NAP_MAX_NS = 10000000 };
void pace_begin(struct vc_pace *pace, int64_t level, uint32_t permille, uint64_t now_ns);
/* 0: go; else sleep so long, and ask again. PERMILLE may change in between. */
uint64_t pace_nap(struct vc_pace *pace, int64_t level, uint32_t permille, uint64_t now_ns);

/* The next instant after NOW_NS at which every process of a node polls whether it has work under way: one at random in
 * each millisecond of the clock, the same for all. */
enum { VC_POLL_TICK_NS = 1000000 };
uint64_t poll_instant(uint64_t now_ns);

/* How many launches of one stream may be under way at once, so that what is queued is about VC_WINDOW_NS long. */
enum { VC_WINDOW_NS = 20000000, VC_WINDOW_MAX = 65536 };
struct vc_window {
  uint32_t allowed;
  uint64_t each_ns; /* the longest that a launch took lately, faded */
};
void window_reset(struct vc_window *window);
/* A fence behind OUTSTANDING launches was passed DELAY_NS after it was set. */
void window_passed(struct vc_window *window, uint32_t outstanding, uint64_t delay_ns);

/* "8GiB", "512MiB", "8G" (= GiB), "8" (GiB up to 9999), "1073741824" (bytes from 1048576 on): what users and options
 * write. VC_EINVAL for anything else, zero, negative numbers and sizes above 2^47 bytes. */
int size_parse(const char *text, uint64_t *bytes);
/* What to write in the place of TEXT, which is no size. */
const char *size_usage(const char *text);
/* BYTES for people: "7.6 GiB". BUFFER: 32 bytes; returns it. */
const char *text_size(uint64_t bytes, char buffer[32]);
/* The same to be typed again, exact: "8GiB", "1536MiB". */
const char *text_exact(uint64_t bytes, char buffer[32]);
/* "GPU-<8-4-4-4-12 hex>" or "MIG-…" to bytes and flags, and back (OUT: at least 41 bytes). */
int uuid_parse(const char *text, uint8_t uuid[16], uint32_t *flags);
int uuid_format(const uint8_t uuid[16], uint32_t flags, char *out, size_t size);

/* Name ("VC_ECORRUPT") and sentence of a status. */
const char *status_name(int status);
const char *status_text(int status);
