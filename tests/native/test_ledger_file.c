/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger seen from outside: whatever a container writes into it, the reader gets numbers that make sense or an
 * error. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
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
  pid_t parent = getpid(), child = fork(); /* another process: none sees its own locks */
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
    CHECK_EQ(slots[i].pid, 0); /* no process holds a lock, whatever the file says */
    CHECK(slots[i].used[0] <= USED_BYTES_MASK);
    CHECK(slots[i].undeclared[0] <= slots[i].used[0] && slots[i].peak[0] <= USED_BYTES_MASK);
    CHECK_EQ(slots[i].used[2], 0); /* no such GPU in this ledger */
    for (int c = 0; slots[i].name[c]; c++) CHECK(slots[i].name[c] >= ' ' && slots[i].name[c] <= '~');
  }
  /* A process of that container only refuses itself: no crash, no charge, no endless wait. */
  struct ledger *ledger = fixture_attach();
  uint64_t limit, used;
  int status = ledger_charge(ledger, 0, 4096);
  CHECK(status == 0 || status == VC_ENOMEM || status == VC_EFULL);
  ledger_view(ledger, 0, &limit, &used);
  CHECK_EQ(limit, GIB);
}

/* A container that lowers the mark of used slots hides no process: the kernel knows who holds a lock. */
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

TEST(ledger_file_room_beyond_its_end_is_cut) {
  struct stat st;
  fixture_create(GIB);
  int fd = open(test_path("ledger"), O_RDWR);
  CHECK(fd >= 0);
  if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 64 << 20) == 0) { /* not every file system can */
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK_EQ(st.st_size, ledger_file_bytes());
    CHECK(st.st_blocks * 512 >= 64 << 20);
    CHECK_EQ(ledger_trim(test_path("ledger")), 1);
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK_EQ(st.st_size, ledger_file_bytes());
    CHECK(st.st_blocks * 512 < 1 << 20);
    CHECK_EQ(ledger_trim(test_path("ledger")), 0);
  }
  close(fd);
}

TEST(ledger_file_owners_of_a_damaged_ledger) {
  struct vc_slot_owner owners[4];
  fixture_create(GIB);
  struct ledger *ledger = fixture_attach();
  CHECK_EQ(ledger_charge(ledger, 0, 4096), 0);
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    patch(0, "garbage", 7);
    CHECK_EQ(ledger_owners(test_path("ledger"), owners, 4), 1);
    CHECK_EQ(owners[0].slot, 0);
    CHECK_EQ(owners[0].pid, parent);
    CHECK_EQ(ledger_owners(test_path("ledger"), owners, 0), 0);
    CHECK_EQ(ledger_owners(test_path("nothing"), owners, 4), VC_ENOENT);
    _Exit(0);
  }
  expect_exit(child, 0);
}

TEST(ledger_file_is_read_without_waiting) {
  struct vc_ledger_info info;
  fixture_create(GIB);
  CHECK_EQ(ledger_read_now(test_path("ledger"), &info, slots, VC_MAX_SLOTS), 0);
  CHECK_EQ(info.gpu_count, 2);
  int fd = open(test_path("ledger"), O_RDONLY);
  CHECK(fd >= 0);
  fsync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  int status = ledger_read_now(test_path("ledger"), &info, slots, VC_MAX_SLOTS);
  CHECK(status == 0 || status == VC_EBUSY); /* as the file system has it */
  CHECK_EQ(read_ledger(&info), 0);
  CHECK_EQ(ledger_read_now(test_path("ledger"), &info, slots, VC_MAX_SLOTS), 0);
  CHECK_EQ(truncate(test_path("ledger"), 100), 0);
  CHECK_EQ(ledger_read_now(test_path("ledger"), &info, slots, VC_MAX_SLOTS), VC_ECORRUPT);
}

TEST(ledger_file_under_a_lease_is_not_waited_for) {
  struct vc_ledger_info info;
  fixture_create(GIB);
  signal(SIGIO, SIG_IGN);
  int fd = open(test_path("ledger"), O_RDONLY);
  CHECK(fd >= 0);
  if (fcntl(fd, F_SETLEASE, F_WRLCK) == 0) { /* not every file system has them */
    CHECK_EQ(read_ledger(&info), VC_EBUSY);
    CHECK_EQ(ledger_trim(test_path("ledger")), VC_EBUSY);
    CHECK_EQ(fcntl(fd, F_SETLEASE, F_UNLCK), 0);
  }
  CHECK_EQ(read_ledger(&info), 0);
  close(fd);
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
