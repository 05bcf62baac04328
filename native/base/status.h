/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes of the native code, one convention everywhere: 0 or a count is success, VC_E… (negative) is failure.
 * Depends on nothing. Tests: tests/native/test_base.c. */
#ifndef VC_BASE_STATUS_H
#define VC_BASE_STATUS_H

enum vc_status {
  VC_OK = 0,
#define STATUS(name, value, text) name = (value),
#include "status.def"
#undef STATUS
};

const char *status_name(int status);
const char *status_text(int status);

#endif
