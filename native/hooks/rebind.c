/* SPDX-License-Identifier: Apache-2.0 */
/* See rebind.h. A library fills its variables one by one, right after each look-up: so a look-up is the moment, and it
 * costs a load and a comparison for code that was seen before. Only references of a library to a variable that it
 * defines itself are changed, and only those that lead to a function of ours; they then are what they would be without
 * us.
 * Tests: tests/integration/test_native_variables.py. */
#define _GNU_SOURCE
#include "rebind.h"

#include <sys/auxv.h>
#include <sys/mman.h>

#include "log.h"
#include "names.h"
#include "objects.h"

_Atomic uintptr_t rebind_pages[REBIND_PAGES];

static _Atomic uint64_t checked_at; /* how many objects had ever been loaded at the last check */

#if defined(__x86_64__)
enum { TO_VARIABLE = R_X86_64_GLOB_DAT, TO_ADDRESS = R_X86_64_64 };
#else
enum { TO_VARIABLE = R_AARCH64_GLOB_DAT, TO_ADDRESS = R_AARCH64_ABS64 };
#endif

/* Names that libraries of this kind surely have among theirs. */
static int has_variables(const struct object *object) {
  static const char names[][32] = {"cuInit", "cuMemAlloc_v2", "cuMemAlloc", "nvmlDeviceGetMemoryInfo"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (objects_variable(object, names[i]) != NULL) return 1;
  return 0;
}

static int put(const struct object *object, uintptr_t *slot, uintptr_t value) {
  uintptr_t size = getauxval(AT_PAGESZ), page = (uintptr_t)slot & ~(size - 1);
  int sealed = page >= (object->sealed_begin & ~(size - 1)) && page < (object->sealed_end & ~(size - 1));
  if (sealed && mprotect((void *)page, size, PROT_READ | PROT_WRITE) != 0) return 0;
  __atomic_store_n(slot, value, __ATOMIC_RELAXED);
  if (sealed) mprotect((void *)page, size, PROT_READ);
  return 1;
}

/* 0: it cannot be changed. */
static int mend_reference(const struct object *object, const ElfW(Rela) *reference) {
  uint32_t type = ELF64_R_TYPE(reference->r_info), index = ELF64_R_SYM(reference->r_info);
  const ElfW(Sym) *symbol = &object->symbols[index];
  uintptr_t *slot = (uintptr_t *)(object->base + reference->r_offset), addend = (uintptr_t)reference->r_addend;
  if ((type != TO_VARIABLE && type != TO_ADDRESS) || index == 0) return 1;
  if (symbol->st_shndx == SHN_UNDEF || (symbol->st_info & 0xf) != STT_OBJECT) return 1;
  const struct hook *hook = names_find(object->strings + symbol->st_name);
  if (hook == NULL || __atomic_load_n(slot, __ATOMIC_RELAXED) != (uintptr_t)names_wrapper(hook) + addend) return 1;
  return put(object, slot, object->base + symbol->st_value + addend);
}

static int mend(const struct object *object, uint64_t loaded, void *data) {
  uint64_t *seen = data;
  int whole = 1;
  if (loaded == atomic_load_explicit(&checked_at, memory_order_relaxed)) return 1; /* nothing new */
  *seen = loaded;
  if (object->relocations == NULL || !has_variables(object)) return 0;
  for (size_t i = 0; i < object->relocation_count; i++) whole &= mend_reference(object, &object->relocations[i]);
  if (!whole)
    log_line(LOG_ERROR, "%.200s has variables that are named like driver functions and cannot be given them back: it will "
                        "crash; link it with -Bsymbolic", object->path);
  return 0;
}

/* The code of a library of this kind is checked each time: it may be another copy of it, loaded at the same place. */
void rebind_slowly(const void *caller) {
  uintptr_t page = (uintptr_t)caller >> REBIND_PAGE_BITS;
  struct object object;
  uint64_t seen = 0;
  if (objects_each(mend, &seen) == 0) atomic_store_explicit(&checked_at, seen, memory_order_relaxed);
  if (objects_find_address(caller, &object) && has_variables(&object)) return;
  atomic_store_explicit(&rebind_pages[page % REBIND_PAGES], page, memory_order_relaxed);
}
