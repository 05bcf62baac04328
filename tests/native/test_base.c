/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, UUIDs, statuses and the operating-system layer. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "os.h"
#include "status.h"
#include "text.h"

static uint64_t parsed(const char *text) {
  uint64_t bytes = 0;
  CHECK_EQ(size_parse(text, &bytes), VC_OK);
  return bytes;
}

TEST(size_parse_accepts) {
  CHECK_EQ(parsed("1"), 1LL << 30);
  CHECK_EQ(parsed("8"), 8LL << 30);
  CHECK_EQ(parsed("7.5"), 15LL << 29);
  CHECK_EQ(parsed("0009999"), 9999LL << 30);
  CHECK_EQ(parsed("1048576"), 1 << 20);
  CHECK_EQ(parsed("1048577.0"), (1 << 20) + 1);
  CHECK_EQ(parsed("1B"), 1);
  CHECK_EQ(parsed("4096B"), 4096);
  CHECK_EQ(parsed("8GiB"), 8LL << 30);
  CHECK_EQ(parsed("8Gi"), 8LL << 30);
  CHECK_EQ(parsed("8G"), 8LL << 30);
  CHECK_EQ(parsed("8g"), 8LL << 30);
  CHECK_EQ(parsed("512mib"), 512LL << 20);
  CHECK_EQ(parsed("7K"), 7 << 10);
  CHECK_EQ(parsed("1.5GiB"), 3LL << 29);
  CHECK_EQ(parsed("0.25T"), 1LL << 38);
  CHECK_EQ(parsed("008GiB"), 8LL << 30);
  CHECK_EQ(parsed("140737488355327"), (1LL << 47) - 1);
  CHECK_EQ(parsed("127TiB"), 127LL << 40);
}

TEST(size_parse_refuses) {
  static const char *bad[] = {"",      "0",      "0GiB",  "-1",     "+8GiB", " 8GiB", "8GiB ", "8 GiB", "8GB",
                              "8MB",   "abc",    "GiB",   "8GiBx",  "8.GiB", ".5GiB", "0.3GiB", "1e9",  "0x10",
                              "8P",    "128TiB", "1.5b",  "8,5GiB", "8\n",   "99999999999999999999", "unlimited",
                              "99999999999T",    "8bi",   "1.0000001G", "٨GiB",  "9999.5", "10000", "1048575", "1048576.5",
                              "0.3",   "00010000"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    uint64_t bytes = 77;
    int status = size_parse(bad[i], &bytes);
    if (status != VC_EINVAL) fprintf(stderr, "\"%s\" was taken for %" PRIu64 "\n", bad[i], bytes);
    CHECK_EQ(status, VC_EINVAL);
    CHECK_EQ(bytes, 77);
  }
  CHECK_EQ(size_parse(NULL, &(uint64_t){0}), VC_EINVAL);
}

TEST(size_usage_of_a_number_alone) {
  static const char *alone[] = {"10000", "9999.1", "1048575", "1048575.9", "00010000", "0", "99999999999999999999", "5."};
  static const char *others[] = {"", ".", "1.2.3", "10000B", "10000GB", "-10000", "10000 ", "1e5"};
  for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
    CHECK(strstr(size_usage(alone[i]), "(a number alone is GiB up to 9999 and bytes from 1048576 on)") != NULL);
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    CHECK(strstr(size_usage(others[i]), "(8G is 8GiB; 8GB is refused)") != NULL);
}

TEST(size_for_people) {
  static const struct {
    uint64_t bytes;
    const char *text;
  } sizes[] = {{0, "0 B"}, {1023, "1023 B"}, {1024, "1 KiB"}, {1536, "1.5 KiB"}, {922ULL << 20, "922 MiB"},
               {8ULL << 30, "8 GiB"}, {8160437862, "7.6 GiB"}, {(100ULL << 30) + (6ULL << 28), "102 GiB"},
               {(99ULL << 30) + 1020054733, "100 GiB"}, {(1ULL << 30) - 1, "1 GiB"}, {(1ULL << 40), "1 TiB"},
               {UINT64_MAX, "16777216 TiB"}};
  char buffer[TEXT_SIZE];
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    text_size(sizes[i].bytes, buffer);
    if (strcmp(buffer, sizes[i].text) != 0) fprintf(stderr, "%s instead of %s\n", buffer, sizes[i].text);
    CHECK(strcmp(buffer, sizes[i].text) == 0);
  }
}

