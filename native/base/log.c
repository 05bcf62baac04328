/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on stderr, while descriptor 2 is that (stderr.h). The level is VCUDA_LOG: none, error (default), info or
 * debug.
 * Depends on nothing. Tests: tests/native/test_config.c. */
#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stderr.h"

enum { LINE_BYTES = 512, MAX_LINES = 64 };

static _Atomic int level_set = -1;
static _Atomic int lines;

static void write_line(const char *format, va_list args) {
  static const char prefix[] = "vcuda: ";
  char line[LINE_BYTES];
  struct stat unused;
  size_t used = sizeof prefix - 1;
  if (!stderr_is_for_people(&unused)) return;
  memcpy(line, prefix, used);
  int length = vsnprintf(line + used, sizeof line - used - 1, format, args);
  if (length < 0) return;
  used += (size_t)length < sizeof line - used - 1 ? (size_t)length : sizeof line - used - 2;
  line[used++] = '\n';
  for (const char *rest = line; used > 0;) {
    ssize_t written = write(STDERR_FILENO, rest, used);
    if (written <= 0) return;
    rest += written;
    used -= (size_t)written;
  }
}

__attribute__((format(printf, 1, 2))) static void write_always(const char *format, ...) {
  va_list args;
  va_start(args, format);
  write_line(format, args);
  va_end(args);
}

static int level_from_environment(void) {
  static const char *const names[] = {"none", "error", "info", "debug"};
  const char *text = secure_getenv("VCUDA_LOG");
  if (text == NULL || *text == 0) return LOG_ERROR;
  for (int level = LOG_NONE; level <= LOG_DEBUG; level++)
    if (strcmp(text, names[level]) == 0) return level;
  write_always("VCUDA_LOG is \"%.32s\", which is not none, error, info or debug; continuing with error", text);
  return LOG_ERROR;
}

void log_line(enum log_level level, const char *format, ...) {
  int saved = errno, set = atomic_load_explicit(&level_set, memory_order_relaxed);
  va_list args;
  if (set < 0) {
    set = level_from_environment();
    atomic_store_explicit(&level_set, set, memory_order_relaxed);
  }
  if ((int)level <= set && atomic_fetch_add_explicit(&lines, 1, memory_order_relaxed) < MAX_LINES) {
    va_start(args, format);
    write_line(format, args);
    va_end(args);
  }
  errno = saved;
}
