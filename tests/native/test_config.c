/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: what VCUDA_MEMORY_LIMIT may say, which page it leads to, and where files are searched. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "config.h"
#include "head.h"
#include "log.h"

static const uint8_t gpus[3][VC_UUID_BYTES] = {{1}, {2}, {3}};

#define UUID_1 "GPU-01000000-0000-0000-0000-000000000000"
#define UUID_9 "GPU-09000000-0000-0000-0000-000000000000"
#define GIB (UINT64_C(1) << 30)

static char why[CONFIG_WHY];

static int parse(const char *text, struct requests *out) {
  why[0] = 0;
  return config_parse_memory(text, out, why);
}

TEST(config_parses_every_form) {
  struct requests w;
  CHECK_EQ(parse("8GiB", &w), VC_OK);
  CHECK_EQ(w.count, 1);
  CHECK_EQ(w.request[0].kind, REQUEST_EVERY_GPU);
  CHECK_EQ(w.request[0].bytes, 8 * GIB);
  CHECK_EQ(config_needs_gpus(&w), 0);
  CHECK_EQ(parse(UUID_1 "=8GiB,2=512MiB", &w), VC_OK);
  CHECK_EQ(w.count, 2);
  CHECK_EQ(w.request[0].kind, REQUEST_UUID);
  CHECK_EQ(w.request[0].uuid[0], 1);
  CHECK_EQ(w.request[1].kind, REQUEST_INDEX);
  CHECK_EQ(w.request[1].index, 2);
  CHECK_EQ(w.request[1].bytes, 512 << 20);
  CHECK_EQ(config_needs_gpus(&w), 1);
  CHECK_EQ(parse("MIG-01000000-0000-0000-0000-000000000000=1GiB", &w), VC_OK);
  CHECK_EQ(w.request[0].flags, VC_GPU_MIG);
}

TEST(config_refuses_everything_else) {
  static const char *const bad[] = {
      "", ",", "0", "-1", "-1GiB", "+1GiB", " 1GiB", "1GiB ", "1 GiB", "8GB", "1e9", "0x100", "unlimited", "1GiB,2GiB",
      "1GiB,0=1GiB", "0=1GiB,", ",0=1GiB", "0=", "=1GiB", "0==1GiB", "0=1GiB=2", "-1=1GiB", "1000=1GiB", "a=1GiB",
      "0=1GiB,0=1GiB", UUID_1 "=1GiB," UUID_1 "=2GiB", "GPU-=1GiB", "GPU-01=1GiB", UUID_1, UUID_1 "=", "200TiB",
      "99999999999999999999", "0.3GiB", "1GiB;2GiB", "8GiB\n"};
  struct requests w;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (parse(bad[i], &w) != VC_EINVAL) fprintf(stderr, "accepted: \"%s\"\n", bad[i]);
    CHECK_EQ(parse(bad[i], &w), VC_EINVAL);
    CHECK(strstr(why, "VCUDA_MEMORY_LIMIT") != NULL);
    CHECK(strstr(why, "8GiB") != NULL); /* the remedy */
  }
}

TEST(config_number_alone) {
  struct requests w;
  CHECK_EQ(parse("8", &w), VC_OK);
  CHECK_EQ(w.request[0].bytes, 8LL << 30);
  CHECK_EQ(parse("0=8,1=1073741824", &w), VC_OK);
  CHECK_EQ(w.request[0].bytes, 8LL << 30);
  CHECK_EQ(w.request[1].bytes, 1LL << 30);
  CHECK_EQ(parse("50000", &w), VC_EINVAL);
  CHECK(strstr(why, "\"50000\" is not a size; write a number with KiB") != NULL);
}

TEST(config_refuses_long_texts) {
  char text[8192] = "0=1GiB";
  struct requests w;
  for (int i = 1; i < 17; i++) sprintf(text + strlen(text), ",%d=1GiB", i);
  CHECK_EQ(parse(text, &w), VC_EINVAL);
  CHECK(strstr(why, "16") != NULL);
  memset(text, '1', sizeof text - 1);
  text[sizeof text - 1] = 0;
  CHECK_EQ(parse(text, &w), VC_EINVAL);
}

