/* SPDX-License-Identifier: Apache-2.0 */
/* Where variables lie. A page that is written for the first time costs a process a microsecond or more, so the few
 * words that every start writes lie together, apart from the tables that few programs fill.
 * Depends on nothing. Tests: tests/integration/test_native_exports.py. */
#ifndef VC_BASE_PLACE_H
#define VC_BASE_PLACE_H

/* A static table of kilobytes, all zero at first. */
#define VC_LARGE __attribute__((section(".bss.large")))

/* What is written when the library is loaded, in every process: behind the small variables, on their last page. */
#define VC_AT_LOAD __attribute__((section(".bss.at_load")))

/* A large table whose beginning every start writes: it follows the small variables, and begins on their last page. The
 * linker puts these sections in the order of their names. */
#define VC_LARGE_BEGINNING __attribute__((section(".bss.beginning")))

#endif
