/* The program's starts and ends of NVML. Its last end is the library's too: handles that it kept mean nothing then, as
 * without the library. The next reading starts NVML again.
 * Decides no numbers. Tests: tests/integration/test_native_starts.py. */
#include "driver.h"
#include "nvml_probe.h"
#include "nvml_bodies.h"
#include "starts.h"

nvmlReturn_t vc_nvmlInit(void) { return starts_begin(real_nvml.nvmlInit); }

nvmlReturn_t vc_nvmlInit_v2(void) { return starts_begin(real_nvml.nvmlInit_v2); }

nvmlReturn_t vc_nvmlInitWithFlags(unsigned int flags) { return starts_begin_with(flags); }

nvmlReturn_t vc_nvmlShutdown(void) {
  int last;
  nvmlReturn_t result = starts_end(&last);
  if (last) nvml_probe_stop();
  return result;
}
