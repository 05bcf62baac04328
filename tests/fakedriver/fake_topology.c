/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the matrix that `nvidia-smi topo -m` prints.
 * Must not depend on files, processes or the driver's interfaces.
 * Tests: tests/unit/fakedriver/test_topology_text.py. */
#include "fake_machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const level_names[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};

const char *machine_level_name(unsigned level) {
  return level < sizeof level_names / sizeof *level_names ? level_names[level] : "?";
}

/* A terminal underlines the header with escape sequences, and a paste keeps them. */
static void strip_escapes(const char *line, char *out, size_t size) {
  size_t used = 0;
  for (const char *at = line; *at && used + 1 < size; at++) {
    if (*at != '\033') {
      out[used++] = *at;
      continue;
    }
    while (at[1] && !isalpha((unsigned char)at[1])) at++;
    if (at[1]) at++;
  }
  out[used] = '\0';
}

static int parse_index(const char *token, const char *prefix) {
  size_t length = strlen(prefix);
  if (strncmp(token, prefix, length) != 0 || !isdigit((unsigned char)token[length])) return -1;
  char *end;
  long value = strtol(token + length, &end, 10);
  return *end || value > 1023 ? -1 : (int)value;
}

static int header_line(struct fake_topology *t, char *line, char error[FAKE_TEXT]) {
  int gpus = 0;
  char *rest = NULL;
  for (char *token = strtok_r(line, " \t\r\n", &rest); token; token = strtok_r(NULL, " \t\r\n", &rest)) {
    if (!strcmp(token, "CPU") || !strcmp(token, "NUMA")) break; /* "CPU Affinity  NUMA Affinity  GPU NUMA ID" */
    int gpu = parse_index(token, "GPU");
    if (gpu >= 0 && gpu != gpus) {
      snprintf(error, FAKE_TEXT, "column %s where GPU%d should be", token, gpus);
      return -1;
    }
    if (gpu >= FAKE_MAX_GPUS || t->columns == 64) {
      snprintf(error, FAKE_TEXT, "more than %d GPUs (or 64 columns)", FAKE_MAX_GPUS);
      return -1;
    }
    if (gpu >= 0) gpus++;
    t->column_gpu[t->columns++] = gpu;
  }
  if (gpus == 0) {
    snprintf(error, FAKE_TEXT, "the matrix must begin with a header line GPU0 GPU1 ...");
    return -1;
  }
  return 0;
}

static int parse_cell(struct fake_topology *t, int row, int column, const char *cell, char error[FAKE_TEXT]) {
  int links = parse_index(cell, "NV");
  unsigned level = 0;
  while (level < 6 && strcmp(cell, level_names[level]) != 0) level++;
  if (links > FAKE_MAX_LINKS || (level == 6 && links <= 0) || (t->pcie && links > 0)) {
    snprintf(error, FAKE_TEXT, "GPU%d to GPU%d: \"%s\" is none of X SYS NODE PHB PXB PIX%s", row, column, cell,
             t->pcie ? "" : " NV1..NV18");
    return -1;
  }
  if ((row == column) != (links <= 0 && level == FAKE_LEVEL_SELF)) {
    snprintf(error, FAKE_TEXT, "GPU%d to GPU%d: \"%s\", but X marks a GPU itself and nothing else", row, column, cell);
    return -1;
  }
  t->links[row][column] = links > 0 ? (uint8_t)links : 0;
  t->level[row][column] = links > 0 ? FAKE_LEVEL_SYS : (uint8_t)level;
  return 0;
}

int machine_parse_cpus(const char *text, uint64_t cpus[4]) {
  uint64_t bits[4] = {0};
  for (const char *at = text;;) {
    char *end;
    if (!isdigit((unsigned char)*at)) return -1;
    unsigned long first = strtoul(at, &end, 10), last = first;
    if (*end == '-') {
      if (!isdigit((unsigned char)end[1])) return -1;
      last = strtoul(end + 1, &end, 10);
    }
    if (last < first || last > 255) return -1;
    for (unsigned long cpu = first; cpu <= last; cpu++) bits[cpu / 64] |= 1ull << (cpu % 64);
    if (!*end) break;
    if (*end != ',') return -1;
    at = end + 1;
  }
  memcpy(cpus, bits, sizeof bits);
  return 0;
}

/* "1", "N/A", or a list such as "0-1", of which the first counts. */
static int parse_node(const char *token, int row, int32_t *out, char error[FAKE_TEXT]) {
  char *end;
  if (!strcmp(token, "N/A")) return 0;
  long node = strtol(token, &end, 10);
  if (end == token || (*end && *end != '-' && *end != ',') || node < 0 || node > 1023) {
    snprintf(error, FAKE_TEXT, "row GPU%d: \"%s\" is not a NUMA node", row, token);
    return -1;
  }
  *out = (int32_t)node;
  return 0;
}