TEST(config_resolves) {
  struct vc_gpu_limit out[VC_MAX_GPUS];
  struct requests w;
  parse("8GiB", &w);
  CHECK_EQ(config_resolve(&w, gpus, 3, out, why), 3);
  CHECK_EQ(out[2].uuid[0], 3);
  CHECK_EQ(out[2].memory_bytes, 8 * GIB);
  parse("2=1GiB," UUID_1 "=2GiB", &w);
  CHECK_EQ(config_resolve(&w, gpus, 3, out, why), 2);
  CHECK_EQ(out[0].uuid[0], 3);
  CHECK_EQ(out[1].uuid[0], 1);
  CHECK_EQ(out[1].memory_bytes, 2 * GIB);
}

static void expect_no_entry(const char *text, const char *cause) {
  struct vc_gpu_limit out[VC_MAX_GPUS];
  struct requests w;
  CHECK_EQ(parse(text, &w), VC_OK);
  CHECK_EQ(config_resolve(&w, gpus, 3, out, why), VC_EINVAL);
  if (strstr(why, cause) == NULL) CHECK_STR(why, cause);
}

TEST(config_resolves_only_what_exists) {
  expect_no_entry("3=1GiB", "names GPU 3, but this machine has 3");
  expect_no_entry(UUID_9 "=1GiB", "which this machine does not have");
  expect_no_entry("0=1GiB," UUID_1 "=1GiB", "one GPU twice");
}

static void expect_compare(const char *text, const struct vc_limits *page, int status) {
  struct requests w;
  CHECK_EQ(parse(text, &w), VC_OK);
  why[0] = 0;
  CHECK_EQ(config_compare(&w, gpus, 3, page, "/d/limits", "do this", why), status);
  if (status != VC_OK) CHECK(strstr(why, "/d/limits") != NULL || strstr(why, "machine") != NULL);
}

TEST(config_compares_with_a_page) {
  struct vc_limits page = {.gpu_count = 2};
  page.gpu[0] = (struct vc_gpu_limit){.uuid = {1}, .memory_bytes = GIB};
  page.gpu[1] = (struct vc_gpu_limit){.uuid = {2}, .memory_bytes = 2 * GIB};
  expect_compare("0=1GiB,1=2GiB", &page, VC_OK);
  expect_compare("1=2GiB," UUID_1 "=1GiB", &page, VC_OK);
  expect_compare("1GiB", &page, VC_EINVAL);
  CHECK(strstr(why, " 1GiB, but /d/limits gives it 2GiB; unset VCUDA_MEMORY_LIMIT to join, or do this") != NULL);
  expect_compare("0=1GiB", &page, VC_EINVAL);
  expect_compare("0=1GiB,1=2GiB,2=1GiB", &page, VC_EINVAL);
  expect_compare("0=1GiB,1=3GiB", &page, VC_EINVAL);
  page.gpu[1].memory_bytes = GIB;
  expect_compare("1GiB", &page, VC_OK);
}

static void plain_environment(void) {
  unsetenv("VCUDA_DIR");
  unsetenv("VCUDA_MEMORY_LIMIT");
  unsetenv("VCUDA_QUOTA");
  unsetenv("XDG_RUNTIME_DIR");
}

/* Whether PATH is BASE and the name of a head's quota of this process. */
static int is_head_in(const char *path, const char *base) {
  size_t length = strlen(base);
  uint64_t values;
  int32_t pid;
  return strncmp(path, base, length) == 0 && path[length] == '/' && head_parse(path + length + 1, &pid, &values) &&
         pid == getpid();
}

TEST(config_directories) {
  struct config config, again;
  char base[64];
  if (access("/etc/vcuda/limits", F_OK) == 0) return; /* inside a container of ours the environment is not read */
  plain_environment();
  CHECK_EQ(config_is_present(), 0);
  CHECK_EQ(config_read(&config, why), VC_OK);
  CHECK_EQ(config.kind, CONFIG_INERT);
  setenv("VCUDA_MEMORY_LIMIT", "8GiB", 1);
  CHECK_EQ(config_is_present(), 1);
  CHECK_EQ(config_read(&config, why), VC_OK);
  CHECK_EQ(config.kind, CONFIG_DIRECTORY);
  CHECK_EQ(config.origin, CONFIG_HEAD);
  CHECK_EQ(config.head, getpid());
  CHECK(config.values == config.head_values && config.values != 0);
  snprintf(base, sizeof base, "/tmp/vcuda-%d", (int)geteuid());
  CHECK(is_head_in(config.directory, base));
  CHECK_EQ(config_read(&again, why), VC_OK);
  CHECK_STR(config.directory, again.directory);
  setenv("XDG_RUNTIME_DIR", test_directory(), 1);
  CHECK_EQ(chmod(test_directory(), 0711), 0);
  CHECK_EQ(config_read(&config, why), VC_OK);
  CHECK(is_head_in(config.directory, test_path("vcuda")));
  CHECK_EQ(chmod(test_directory(), 0700), 0);
  CHECK_EQ(config_read(&config, why), VC_OK); /* what root starts may become a user who cannot enter */
  CHECK(is_head_in(config.directory, geteuid() == 0 ? base : test_path("vcuda")));
  setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
  CHECK_EQ(config_read(&config, why), VC_OK);
  CHECK(is_head_in(config.directory, base));
  setenv("VCUDA_DIR", "/some/where", 1);
  CHECK_EQ(config_read(&config, why), VC_OK);
  CHECK_EQ(config.origin, CONFIG_GIVEN);
  CHECK_STR(config.limits, "/some/where/limits");
  CHECK_STR(config.ledger, "/some/where/ledger");
  setenv("VCUDA_DIR", "", 1);
  CHECK_EQ(config_read(&config, why), VC_EINVAL);
}

