/* SPDX-License-Identifier: Apache-2.0 */
/* Orders to the simulated driver from a shell or a test: see README.md, or fakectl without arguments.
 * Must not depend on CUDA or NVML beyond the names of their calls. Tests: tests/unit/fakedriver/test_control.py. */
#include "fake_call.h"
#include "fake_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, FAILED, USAGE };
#define XID_EVENT 8 /* nvmlEventTypeXidCriticalError */

static const char usage[] =
    "usage: fakectl fail <call> <code> [<count>] [--pid <pid>]   the next <count> calls (1) return <code>\n"
    "       fakectl xid <gpu> <xid>       an XID event on a GPU (machine's index)\n"
    "       fakectl event <gpu> <type> <data>\n"
    "       fakectl lost <gpu>            the GPU falls off the bus\n"
    "       fakectl found <gpu>           and is back\n"
    "       fakectl count on|off          count every call\n"
    "       fakectl forget-limits <gpu>   all memory limits of cgroups go, as with the GPU's driver state\n"
    "       fakectl reset                 takes back all of the above\n"
    "       fakectl state                 what the machine looks like now, as JSON\n"
    "FAKEDRIVER_STATE names the machine; FAKEDRIVER_MACHINE creates it if it does not exist.\n";

static int complain(const char *what, const char *which) {
  fprintf(stderr, "fakectl: %s \"%s\"; fakectl without arguments shows what can be written\n", what, which);
  return USAGE;
}

static int parse(const char *text, unsigned long long most, unsigned long long *out) {
  char *end;
  errno = 0;
  *out = strtoull(text, &end, 10);
  return !*text || *end || errno || *text == '-' || *out > most ? -1 : 0;
}

static int parse_gpu(const char *text, unsigned *gpu) {
  unsigned long long value;
  if (parse(text, fake_state->machine.gpu_count - 1, &value)) return -1;
  *gpu = (unsigned)value;
  return 0;
}

static int order_failure(int count, char **args) {
  unsigned long long code, times = 1, pid = 0;
  if (count >= 2 && !strcmp(args[count - 2], "--pid")) {
    if (parse(args[count - 1], 1 << 30, &pid) || !pid) return complain("not a PID:", args[count - 1]);
    count -= 2;
  }
  if (count != 2 && count != 3) return complain("fail needs a call and a code, not", count ? args[0] : "");
  if (call_find(args[0]) < 0) return complain("no call of the simulated driver is named", args[0]);
  if (parse(args[1], 100000, &code) || !code) return complain("not an error code:", args[1]);
  if (count == 3 && (parse(args[2], 1u << 31, &times) || !times)) return complain("not a count:", args[2]);
  if (!state_add_failure(args[0], (int)code, (uint32_t)times, (pid_t)pid)) return OK;
  fprintf(stderr, "fakectl: %d failures are ordered already; fakectl reset takes them back\n", FAKE_FAILURES);
  return FAILED;
}

static int order_event(const char *gpu_text, const char *type_text, const char *data_text) {
  unsigned gpu;
  unsigned long long type = XID_EVENT, data;
  if (parse_gpu(gpu_text, &gpu)) return complain("this machine has no GPU", gpu_text);
  if (type_text && (parse(type_text, ~0ull, &type) || !type)) return complain("not an event type:", type_text);
  if (parse(data_text, ~0ull, &data)) return complain("not a number:", data_text);
  state_raise_event(gpu, type, data);
  return OK;
}

static int order_loss(const char *gpu_text, uint32_t lost) {
  unsigned gpu;
  if (parse_gpu(gpu_text, &gpu)) return complain("this machine has no GPU", gpu_text);
  atomic_store(&fake_state->gpu[gpu].lost, lost);
  if (lost) state_raise_event(gpu, XID_EVENT, 79); /* "GPU has fallen off the bus" */
  return OK;
}

static int order_forgetting(const char *gpu_text) {
  unsigned gpu;
  if (parse_gpu(gpu_text, &gpu)) return complain("this machine has no GPU", gpu_text);
  limits_forget(gpu);
  return OK;
}

static int order_counting(const char *text) {
  int on = !strcmp(text, "on");
  if (!on && strcmp(text, "off") != 0) return complain("neither on nor off:", text);
  atomic_store(&fake_state->counting, (uint32_t)on);
  state_rearm();
  return OK;
}

static void print_gpu(unsigned index) {
  const struct fake_gpu *gpu = &fake_state->machine.gpu[index];
  char uuid[41];
  machine_gpu_name(&fake_state->machine, gpu, uuid);
  printf("%s\n    {\"index\": %u, \"uuid\": \"%s\", \"memory\": %llu, \"used\": %llu, \"lost\": %s}", index ? "," : "",
         index, uuid, (unsigned long long)gpu->memory_bytes,
         (unsigned long long)atomic_load(&fake_state->gpu[index].used),
         atomic_load(&fake_state->gpu[index].lost) ? "true" : "false");
}

static void print_name(const char *name) {
  for (; *name; name++) {
    if (*name == '"' || *name == '\\') putchar('\\');
    putchar((unsigned char)*name < ' ' ? '?' : *name);
  }
}