TEST(uuid_round_trip) {
  static const char text[] = "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab";
  uint8_t uuid[16];
  uint32_t flags = 99;
  char out[41];
  CHECK_EQ(uuid_parse(text, uuid, &flags), VC_OK);
  CHECK_EQ(flags, 0);
  CHECK_EQ(uuid[0], 0x6e);
  CHECK_EQ(uuid[15], 0xab);
  CHECK_EQ(uuid_format(uuid, flags, out, sizeof out), VC_OK);
  CHECK_STR(out, text);
  CHECK_EQ(uuid_parse("mig-6E1B0A2C-0f3d-4a5b-8c7d-0123456789AB", uuid, &flags), VC_OK);
  CHECK_EQ(flags, 1);
  CHECK_EQ(uuid_format(uuid, flags, out, sizeof out), VC_OK);
  CHECK_STR(out, "MIG-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab");
  CHECK_EQ(uuid_format(uuid, 0, out, 40), VC_EINVAL);
}

TEST(uuid_parse_refuses) {
  static const char *bad[] = {"", "GPU-", "6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab", "GPU-6e1b0a2c",
                              "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789a", "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789abc",
                              "GPU-6e1b0a2c00f3d-4a5b-8c7d-0123456789ab", "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ag",
                              "GPX-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab", "0"};
  uint8_t uuid[16];
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) CHECK_EQ(uuid_parse(bad[i], uuid, NULL), VC_EINVAL);
}

TEST(texts_are_joined_and_cut) {
  char out[8];
  CHECK_EQ(text_join(out, sizeof out, "/a", "/b", ""), 4);
  CHECK_STR(out, "/a/b");
  CHECK_EQ(text_join(out, sizeof out, "1234", "567", ""), 7);
  CHECK_STR(out, "1234567");
  CHECK_EQ(text_join(out, sizeof out, "1234", "5678", "9"), 9);
  CHECK_STR(out, "1234567");
  CHECK_EQ(text_join(out, 1, "1", "", ""), 1);
  CHECK(out[0] == 0 && out[1] == '2');
  CHECK_EQ(text_join(out, 0, "9", "", ""), 1);
  CHECK(out[0] == 0);
}

TEST(numbers_are_written) {
  char buffer[TEXT_NUMBER];
  CHECK_STR(text_number(0, buffer), "0");
  CHECK_STR(text_number(4194304, buffer), "4194304");
  CHECK_STR(text_number(UINT64_MAX, buffer), "18446744073709551615");
}

/* A process that sleeps may hold locks, and has told other processes that it waits. */
static void *sleeper(void *slept) {
  os_sleep_us(50000);
  *(int *)slept = 1;
  pthread_testcancel();
  return NULL;
}

TEST(a_thread_is_not_cancelled_where_it_sleeps) {
  pthread_t thread;
  int slept = 0;
  CHECK_EQ(pthread_create(&thread, NULL, sleeper, &slept), 0);
  CHECK_EQ(pthread_cancel(thread), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_EQ(slept, 1);
}

TEST(status_names) {
  CHECK_STR(status_name(VC_ECORRUPT), "VC_ECORRUPT");
  CHECK_STR(status_name(0), "VC_OK");
  CHECK_STR(status_name(-9999), "VC_UNKNOWN");
  CHECK(strlen(status_text(VC_EVERSION)) > 10);
}

/* A reader that sees the file at all sees all of it, whatever happens to the writer. */
TEST(publish_is_atomic) {
  static char content[1 << 20];
  memset(content, 'x', sizeof content);
  for (int trial = 0; trial < 200; trial++) {
    const char *path = test_path("file");
    struct stat st;
    unlink(path);
    pid_t pid = fork();
    if (pid == 0) _Exit(os_publish(path, content, sizeof content, sizeof content, 0640) == VC_OK ? 0 : 1);
    usleep((useconds_t)(trial * 5));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (stat(path, &st) == 0) {
      CHECK_EQ(st.st_size, sizeof content);
      CHECK_EQ(st.st_mode & 07777, 0640);
    }
  }
}

TEST(fill_writes_what_reserve_made) {
  struct stat found;
  char start[4] = "";
  const char *path = test_path("file");
  CHECK_EQ(os_fill(path, "one", 3, 8192), VC_ENOENT);
  mode_t before = umask(077);
  CHECK_EQ(os_reserve(path, 8192, 0644), VC_OK);
  umask(before);
  CHECK_EQ(os_reserve(path, 8192, 0644), VC_EEXIST);
  static const size_t totals[] = {8192, 16384, 4096}; /* as it is, longer, shorter */
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(os_fill(path, "one", 3, totals[i]), VC_OK);
    CHECK_EQ(stat(path, &found), 0);
    CHECK_EQ(found.st_size, totals[i]);
    CHECK(found.st_blocks * 512 >= found.st_size);
    CHECK_EQ(found.st_mode & 0777, 0644);
  }
  int fd = open(path, O_RDONLY);
  CHECK_EQ(read(fd, start, 4), 4);
  close(fd);
  CHECK(memcmp(start, "one", 4) == 0);
}

