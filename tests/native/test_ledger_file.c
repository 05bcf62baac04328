/* The ledger seen from outside: whatever a container writes into it, the reader gets numbers that make sense or an
 * error. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ledger_fixture.h"

static struct vc_slot_usage slots[VC_MAX_SLOTS];

static int read_ledger(struct vc_ledger_info *info) {
  return ledger_read(test_path("ledger"), info, slots, VC_MAX_SLOTS);
}

static void patch(uint64_t offset, const void *bytes, size_t size) {
  int fd = open(test_path("ledger"), O_WRONLY);
  CHECK(fd >= 0);
  CHECK_EQ(pwrite(fd, bytes, size, (off_t)offset), size);
  close(fd);
}

TEST(ledger_file_round_trip) {
  struct vc_ledger_info info;
  struct stat st;
  fixture_create(8 * GIB);
  CHECK_EQ(stat(test_path("ledger"), &st), 0);
  CHECK_EQ(st.st_size, ledger_file_bytes());
  CHECK(st.st_blocks * 512 >= st.st_size); /* no holes: a full disk must not become a SIGBUS */
  CHECK_EQ(read_ledger(&info), 0);
  CHECK_EQ(info.gpu_count, 2);
  CHECK(memcmp(info.uuid[1], gpu_b, 16) == 0);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 12345), 0);
  CHECK_EQ(ledger_charge(ledger, 1, 777), 0);
  pid_t parent = getpid(), child = fork(); /* another process: nobody sees his own locks */
  if (child == 0) {
    CHECK_EQ(read_ledger(&info), 1);
    CHECK_EQ(slots[0].pid, parent);
    CHECK_EQ(slots[0].pid_inside, parent);
    CHECK_EQ(slots[0].used[0], 12345);
    CHECK_EQ(slots[0].used[1], 777);
    CHECK_EQ(info.peak[0], 12345);
    CHECK(strlen(slots[0].name) > 0);
    _Exit(0);
  }
  expect_exit(child, 0);
}

TEST(ledger_file_header_damage) {
  struct vc_ledger_info info;
  fixture_create(GIB);
  for (uint64_t at = 0; at < 304; at++) { /* all that the checksum covers, and the checksum */
    uint8_t byte, other;
    int fd = open(test_path("ledger"), O_RDONLY);
    CHECK_EQ(pread(fd, &byte, 1, (off_t)at), 1);
    close(fd);
    other = (uint8_t)~byte;
    patch(at, &other, 1);
    int status = read_ledger(&info);
    if (status >= 0) fprintf(stderr, "damage at byte %d went unnoticed\n", (int)at);
    CHECK(status == VC_ECORRUPT || status == VC_EVERSION);
    patch(at, &byte, 1);
  }
  CHECK_EQ(read_ledger(&info), 0);
}

TEST(ledger_file_every_size) {
  struct vc_ledger_info info;
  struct ledger *ledger;
  static const int64_t off[] = {0, 1, 39, 303, 304, 4095, 4096, 4097};
  fixture_create(GIB);
  for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
    CHECK_EQ(truncate(test_path("ledger"), off[i]), 0);
    CHECK_EQ(read_ledger(&info), VC_ECORRUPT);
    CHECK_EQ(ledger_attach(test_path("limits"), test_path("ledger"), &ledger, NULL, 0), VC_ECORRUPT);
  }
  CHECK_EQ(truncate(test_path("ledger"), (off_t)ledger_file_bytes() - 1), 0);
  CHECK_EQ(read_ledger(&info), VC_ECORRUPT);
}

TEST(ledger_file_hostile_numbers) {
  struct vc_ledger_info info;
  static uint8_t garbage[sizeof(struct ledger_slot) * VC_MAX_SLOTS];
  fixture_create(GIB);
  memset(garbage, 0xff, sizeof garbage);
  patch(LEDGER_HEADER_BYTES, garbage, sizeof garbage);
  uint32_t high = UINT32_MAX;
  patch(304, &high, sizeof high);
  int count = read_ledger(&info);
  CHECK_EQ(count, VC_MAX_SLOTS);
  for (int i = 0; i < count; i++) {
    CHECK_EQ(slots[i].pid, 0); /* nobody holds a lock, whatever the file says */
    CHECK(slots[i].used[0] <= USED_BYTES_MASK);
    CHECK(slots[i].excess[0] <= slots[i].used[0] && slots[i].peak[0] <= USED_BYTES_MASK);
    CHECK_EQ(slots[i].used[2], 0); /* no such GPU in this ledger */
    for (int c = 0; slots[i].name[c]; c++) CHECK(slots[i].name[c] >= ' ' && slots[i].name[c] <= '~');
  }
  /* A process of that container only refuses itself: no crash, no grant, no endless wait. */
  struct ledger *ledger = fixture_attach();
  uint64_t limit, used;
  int status = ledger_charge(ledger, 0, 4096);
  CHECK(status == 0 || status == VC_ENOMEM || status == VC_EFULL);
  ledger_view(ledger, 0, &limit, &used);
  CHECK_EQ(limit, GIB);
}

/* A container that lowers the mark of used slots hides nobody: the kernel knows who holds a lock. */
TEST(ledger_file_hidden_slot_is_read) {
  struct vc_ledger_info info;
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 4096), 0);
  atomic_store(&ledger->file->high_water, 0);
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    CHECK_EQ(read_ledger(&info), 1);
    CHECK_EQ(slots[0].pid, parent);
    CHECK_EQ(slots[0].used[0], 4096);
    _Exit(0);
  }
  expect_exit(child, 0);
}

TEST(ledger_file_grown_is_cut) {
  struct vc_ledger_info info;
  struct stat st;
  fixture_create(GIB);
  CHECK_EQ(ledger_trim(test_path("ledger")), 0);
  CHECK_EQ(truncate(test_path("ledger"), 1 << 30), 0);
  CHECK_EQ(read_ledger(&info), 0);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 4096), 0);
  CHECK_EQ(ledger_trim(test_path("ledger")), 1);
  CHECK_EQ(stat(test_path("ledger"), &st), 0);
  CHECK_EQ(st.st_size, ledger_file_bytes());
  CHECK_EQ(ledger_charge(ledger, 0, 4096), 0);
  CHECK_EQ(ledger_trim(test_path("nothing")), VC_ENOENT);
}