static int row_line(struct fake_topology *t, int row, char *rest, char error[FAKE_TEXT]) {
  char *save = NULL;
  int column = 0;
  char *token = strtok_r(rest, " \t\r\n", &save);
  for (; token && column < t->columns; token = strtok_r(NULL, " \t\r\n", &save), column++)
    if (t->column_gpu[column] >= 0 && parse_cell(t, row, t->column_gpu[column], token, error)) return -1;
  if (column < t->columns) {
    snprintf(error, FAKE_TEXT, "row GPU%d has %d cells, the header has %d columns", row, column, t->columns);
    return -1;
  }
  if (token && strcmp(token, "N/A") != 0 && machine_parse_cpus(token, t->cpus[row])) {
    snprintf(error, FAKE_TEXT, "row GPU%d: \"%s\" is not a CPU list such as 0-31,64-95 (of CPUs 0-255)", row, token);
    return -1;
  }
  t->numa[row] = t->gpu_numa[row] = -1;
  if (token && (token = strtok_r(NULL, " \t\r\n", &save)) && parse_node(token, row, &t->numa[row], error)) return -1;
  if (token && (token = strtok_r(NULL, " \t\r\n", &save)) && parse_node(token, row, &t->gpu_numa[row], error))
    return -1;
  t->seen[row] = 1;
  t->rows++;
  return 0;
}

int topology_line(struct fake_topology *t, const char *text, char error[FAKE_TEXT]) {
  char line[2048];
  strip_escapes(text, line, sizeof line);
  char *begin = line + strspn(line, " \t\r\n");
  if (!*begin || t->finished) return 0;
  if (t->columns == 0) return header_line(t, begin, error);
  if (!strncmp(begin, "Legend", 6) || !strncmp(begin, "NIC Legend", 10)) {
    t->finished = 1;
    return 0;
  }
  size_t length = strcspn(begin, " \t\r\n");
  char saved = begin[length];
  begin[length] = '\0';
  int row = parse_index(begin, "GPU"), other = parse_index(begin, "NIC") >= 0 || strchr(begin, '_') != NULL;
  if (row >= 0 && row < FAKE_MAX_GPUS && !t->seen[row])
    return saved ? row_line(t, row, begin + length + 1, error) : row_line(t, row, begin + length, error);
  if (row < 0 && other) return 0; /* a network card */
  snprintf(error, FAKE_TEXT,
           row < 0 ? "\"%s\" is neither a row GPU<n>, NIC<n> nor the Legend" : "row %s for the second time", begin);
  return -1;
}

int topology_end(const struct fake_topology *t, struct fake_machine *m, char error[FAKE_TEXT]) {
  int count = 0;
  for (int column = 0; column < t->columns; column++) count += t->column_gpu[column] >= 0;
  if (count == 0 || t->rows != count) {
    snprintf(error, FAKE_TEXT, "the matrix has %d GPU columns but %d GPU rows", count, t->rows);
    return -1;
  }
  if (m->gpu_count && m->gpu_count != (uint32_t)count) {
    snprintf(error, FAKE_TEXT, "the matrix shows %d GPUs, the file describes %u", count, m->gpu_count);
    return -1;
  }
  for (int a = 0; a < count; a++)
    for (int b = 0; b < a; b++)
      if (!t->seen[a] || !t->seen[b] || t->level[a][b] != t->level[b][a] || t->links[a][b] != t->links[b][a]) {
        snprintf(error, FAKE_TEXT, "GPU%d to GPU%d and GPU%d to GPU%d differ; the matrix must be symmetric", a, b, b,
                 a);
        return -1;
      }
  m->gpu_count = (uint32_t)count;
  for (int a = 0; a < count; a++) {
    for (int b = 0; b < count; b++) {
      if (!t->pcie) m->links[a][b] = t->links[a][b];
      if (t->pcie || !t->links[a][b]) m->level[a][b] = t->level[a][b];
    }
    if (t->numa[a] >= 0) m->gpu[a].numa = t->numa[a];
    if (t->gpu_numa[a] >= 0) m->gpu[a].gpu_numa = t->gpu_numa[a];
    if (t->cpus[a][0] | t->cpus[a][1] | t->cpus[a][2] | t->cpus[a][3])
      memcpy(m->gpu[a].cpus, t->cpus[a], sizeof m->gpu[a].cpus);
  }
  return 0;
}