TEST(publish_never_overwrites) {
  const char *path = test_path("file");
  char buffer[3];
  struct os_file file;
  umask(0177); /* the mode asked for counts, not the umask */
  CHECK_EQ(os_publish(path, "one", 3, 3, 0666), VC_OK);
  CHECK_EQ(os_publish(path, "two", 3, 3, 0666), VC_EEXIST);
  CHECK_EQ(os_open(path, 0, &file), VC_OK);
  CHECK_EQ(os_read_all(file.fd, buffer, 3, 0), VC_OK);
  CHECK(memcmp(buffer, "one", 3) == 0);
  struct stat st;
  CHECK_EQ(stat(path, &st), 0);
  CHECK_EQ(st.st_mode & 07777, 0666);
  CHECK_EQ(os_publish(test_path("longer"), "one", 3, 100000, 0600), VC_OK);
  CHECK_EQ(stat(test_path("longer"), &st), 0);
  CHECK_EQ(st.st_size, 100000);
  CHECK(st.st_blocks * 512 >= 100000); /* no holes */
  CHECK_EQ(os_publish(test_path("no/such/directory"), "x", 1, 1, 0600), VC_ENOENT);
  CHECK_EQ(os_open(test_path("missing"), 0, &file), VC_ENOENT);
  CHECK_EQ(os_open(test_directory(), 0, &file), VC_ECORRUPT);
  CHECK_EQ(mkfifo(test_path("fifo"), 0600), 0);
  CHECK_EQ(os_open(test_path("fifo"), 0, &file), VC_ECORRUPT);
}

TEST(lock_owner_and_death) {
  struct os_file file;
  int32_t pid = -1;
  int ready[2];
  char byte;
  CHECK_EQ(os_publish(test_path("file"), "x", 1, 1, 0600), VC_OK);
  CHECK_EQ(os_open(test_path("file"), 1, &file), VC_OK);
  CHECK_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK_EQ(os_lock_try(file.fd, 1000), 1);
    CHECK_EQ(write(ready[1], "r", 1), 1);
    pause();
  }
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  CHECK_EQ(os_lock_owner(file.fd, 1000, &pid), 1);
  CHECK_EQ(pid, child);
  CHECK_EQ(os_lock_try(file.fd, 1000), 0);
  CHECK_EQ(os_lock_owner(file.fd, 1001, &pid), 0);
  CHECK_EQ(os_lock_any(file.fd, 900, 101), 1);
  CHECK_EQ(os_lock_any(file.fd, 900, 100), 0);
  CHECK_EQ(os_lock_any(file.fd, 1001, 5000), 0);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  CHECK_EQ(os_lock_owner(file.fd, 1000, &pid), 0);
  CHECK_EQ(os_lock_try(file.fd, 1000), 1);
}

TEST(descriptor_is_still_the_file) {
  struct os_file file, other;
  CHECK_EQ(os_publish(test_path("file"), "x", 1, 1, 0600), VC_OK);
  CHECK_EQ(os_publish(test_path("other"), "x", 1, 1, 0600), VC_OK);
  CHECK_EQ(os_open(test_path("file"), 1, &file), VC_OK);
  CHECK_EQ(os_open(test_path("other"), 1, &other), VC_OK);
  CHECK_EQ(os_is_file(file.fd, file.device, file.inode), 1);
  CHECK_EQ(dup2(other.fd, file.fd), file.fd);
  CHECK_EQ(os_is_file(file.fd, file.device, file.inode), 0);
  CHECK_EQ(os_is_file(-1, file.device, file.inode), 0);
}