static void read_with(const char *directory, const char *quota, struct config *out, int status) {
  if (directory != NULL) setenv("VCUDA_DIR", directory, 1);
  else unsetenv("VCUDA_DIR");
  if (quota != NULL) setenv("VCUDA_QUOTA", quota, 1);
  else unsetenv("VCUDA_QUOTA");
  CHECK_EQ(config_read(out, why), status);
}

#define HEAD_1 "env-1-0123456789abcdef01234567-0123456789abcdef"

TEST(config_quotas_by_name) {
  static const char *const wrong[] = {"", "a/b", "../x", "a b", "ä", "a=b", "a\n",
                                      "12345678901234567890123456789012345678901234567890123456789012345"};
  struct config config;
  char expected[64];
  if (access("/etc/vcuda/limits", F_OK) == 0) return;
  plain_environment();
  setenv("VCUDA_QUOTA", "nb-1._", 1);
  CHECK_EQ(config_is_present(), 1);
  read_with(NULL, "nb-1._", &config, VC_OK);
  CHECK_EQ(config.kind, CONFIG_DIRECTORY);
  CHECK_EQ(config.origin, CONFIG_NAMED);
  snprintf(expected, sizeof expected, "/tmp/vcuda-%d/quota-nb-1._", (int)geteuid());
  CHECK_STR(config.directory, expected);
  /* It goes before what was inherited, and not before what was named. */
  read_with("/r/vcuda/" HEAD_1, "nb-1._", &config, VC_OK);
  CHECK_STR(config.directory, expected);
  read_with("/r/vcuda/run-17-0123456789abcdef01234567", "nb-1._", &config, VC_OK);
  CHECK_STR(config.directory, expected);
  read_with("/some/where", "nb-1._", &config, VC_EINVAL);
  CHECK(strstr(why, "unset one") != NULL);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    read_with(NULL, wrong[i], &config, VC_EINVAL);
    CHECK(strstr(why, "VCUDA_QUOTA") != NULL);
  }
}

/* A quota that cannot be made where its head has named it is made among this user's, under the same name. */
TEST(config_quotas_of_another_user) {
  struct config config;
  char own[CONFIG_PATH];
  if (access("/etc/vcuda/limits", F_OK) == 0) return;
  plain_environment();
  setenv("VCUDA_MEMORY_LIMIT", "8GiB", 1);
  snprintf(own, sizeof own, "/tmp/vcuda-%d/" HEAD_1, (int)geteuid());
  read_with(own, NULL, &config, VC_OK);
  CHECK_STR(config.directory, own);
  CHECK_EQ(config.origin, CONFIG_HEAD);
  CHECK_EQ(config.head, 1);
  CHECK(config.head_values == UINT64_C(0x0123456789abcdef));
  read_with("/proc/vcuda/" HEAD_1, NULL, &config, VC_OK); /* no directory of anybody's */
  CHECK_STR(config.directory, geteuid() == 0 ? "/proc/vcuda/" HEAD_1 : own);
  read_with("/tmp/vcuda-4000000/" HEAD_1, NULL, &config, VC_OK); /* anybody could make that in /tmp */
  CHECK_STR(config.directory, own);
  read_with(test_path("vcuda/" HEAD_1), NULL, &config, VC_OK);
  CHECK_STR(config.directory, test_path("vcuda/" HEAD_1));
  CHECK_EQ(mkdir(test_path("vcuda"), 0700), 0);
  read_with(test_path("vcuda/" HEAD_1), NULL, &config, VC_OK);
  CHECK_STR(config.directory, test_path("vcuda/" HEAD_1));
  if (geteuid() != 0) return;
  CHECK_EQ(chown(test_path("vcuda"), 4000000, 0), 0);
  read_with(test_path("vcuda/" HEAD_1), NULL, &config, VC_OK);
  CHECK_STR(config.directory, own);
  CHECK_EQ(mkdir(test_path("vcuda/" HEAD_1), 0700), 0); /* it is there: joined */
  read_with(test_path("vcuda/" HEAD_1), NULL, &config, VC_OK);
  CHECK_STR(config.directory, test_path("vcuda/" HEAD_1));
}

