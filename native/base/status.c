/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sentences of the status codes, expanded from status.def.
 * Depends on nothing. Tests: tests/native/test_base.c. */
#include "status.h"

const char *status_name(int status) {
  switch (status) {
#define STATUS(name, value, text) \
  case value:                     \
    return #name;
#include "status.def"
#undef STATUS
    default:
      return status >= 0 ? "VC_OK" : "VC_UNKNOWN";
  }
}

const char *status_text(int status) {
  switch (status) {
#define STATUS(name, value, text) \
  case value:                     \
    return text;
#include "status.def"
#undef STATUS
    default:
      return status >= 0 ? "success" : "unknown status";
  }
}
