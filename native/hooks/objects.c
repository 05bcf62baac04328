/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded objects and their dynamic symbols, read from the program headers that dl_iterate_phdr reports.
 * Uses no hook. Tests: tests/integration/test_native_lookup.py. */
#define _GNU_SOURCE
#include "objects.h"

#include <stddef.h>

#include "plain.h"

struct search {
  const char *soname;
  uintptr_t address;
  struct object *out;
};

/* glibc adds the load address to pointers of the dynamic section in place, other loaders and the vDSO do not. */
static const void *dynamic_pointer(const struct dl_phdr_info *info, uintptr_t value) {
  return (const void *)(value < info->dlpi_addr ? value + info->dlpi_addr : value);
}

static int read_dynamic(const struct dl_phdr_info *info, const ElfW(Dyn) *dynamic, struct object *out) {
  uintptr_t soname = 0;
  *out = (struct object){0};
  out->base = info->dlpi_addr;
  out->path = info->dlpi_name != NULL ? info->dlpi_name : "";
  out->soname = "";
  for (; dynamic->d_tag != DT_NULL; dynamic++) {
    uintptr_t value = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) out->symbols = dynamic_pointer(info, value);
    if (dynamic->d_tag == DT_STRTAB) out->strings = dynamic_pointer(info, value);
    if (dynamic->d_tag == DT_STRSZ) out->strings_size = value;
    if (dynamic->d_tag == DT_GNU_HASH) out->gnu_hash = dynamic_pointer(info, value);
    if (dynamic->d_tag == DT_HASH) out->sysv_hash = dynamic_pointer(info, value);
    if (dynamic->d_tag == DT_RELA) out->relocations = dynamic_pointer(info, value);
    if (dynamic->d_tag == DT_RELASZ) out->relocation_count = value / sizeof(ElfW(Rela));
    if (dynamic->d_tag == DT_SONAME) soname = value;
  }
  if (out->symbols == NULL || out->strings == NULL) return 0;
  if (soname != 0) out->soname = out->strings + soname;
  return 1;
}

static void measure(const struct dl_phdr_info *info, struct object *out) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type == PT_GNU_RELRO) {
      out->sealed_begin = info->dlpi_addr + segment->p_vaddr;
      out->sealed_end = out->sealed_begin + segment->p_memsz;
    }
    if (segment->p_type != PT_LOAD) continue; /* they come in the order of their addresses */
    if (out->begin == 0) out->begin = info->dlpi_addr + segment->p_vaddr;
    out->end = info->dlpi_addr + segment->p_vaddr + segment->p_memsz;
  }
}

static int contains(const struct dl_phdr_info *info, uintptr_t address) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type == PT_LOAD && address - info->dlpi_addr - segment->p_vaddr < segment->p_memsz) return 1;
  }
  return 0;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
  struct search *search = data;
  struct object object;
  (void)size;
  if (search->address != 0 && !contains(info, search->address)) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    if (!read_dynamic(info, (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), &object)) return 0;
    if (search->soname != NULL && !plain_same(object.soname, search->soname)) return 0;
    measure(info, &object);
    *search->out = object;
    return 1;
  }
  return 0;
}

int objects_find_soname(const char *soname, struct object *out) {
  struct search search = {.soname = soname, .out = out};
  return dl_iterate_phdr(visit, &search);
}

/* Walks the loader's own list. What was there when the program started comes first in it and never goes. */
int objects_find_initial(const char *soname, struct object *out) {
  for (const struct link_map *map = _r_debug.r_map; map != NULL; map = map->l_next) {
    const struct dl_phdr_info info = {.dlpi_addr = map->l_addr, .dlpi_name = map->l_name};
    if (map->l_ld != NULL && read_dynamic(&info, map->l_ld, out) && plain_same(out->soname, soname)) return 1;
  }
  return 0;
}

int objects_find_address(const void *address, struct object *out) {
  struct search search = {.address = (uintptr_t)address, .out = out};
  return address != NULL && dl_iterate_phdr(visit, &search);
}

struct tour {
  objects_visit *visit;
  void *data;
};

static int tour_on(struct dl_phdr_info *info, size_t size, void *data) {
  const struct tour *tour = data;
  struct object object;
  struct search any = {.out = &object};
  return visit(info, size, &any) ? tour->visit(&object, info->dlpi_adds, tour->data) : 0;
}

int objects_each(objects_visit *visit_one, void *data) {
  struct tour tour = {visit_one, data};
  return dl_iterate_phdr(tour_on, &tour);
}

struct walk {
  uintptr_t from, to;
  const char *function;
  int started, reached;
};

static int walk_on(struct dl_phdr_info *info, size_t size, void *data) {
  struct walk *walk = data;
  struct object object;
  struct search any = {.out = &object};
  if (!walk->started) {
    walk->started = contains(info, walk->from);
    return contains(info, walk->to); /* TO comes first: never reached */
  }
  walk->reached = contains(info, walk->to);
  return walk->reached || (visit(info, size, &any) && objects_function(&object, walk->function) != NULL);
}

int objects_next_is(const void *from, const void *to, const char *function) {
  struct walk walk = {.from = (uintptr_t)from, .to = (uintptr_t)to, .function = function};
  dl_iterate_phdr(walk_on, &walk);
  return walk.reached;
}

/* What is searched. */
struct name {
  const char *text;
  size_t length;
  uint32_t hash; /* as DT_GNU_HASH has it */
  int variable;  /* a variable of this name is searched, else a function */
};

static void *symbol_if(const struct object *object, uint32_t index, const struct name *name) {
  const ElfW(Sym) *symbol = &object->symbols[index];
  if (symbol->st_shndx == SHN_UNDEF || (symbol->st_info & 0xf) != (name->variable ? STT_OBJECT : STT_FUNC)) return NULL;
  if (symbol->st_name + name->length >= object->strings_size) return NULL;
  if (!plain_same_bytes(object->strings + symbol->st_name, name->text, name->length + 1)) return NULL;
  return (void *)(object->base + symbol->st_value);
}

/* The table: bucket count, first hashed symbol, words and shift of a Bloom filter; filter; buckets; chains, whose
 * entries are hashes with the low bit set on the last one of a bucket. */
static void *find_gnu(const struct object *object, const struct name *name) {
  const uint32_t *table = object->gnu_hash;
  const uint32_t *buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chains = buckets + table[0];
  if (table[0] == 0) return NULL;
  uint32_t index = buckets[name->hash % table[0]];
  if (index < table[1]) return NULL;
  for (;; index++) {
    uint32_t chained = chains[index - table[1]];
    void *found = ((chained ^ name->hash) >> 1) == 0 ? symbol_if(object, index, name) : NULL;
    if (found != NULL) return found;
    if (chained & 1) return NULL;
  }
}

static void *find_sysv(const struct object *object, const struct name *name) {
  uint32_t symbol_count = object->sysv_hash[1];
  for (uint32_t index = 1; index < symbol_count; index++) {
    void *found = symbol_if(object, index, name);
    if (found != NULL) return found;
  }
  return NULL;
}

static void *find(const struct object *object, const char *text, int variable) {
  struct name name = {.text = text, .hash = 5381, .variable = variable};
  for (; text[name.length] != 0; name.length++) name.hash = name.hash * 33 + (unsigned char)text[name.length];
  if (object->gnu_hash != NULL) return find_gnu(object, &name);
  return object->sysv_hash != NULL ? find_sysv(object, &name) : NULL;
}

void *objects_function(const struct object *object, const char *text) { return find(object, text, 0); }

void *objects_variable(const struct object *object, const char *text) { return find(object, text, 1); }
