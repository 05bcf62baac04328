/* SPDX-License-Identifier: Apache-2.0 */
/* The environment is changed before main and never again: the program has one thread then, and nothing that it has found
 * in its environment changes. Not by setenv(): some programs have one of their own (bash), which may not be
 * called before they have started, and the C library's allocates memory. A new array takes the place of the old one; a
 * program that changes its environment later copies that, as it would have copied the old one.
 *
 * Go's runtime reads the array that the kernel laid down on the stack, where there is no room for one entry more. There
 * VCUDA_DIR takes the place of "_", by which shells tell a program its own path, where a shell has set it.
 * Tests: tests/native/test_head.c, tests/integration/test_native_heads.py,
 * test_native_head_children.py. */
#define _GNU_SOURCE
#include "head.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"
#include "place.h"
#include "quota.h"
#include "text.h"

/* A page of its own for what few processes write. */
static VC_LARGE char entry[CONFIG_PATH + 16];
enum { VARIABLE = 10 /* "VCUDA_DIR=" */ };

/* The PID and the first 32 random bits, the other 64; 0: not chosen yet. Threads that are first at the same time agree. */
static _Atomic uint64_t chosen[2];

static int choose(_Atomic uint64_t *word, uint64_t value) {
  uint64_t none = 0;
  atomic_compare_exchange_strong(word, &none, value != 0 ? value : 1);
  return VC_OK;
}

static void hexadecimal(char *out, uint64_t number, int digits) {
  static const char hex[] = "0123456789abcdef";
  for (int i = 0; i < digits; i++) out[i] = hex[number >> 4 * (digits - 1 - i) & 15];
  out[digits] = 0;
}

int head_name(uint64_t values, char out[HEAD_NAME]) {
  char random[24 + 1], sum[1 + 16 + 1] = "-", begin[8 + TEXT_NUMBER], number[TEXT_NUMBER];
  uint64_t fresh[2];
  if (atomic_load(&chosen[1]) == 0) {
    if (syscall(SYS_getrandom, fresh, sizeof fresh, 0) != (long)sizeof fresh) return VC_ENOSYS;
    choose(&chosen[0], (uint64_t)(uint32_t)os_pid() << 32 | (fresh[0] & UINT32_MAX));
    choose(&chosen[1], fresh[1]);
  }
  hexadecimal(random, atomic_load(&chosen[0]) & UINT32_MAX, 8);
  hexadecimal(random + 8, atomic_load(&chosen[1]), 16);
  hexadecimal(sum + 1, values, 16);
  text_join(begin, sizeof begin, QUOTA_HEAD, text_number(atomic_load(&chosen[0]) >> 32, number), "-");
  text_join(out, HEAD_NAME, begin, random, sum);
  return VC_OK;
}

static uint64_t add_number(uint64_t sum, uint64_t number) { return checksum_add(sum, &number, sizeof number); }

uint64_t head_values(const char *memory, const char *physical, const char *cores) {
  struct requests requests;
  char why[CONFIG_WHY];
  if (memory == NULL || config_parse_memory(memory, &requests, why) != VC_OK) return 0;
  if (physical != NULL && config_parse_physical(physical, &requests, why) != VC_OK) return 0;
  if (cores != NULL && config_parse_cores(cores, &requests, why) != VC_OK) return 0;
  uint64_t sum = CHECKSUM_START;
  for (uint32_t i = 0; i < requests.count; i++) {
    const struct request *request = &requests.request[i];
    sum = add_number(add_number(sum, (uint64_t)request->kind), request->flags);
    sum = add_number(checksum_add(sum, request->uuid, sizeof request->uuid), request->index);
    sum = add_number(add_number(add_number(sum, request->bytes), request->physical), request->cores);
  }
  return sum;
}

static const char *digits(const char *text, unsigned int base, uint64_t *number) {
  for (*number = 0;; text++) {
    unsigned int digit = *text >= '0' && *text <= '9'   ? (unsigned int)(*text - '0')
                         : *text >= 'a' && *text <= 'f' ? (unsigned int)(*text - 'a' + 10)
                                                        : base;
    if (digit >= base) return text;
    *number = *number * base + digit;
  }
}

int head_parse(const char *name, int32_t *pid, uint64_t *values) {
  uint64_t number, random;
  if (strncmp(name, QUOTA_HEAD, sizeof QUOTA_HEAD - 1) != 0) return 0;
  const char *begin = name + sizeof QUOTA_HEAD - 1, *end = digits(begin, 10, &number);
  if (end == begin || end - begin > 10 || number == 0 || number > INT32_MAX || *end != '-') return 0;
  begin = end + 1;
  end = digits(begin, 16, &random);
  if (end - begin != 24 || *end != '-') return 0;
  begin = end + 1;
  end = digits(begin, 16, values);
  if (end - begin != 16 || *end != 0) return 0;
  *pid = (int32_t)number;
  return 1;
}

const char *head_published(void) { return entry[0] != 0 ? entry + VARIABLE : NULL; }

static char **copy_of(char **environment, size_t count) {
  long address = syscall(SYS_mmap, NULL, (count + 2) * sizeof *environment, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
  if (address == -1) return NULL;
  char **copy = (char **)address;
  for (size_t i = 0; i < count; i++) copy[i] = environment[i];
  return copy;
}

void head_publish(const char *base, const char *name, char **block) {
  char path[CONFIG_PATH + HEAD_NAME];
  size_t count = 0;
  if (text_join(path, sizeof path, base, "/", name) >= CONFIG_PATH - 8) return;
  while (environ != NULL && environ[count] != NULL) count++;
  char **larger = copy_of(environ, count);
  if (larger == NULL) return;
  text_join(entry, sizeof entry, "VCUDA_DIR=", path, "");
  larger[count] = entry;
  environ = larger;
  for (; block != NULL && *block != NULL; block++)
    if ((*block)[0] == '_' && (*block)[1] == '=') *block = entry;
}
