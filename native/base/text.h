/* SPDX-License-Identifier: Apache-2.0 */
/* Text forms of sizes and GPU UUIDs: one parser for environment, command line, agent and library; texts put together.
 * What Python calls too (size_parse, size_usage, text_size, text_exact, uuid_parse, uuid_format) stands in shm_api.h as well.
 * Depends on nothing. Tests: tests/native/test_base.c, tests/unit/vcuda/test_sizes.py. */
#ifndef VC_BASE_TEXT_H
#define VC_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

int size_parse(const char *text, uint64_t *bytes);
const char *size_usage(const char *text);
int uuid_parse(const char *text, uint8_t uuid[16], uint32_t *flags);
int uuid_format(const uint8_t uuid[16], uint32_t flags, char *out, size_t size);

/* A, B and C one after another, cut to SIZE; returns the length that all of it has. What every start needs does without
 * formatted printing, whose first use reads five pages of the C library and two of the stack. */
size_t text_join(char *out, size_t size, const char *a, const char *b, const char *c);

/* BYTES for people, in the largest unit of which they are one: "8 GiB", "7.6 GiB", "922 MiB", "4 KiB". One digit behind
 * the point below 100, unless it is zero. */
enum { TEXT_SIZE = 32 };
const char *text_size(uint64_t bytes, char buffer[TEXT_SIZE]);

/* BYTES to be typed again: "8GiB", "1536MiB". */
const char *text_exact(uint64_t bytes, char buffer[TEXT_SIZE]);

/* NUMBER in decimal, at the end of BUFFER. */
enum { TEXT_NUMBER = 21 };
const char *text_number(uint64_t number, char buffer[TEXT_NUMBER]);

#endif
