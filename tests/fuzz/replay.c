/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target without a fuzzer: over every file of its corpus, and over as many mutations of them as asked for.
 * The mutations are the same in every run, so that a failure can be repeated; they are crude where libFuzzer is clever.
 *     replay-TARGET CORPUS MUTATIONS
 * An input that fails is written to TARGET.crash beside the program; replay-TARGET FILE 0 repeats it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

enum { FILES = 256, LARGEST = 16384 };

struct input {
  uint8_t bytes[LARGEST];
  size_t size;
};

static struct input seeds[FILES], current;
static size_t seed_count;
static char crash_path[4096];

void __sanitizer_set_death_callback(void (*callback)(void));

static void save_current(void) {
  int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || write(fd, current.bytes, current.size) < 0) return;
  close(fd);
  fprintf(stderr, "the input was written to %s\n", crash_path);
}

static void on_abort(int signal_number) {
  (void)signal_number;
  save_current();
  _exit(1);
}

static void load(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || seed_count == FILES) {
    fprintf(stderr, "%s cannot be read, or there are more than %d files\n", path, FILES);
    exit(2);
  }
  ssize_t size = read(fd, seeds[seed_count].bytes, LARGEST);
  close(fd);
  seeds[seed_count++].size = size < 0 ? 0 : (size_t)size;
}

static int no_dots(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void load_all(const char *path) {
  struct stat st;
  struct dirent **names;
  if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
    load(path);
    return;
  }
  int count = scandir(path, &names, no_dots, alphasort);
  for (int i = 0; i < count; i++) {
    char file[4096];
    snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
    load(file);
    free(names[i]);
  }
  if (count >= 0) free(names);
}

static uint32_t draw(uint32_t below) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 32) % below;
}

/* Bytes that limits, counts and parsers have opinions about. */
static void put_interesting(uint8_t *at, size_t room) {
  static const uint64_t words[] = {0, 1, 16, 17, 1023, 1024, 1025, 0x7fffffff, 0xffffffff, 1ull << 47, ~0ull, 1ull << 63};
  static const char letters[] = "0129.,=-kKiIgGtTbBmM \tGPU";
  uint64_t word = words[draw(COUNT(words))];
  size_t width = 1u << draw(4);
  if (draw(2) || room < width)
    *at = (uint8_t)letters[draw(sizeof letters - 1)];
  else
    memcpy(at, &word, width);
}

static void mutate_once(void) {
  size_t at = current.size ? draw((uint32_t)current.size) : 0;
  const struct input *other = &seeds[draw((uint32_t)seed_count)];
  switch (draw(current.size ? 7 : 1)) {
    case 0: /* grow */
      if (current.size < LARGEST) current.bytes[current.size++] = (uint8_t)draw(256);
      break;
    case 1:
      current.bytes[at] ^= (uint8_t)(1u << draw(8));
      break;
    case 2:
      current.bytes[at] = (uint8_t)draw(256);
      break;
    case 3:
      put_interesting(current.bytes + at, current.size - at);
      break;
    case 4: /* drop a byte */
      memmove(current.bytes + at, current.bytes + at + 1, current.size - at - 1);
      current.size--;
      break;
    case 5: /* cut off, now and then */
      if (draw(4) == 0) current.size = at;
      break;
    default: /* continue as another seed does */
      if (at < other->size) {
        memcpy(current.bytes + at, other->bytes + at, other->size - at);
        current.size = other->size;
      }
  }
}

/* The input as a block of exactly its size, so that a read beyond it is seen. */
static void run_current(void) {
  uint8_t *copy = malloc(current.size ? current.size : 1);
  REQUIRE(copy != NULL);
  memcpy(copy, current.bytes, current.size);
  LLVMFuzzerTestOneInput(copy, current.size);
  free(copy);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s CORPUS MUTATIONS\n", argv[0]);
    return 2;
  }
  snprintf(crash_path, sizeof crash_path, "%s.crash", argv[0]);
  signal(SIGABRT, on_abort);
  __sanitizer_set_death_callback(save_current);
  load_all(argv[1]);
  long mutations = atol(argv[2]);
  if (seed_count == 0) return 2;
  for (size_t i = 0; i < seed_count; i++) {
    current = seeds[i];
    run_current();
  }
  for (long i = 0; i < mutations; i++) {
    current = seeds[draw((uint32_t)seed_count)];
    for (uint32_t n = 1 + draw(6); n > 0; n--) mutate_once();
    run_current();
  }
  printf("%s: %zu files, %ld mutations\n", strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0], seed_count,
         mutations);
  return 0;
}