/* What nothing but a mapping keeps: no close() reaches it, no child has it, and it ends with the mapping. */
TEST(hold_is_kept_by_its_mapping) {
  struct os_file file, other;
  void *page;
  int32_t pid = -1;
  CHECK_EQ(os_publish(test_path("file"), "x", 1, 1, 0600), VC_OK);
  CHECK_EQ(os_open(test_path("file"), 1, &other), VC_OK);
  CHECK_EQ(os_open(test_path("file"), 1, &file), VC_OK);
  CHECK_EQ(os_hold_try(file.fd, 1000), 1);
  CHECK_EQ(os_hold_try(file.fd, 1000), 1);
  CHECK_EQ(os_hold_try(other.fd, 1000), 0);
  os_hold_release(file.fd, 1000);
  CHECK_EQ(os_hold_try(other.fd, 1000), 1);
  os_hold_release(other.fd, 1000);
  CHECK_EQ(os_hold_try(file.fd, 1000), 1);
  CHECK_EQ(os_map_hold(file.fd, &page), VC_OK);
  os_close(file.fd);
  if (!os_mapping_keeps(other.fd)) {
    fprintf(stderr, "on this file system a mapping may keep another file\n");
    return;
  }
  pid_t child = fork();
  if (child == 0) { /* it would be a fault to touch the page here */
    CHECK_EQ(madvise(page, OS_HOLD_BYTES, MADV_NORMAL), -1);
    _Exit(0);
  }
  expect_exit(child, 0);
  CHECK_EQ(os_lock_owner(other.fd, 1000, &pid), 1); /* the own process's too, unlike a record lock */
  CHECK_EQ(pid, 0);
  CHECK_EQ(os_hold_try(other.fd, 1000), 0);
  os_unmap(page, OS_HOLD_BYTES);
  CHECK_EQ(os_lock_owner(other.fd, 1000, &pid), 0);
}

TEST(process_name) {
  char name[16];
  prctl(PR_SET_NAME, "a) R 1 (b 2", 0, 0, 0);
  os_process_name(name, sizeof name);
  CHECK_STR(name, "a) R 1 (b 2");
}

static struct timespec shown;

static int shown_clock(int32_t clock, struct timespec *out) {
  CHECK_EQ(clock, CLOCK_MONOTONIC_COARSE);
  *out = shown;
  return 0;
}

/* A stamp is good for differences: it grows over the end of a second too, and a fifth of one is as long as it says. */
TEST(coarse_clock_that_was_given) {
  uint64_t before = os_coarse_ms();
  CHECK(before != 0 && os_coarse_stamp() != 0);
  os_use_clock(shown_clock);
  shown = (struct timespec){7, 999000000};
  uint64_t late = os_coarse_stamp();
  CHECK_EQ(os_coarse_ms(), 7999);
  shown = (struct timespec){8, 1000000};
  CHECK(os_coarse_stamp() > late);
  CHECK_EQ(os_coarse_ms(), 8001);
  late = os_coarse_stamp();
  shown.tv_nsec += 200000000;
  CHECK_EQ(os_coarse_stamp() - late, 200000000);
  os_use_clock(NULL);
  CHECK(os_coarse_ms() >= before);
}

TEST(os_signals_are_blocked_but_for_faults) {
  static const int left[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS, SIGKILL, SIGSTOP, 32, 33};
  uint64_t before, now, again, expected = ~UINT64_C(0);
  for (size_t i = 0; i < sizeof left / sizeof *left; i++) expected &= ~(UINT64_C(1) << (left[i] - 1));
  os_signals_block(&before);
  os_signals_block(&now);
  os_signals_restore(&before);
  CHECK_EQ(now, expected);
  sigset_t fault;
  sigemptyset(&fault);
  sigaddset(&fault, SIGSEGV);
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &fault, NULL), 0);
  os_signals_block(&now);
  os_signals_block(&again);
  os_signals_restore(&before);
  CHECK_EQ(now & UINT64_C(1) << (SIGSEGV - 1), UINT64_C(1) << (SIGSEGV - 1));
  CHECK_EQ(again, expected | UINT64_C(1) << (SIGSEGV - 1));
}
