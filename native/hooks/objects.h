/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the objects that the dynamic loader has mapped, without calling it: dlsym cannot be asked where dlsym is.
 * Uses no hook, allocates nothing, works before constructors have run.
 * Tests: tests/integration/test_native_lookup.py. */
#ifndef VC_HOOKS_OBJECTS_H
#define VC_HOOKS_OBJECTS_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct object {
  uintptr_t base;
  uintptr_t begin, end; /* its memory, from the first segment to the last */
  const char *path;   /* as the loader has it; "" for the main program */
  const char *soname; /* "" when it has none */
  const ElfW(Sym) *symbols;
  const char *strings;
  size_t strings_size; /* bytes */
  const uint32_t *gnu_hash; /* at least one of the two tables is there in any object that exports something */
  const uint32_t *sysv_hash;
  const ElfW(Rela) *relocations; /* but those of calls */
  size_t relocation_count;
  uintptr_t sealed_begin, sealed_end; /* what the loader has made read-only since; both 0: nothing */
};

/* The first loaded object with this DT_SONAME; 0: not loaded. */
int objects_find_soname(const char *soname, struct object *out);
/* The same for an object that the program was started with, without a call to the C library: some sanitizers have a
 * dl_iterate_phdr of their own that does not work before they have started. Its memory is not measured. */
int objects_find_initial(const char *soname, struct object *out);
/* The loaded object that ADDRESS lies in; 0: none. */
int objects_find_address(const void *address, struct object *out);
/* Whether a search that starts behind the object of FROM meets the object of TO before any other one that defines the
 * function. Objects are searched in the order in which they were loaded. */
int objects_next_is(const void *from, const void *to, const char *function);
/* Address of a function that the object defines (any version of it), or NULL. */
void *objects_function(const struct object *object, const char *name);
/* Address of a variable that the object defines, or NULL. */
void *objects_variable(const struct object *object, const char *name);

/* Every loaded object, while no other one is loaded. LOADED: how many there ever were. The first answer other than 0
 * ends it and is returned. */
typedef int objects_visit(const struct object *object, uint64_t loaded, void *data);
int objects_each(objects_visit *visit, void *data);

#endif
