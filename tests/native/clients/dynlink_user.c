/* SPDX-License-Identifier: Apache-2.0 */
/* Linked with the library of dynlink.c. */
#include <stddef.h>
#include <stdio.h>

int dynlink_load(const char *how);
int dynlink_use(size_t bytes);
int dynlink_finds_itself(void);

int main(int argc, char **argv) {
  int filled = dynlink_load(argc > 1 ? argv[1] : "local");
  printf("%d %d %d %d\n", filled, dynlink_use((size_t)2 << 30), dynlink_use((size_t)1 << 20), dynlink_finds_itself());
  return 0;
}