/* Every variable named like a limit is one, or an error. */
TEST(config_variables_alone_and_misspelt) {
  static const char *const wrong[] = {"VCUDA_CORES", "VCUDA_PHYSICAL_LIMIT", "VCUDA_MEMORY", "VCUDA_MEMORY_LIMITS",
                                      "VCUDA_MEM_LIMIT", "VCUDA_", "VCUDA_CORE", "VCUDA_LOGS", "VCUDA_PHYSICAL"};
  static const char *const foreign[] = {"VCUDA_SERVICE_HOST", "VCUDA_SERVICE_PORT_HTTP", "VCUDA_PORT",
                                        "VCUDA_PORT_80_TCP_ADDR", "VCUDA_LOG", "VCUDA", "XVCUDA_MEMORY", "vcuda_cores"};
  struct config config;
  if (access("/etc/vcuda/limits", F_OK) == 0) return;
  plain_environment();
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    setenv(wrong[i], "30", 1);
    CHECK_EQ(config_is_present(), 1);
    CHECK_EQ(config_read(&config, why), VC_EINVAL);
    CHECK(strstr(why, wrong[i]) != NULL);
    setenv("VCUDA_DIR", "/some/where", 1);
    CHECK_EQ(config_read(&config, why), VC_EINVAL);
    unsetenv("VCUDA_DIR");
    unsetenv(wrong[i]);
  }
  for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
    setenv(foreign[i], "info_SERVICE_", 1);
    CHECK_EQ(config_is_present(), 0);
    unsetenv(foreign[i]);
  }
  setenv("VCUDA_TYPO", "a_PORT", 1); /* what is in a value is no part of the name */
  CHECK_EQ(config_is_present(), 1);
  unsetenv("VCUDA_TYPO");
}

/* What a child wrote to stderr under VCUDA_LOG=LEVEL. */
static size_t logged(const char *level, int lines, char *out, size_t size) {
  int pipes[2];
  CHECK_EQ(pipe(pipes), 0);
  int pid = fork();
  if (pid == 0) {
    setenv("VCUDA_LOG", level, 1);
    dup2(pipes[1], STDERR_FILENO);
    close(pipes[0]);
    close(pipes[1]);
    for (int i = 0; i < lines; i++) log_line(LOG_ERROR, "%s %d", "error", i);
    log_line(LOG_INFO, "info");
    log_line(LOG_ERROR, "%0600d", 1);
    _exit(0);
  }
  close(pipes[1]);
  size_t used = 0;
  ssize_t got;
  while ((got = read(pipes[0], out + used, size - 1 - used)) > 0) used += (size_t)got;
  close(pipes[0]);
  out[used] = 0;
  expect_exit(pid, 0);
  return used;
}

static int count_lines(const char *text) {
  int lines = 0;
  for (; *text != 0; text++) lines += *text == '\n';
  return lines;
}

TEST(log_levels_and_cap) {
  static char text[65536];
  CHECK_EQ(logged("none", 3, text, sizeof text), 0);
  logged("error", 1, text, sizeof text);
  CHECK(strncmp(text, "vcuda: error 0\nvcuda: 0000", 26) == 0);
  CHECK_EQ(count_lines(text), 2);
  CHECK_EQ(text[strlen(text) - 1], '\n');
  logged("info", 1, text, sizeof text);
  CHECK_EQ(count_lines(text), 3);
  logged("nonsense", 0, text, sizeof text);
  CHECK(strstr(text, "VCUDA_LOG is \"nonsense\"") != NULL);
  logged("error", 1000, text, sizeof text);
  CHECK_EQ(count_lines(text), 64);
}
