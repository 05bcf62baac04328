/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs a process gets to see, by NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES.
 * Uses only the machine; reads no environment. Tests: tests/unit/fakedriver/test_visibility.py. */
#ifndef FAKE_VISIBLE_H
#define FAKE_VISIBLE_H

#include "fake_machine.h"

/* What a container runtime leaves present: fills PRESENT with machine indices in the machine's order and returns their
 * number. TEXT NULL or "all": everything; "none", "void" or empty: nothing. -1: an unknown device, with one line on
 * stderr, where a runtime refuses to start the container. */
int visible_in_container(const struct fake_machine *machine, const char *text, unsigned present[FAKE_MAX_GPUS]);
/* CUDA's own choice and order among COUNT present ones; TEXT NULL: all. As the driver does it, the list ends at the
 * first entry that is not a device, and a device named twice makes the whole list void. */
int visible_to_cuda(const struct fake_machine *machine, const char *text, const unsigned *present, int count,
                    unsigned chosen[FAKE_MAX_GPUS]);

#endif
