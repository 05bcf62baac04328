/* How far a stream may run ahead. A share is kept by holding launches back, which is of use only while what was
 * launched already is short: a thousand kernels of a millisecond in the queue are a second of the GPU that cannot be
 * taken back. How long a kernel takes is not known beforehand, so the queue is measured: a fence behind N launches that
 * is passed after D says D / N for each (waiting for other containers included, as that is part of the queue's length).
 * From there the number follows directly; it shrinks at once and grows eightfold per fence at most, so that a stream
 * begins with one launch and has thousands a few fences later if they are short.
 * Pure. Tests: tests/unit/compute/test_window.py, test_shares.py. */
#include "shm.h"

enum { GROWTH = 8 };

void window_reset(struct vc_window *window) { window->allowed = 1; }

void window_passed(struct vc_window *window, uint32_t outstanding, uint64_t delay_ns) {
  uint64_t fit = (uint64_t)VC_WINDOW_NS * (outstanding != 0 ? outstanding : 1) / (delay_ns != 0 ? delay_ns : 1);
  uint64_t most = (uint64_t)(window->allowed != 0 ? window->allowed : 1) * GROWTH;
  if (fit > most) fit = most;
  if (fit > VC_WINDOW_MAX) fit = VC_WINDOW_MAX;
  window->allowed = fit != 0 ? (uint32_t)fit : 1;
}
