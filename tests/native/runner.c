/* SPDX-License-Identifier: Apache-2.0 */
/* Runs native tests: all of them, or those named on the command line; `--list` prints the names, `--jobs N` before the
 * names runs N at a time. Every test runs in a child process of its own session with a time limit, so that one that
 * crashes or hangs fails alone and leaves nothing behind. VC_TEST_TIMEOUT multiplies the limits (sanitizers, slow
 * machines). */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static const struct {
  const char *name;
  void (*run)(void);
  int seconds;
} tests[] = {
#define TEST_ENTRY(name, seconds) {#name, test_##name, seconds},
#include "test_list.h"
#undef TEST_ENTRY
};

enum { TEST_COUNT = sizeof tests / sizeof tests[0] };

static char directory[128];

const char *test_directory(void) { return directory; }

const char *test_path(const char *name) {
  static char paths[4][256];
  static unsigned next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", directory, name);
  return path;
}

void expect_exit(int pid, int code) {
  int status = 0;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  CHECK_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), code);
}

static void remove_directory(const char *path) {
  DIR *dir = opendir(path);
  struct dirent *entry;
  while (dir && (entry = readdir(dir)) != NULL) {
    char child[512];
    snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && unlink(child) != 0)
      remove_directory(child);
  }
  if (dir) closedir(dir);
  rmdir(path);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int wait_until(pid_t pid, double deadline, int *status) {
  while (now() < deadline) {
    if (waitpid(pid, status, WNOHANG) == pid) return 1;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  return 0;
}

static int run_test(int index) {
  const char *factor = getenv("VC_TEST_TIMEOUT");
  double start = now(), limit = tests[index].seconds * (factor ? atof(factor) : 1.0);
  int status = 0;
  snprintf(directory, sizeof directory, "%s/vc-test-%d-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid(),
           index);
  mkdir(directory, 0700);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    setsid();
    tests[index].run();
    exit(0); /* not _Exit: the leak checker of a sanitizer build runs here */
  }
  int ended = wait_until(pid, start + limit, &status);
  kill(-pid, SIGKILL); /* and whatever it started */
  if (!ended) waitpid(pid, &status, 0);
  remove_directory(directory);
  int passed = ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (passed)
    printf("ok   %-40s %6.2f s\n", tests[index].name, now() - start);
  else if (!ended)
    printf("FAIL %-40s did not end within %.0f s\n", tests[index].name, limit);
  else if (WIFSIGNALED(status))
    printf("FAIL %-40s killed by signal %d\n", tests[index].name, WTERMSIG(status));
  else
    printf("FAIL %-40s exit %d\n", tests[index].name, WEXITSTATUS(status));
  fflush(stdout);
  return passed;
}

static int find_test(const char *name) {
  for (int i = 0; i < TEST_COUNT; i++)
    if (strcmp(tests[i].name, name) == 0) return i;
  return -1;
}

struct tally {
  atomic_int next, passed;
};

/* Takes one test after the other until none is left. */
static void work(struct tally *tally, char **names, int count) {
  for (int i; (i = atomic_fetch_add(&tally->next, 1)) < count;)
    if (run_test(names ? find_test(names[i]) : i)) atomic_fetch_add(&tally->passed, 1);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "--list") == 0) {
    for (int i = 0; i < TEST_COUNT; i++) puts(tests[i].name);
    return 0;
  }
  int parallel = argc > 2 && strcmp(argv[1], "--jobs") == 0, jobs = parallel ? atoi(argv[2]) : 1;
  char **names = argv + (parallel ? 3 : 1);
  int named = (int)(argv + argc - names), count = named ? named : TEST_COUNT;
  for (int i = 0; i < named; i++) {
    if (find_test(names[i]) < 0) {
      fprintf(stderr, "no test is called %s; --list prints the names\n", names[i]);
      return 2;
    }
  }
  struct tally *tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (tally == MAP_FAILED) return 2;
  for (int i = 1; i < jobs; i++) {
    fflush(NULL);
    if (fork() == 0) {
      work(tally, named ? names : NULL, count);
      _exit(0);
    }
  }
  work(tally, named ? names : NULL, count);
  while (wait(NULL) > 0) {
  }
  int passed = tally->passed, failed = count - passed; /* of a job that died, too */
  printf("native: %d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