static void print_process(unsigned index, int first) {
  const struct fake_slot *slot = &fake_state->slot[index];
  static const char *const kinds[] = {"compute", "graphics", "mps"};
  uint64_t launches = 0;
  for (unsigned cell = 0; cell < FAKE_LAUNCH_CELLS; cell++) launches += atomic_load(&slot->launches[cell]);
  printf("%s\n    {\"pid\": %d, \"pid_inside\": %d, \"name\": \"", first ? "" : ",", (int)state_slot_pid(index),
         slot->pid_inside);
  print_name(slot->name);
  printf("\", \"kind\": \"%s\", \"launches\": %llu, \"used\": [", kinds[slot->kind % 3], (unsigned long long)launches);
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++)
    printf("%s%llu", gpu ? ", " : "", (unsigned long long)atomic_load(&slot->used[gpu]));
  printf("], \"contexts\": [");
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++)
    printf("%s%u", gpu ? ", " : "", atomic_load(&slot->contexts[gpu]));
  printf("], \"moved\": [");
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++)
    printf("%s%llu", gpu ? ", " : "", (unsigned long long)atomic_load(&slot->moved[gpu]));
  printf("], \"busy_ns\": [");
  for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++)
    printf("%s%llu", gpu ? ", " : "", (unsigned long long)atomic_load(&slot->busy_ns[gpu]));
  printf("], \"records\": %llu, \"foreign_records\": %llu}", (unsigned long long)atomic_load(&slot->records),
         (unsigned long long)atomic_load(&slot->foreign_records));
}

/* Entries of the backend misc; those of dmem are the groups' files. */
static void print_limits(void) {
  int first = 1;
  for (unsigned i = 0; i < FAKE_GROUPS && fake_state->group[i].inode; i++) {
    const struct fake_group *group = &fake_state->group[i];
    for (unsigned gpu = 0; gpu < fake_state->machine.gpu_count; gpu++) {
      if (!atomic_load(&group->limit[gpu].entry)) continue;
      printf("%s\n    {\"cgroup\": \"", first ? "" : ",");
      print_name(group->path);
      printf("\", \"gpu\": %u, \"soft\": %llu, \"hard\": %llu, \"used\": %llu}", gpu,
             (unsigned long long)atomic_load(&group->limit[gpu].soft),
             (unsigned long long)atomic_load(&group->limit[gpu].hard), (unsigned long long)limits_used(gpu, i));
      first = 0;
    }
  }
}

static int print_state(void) {
  state_reap();
  printf("{\n  \"driver_version\": \"%s\", \"cuda_version\": %u,\n  \"gpus\": [", fake_state->machine.driver_version,
         fake_state->machine.cuda_version);
  for (unsigned i = 0; i < fake_state->machine.gpu_count; i++) print_gpu(i);
  printf("\n  ],\n  \"processes\": [");
  unsigned high = atomic_load(&fake_state->slot_high);
  int first = 1;
  for (unsigned i = 0; i < high; i++) {
    if (!atomic_load(&fake_state->slot[i].generation)) continue;
    print_process(i, first);
    first = 0;
  }
  printf("\n  ],\n  \"failures\": [");
  first = 1;
  for (unsigned i = 0; i < FAKE_FAILURES; i++) {
    const struct fake_failure *failure = &fake_state->failure[i];
    uint32_t left = atomic_load(&failure->left);
    if (!left) continue;
    printf("%s\n    {\"call\": \"%s\", \"code\": %d, \"left\": %u, \"pid\": %d}", first ? "" : ",", failure->call,
           failure->result, left, failure->pid);
    first = 0;
  }
  printf("\n  ],\n  \"limits\": [");
  print_limits();
  printf("\n  ],\n  \"calls\": {");
  first = 1;
  for (unsigned i = 0; i < CALLS_END; i++) {
    uint64_t calls = atomic_load(&fake_state->calls[i]);
    if (!calls) continue;
    printf("%s\n    \"%s\": %llu", first ? "" : ",", call_name(i), (unsigned long long)calls);
    first = 0;
  }
  printf("\n  }\n}\n");
  return OK;
}

int main(int count, char **args) {
  if (count < 2) {
    fputs(usage, stderr);
    return USAGE;
  }
  if (state_attach()) return FAILED; /* it said why */
  const char *order = args[1];
  if (!strcmp(order, "fail")) return order_failure(count - 2, args + 2);
  if (!strcmp(order, "xid") && count == 4) return order_event(args[2], NULL, args[3]);
  if (!strcmp(order, "event") && count == 5) return order_event(args[2], args[3], args[4]);
  if (!strcmp(order, "lost") && count == 3) return order_loss(args[2], 1);
  if (!strcmp(order, "found") && count == 3) return order_loss(args[2], 0);
  if (!strcmp(order, "forget-limits") && count == 3) return order_forgetting(args[2]);
  if (!strcmp(order, "count") && count == 3) return order_counting(args[2]);
  if (!strcmp(order, "state") && count == 2) return print_state();
  if (!strcmp(order, "reset") && count == 2) {
    state_reset_control();
    return OK;
  }
  return complain("not an order, or not its arguments:", order);
}
