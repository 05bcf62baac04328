# SPDX-License-Identifier: Apache-2.0
"""What each NVML call of the library and the agent costs: beside 1, 16 and 64 processes, some of which allocate.

Arguments: numbers of processes. Each holds a context; every fourth one allocates and frees 2 MiB without end.
p50, p99 in nanoseconds, and the number of calls. `role`: one of these processes.
"""

import ctypes
import os
import subprocess
import sys
import time

from driver import (
    MIB,
    Nvml,
    ProcessInfo,
    allocate,
    done,
    open_context,
    pointer,
    ref,
    release,
    say,
    timed,
    uuid,
)

NEED = 700 * MIB  # a context, at most


def neighbour(busy):
    """A process beside."""
    open_context()
    print("ready", flush=True)
    while busy:
        release(allocate(2 * MIB)[1])
    time.sleep(600)


def pair():
    """An allocation and its free."""
    release(allocate(2 * MIB)[1])


def calls_of(nvml):
    """Name -> call: what the library asks at each reading, what the agent asks in its rounds."""
    lib, device, room = nvml.lib, nvml.device, ctypes.create_string_buffer(1 << 16)
    infos, count = (ProcessInfo * 128)(), ctypes.c_uint(128)
    name, errors = uuid().encode(), ctypes.c_ulonglong()

    def lists(function):
        count.value = 128
        return getattr(lib, function)(device, ref(count), infos)

    def start_and_end():
        return lib.nvmlInit_v2() or lib.nvmlShutdown()

    def utilization():
        count.value = 128
        return lib.nvmlDeviceGetProcessUtilization(device, room, ref(count), ctypes.c_ulonglong(0))

    return {
        "processes": lambda: lists("nvmlDeviceGetComputeRunningProcesses_v3"),
        "memory": lambda: lib.nvmlDeviceGetMemoryInfo(device, room),
        "graphics": lambda: lists("nvmlDeviceGetGraphicsRunningProcesses_v3"),
        "uuid": lambda: lib.nvmlDeviceGetUUID(device, room, 96),
        "handle by uuid": lambda: lib.nvmlDeviceGetHandleByUUID(name, ref(pointer())),
        "count": lambda: lib.nvmlDeviceGetCount_v2(ref(ctypes.c_uint())),
        "driver version": lambda: lib.nvmlSystemGetDriverVersion(room, 96),
        "another start and its end": start_and_end,
        "process utilization": utilization,
        "ecc errors": lambda: lib.nvmlDeviceGetTotalEccErrors(device, 1, 0, ref(errors)),
        "remapped rows": lambda: lib.nvmlDeviceGetRemappedRows(
            device, room, ref(room, 4), ref(room, 8), ref(room, 12)
        ),
        "allocation pair of 2 MiB": pair,
    }


def measure(nvml, name):
    """Every call: [p50, p99, how often, its answer]."""
    calls = calls_of(nvml)
    found = {call: [*timed(function, 300, 0.5), function()] for call, function in calls.items()}
    listed = len(nvml.processes())
    say(**{name: found, f"{name} listed": listed})
    return found, listed


def main(counts):
    """From few to many."""
    begun = time.perf_counter_ns()
    nvml = Nvml()
    say(first_init_us=(time.perf_counter_ns() - begun) // 1000)
    open_context()
    nvml, others, alone = Nvml(uuid()), [], None
    for wanted in counts:
        if nvml.memory()[1] < (wanted - len(others)) * NEED + 1024 * MIB:
            say(**{f"{wanted} processes": "not enough memory free"})
            break
        begun = time.monotonic()
        new = [
            subprocess.Popen(
                [sys.executable, __file__, "role", str(int(n % 4 == 0))], stdout=subprocess.PIPE, text=True
            )
            for n in range(len(others) + 1, wanted)
        ]
        ready = [one.stdout.readline().strip() == "ready" for one in new]
        others += new
        say(**{f"{wanted} processes": {"ready": sum(ready), "started_s": round(time.monotonic() - begun, 2)}})
        found, listed = measure(nvml, f"beside {wanted}")
        say(
            **{
                "check_all_processes_are_listed": [
                    listed >= len(others) + 1,
                    f"{listed} of {len(others) + 1}",
                ]
            }
        )
        alone = alone or found
    costs = [size for pid, size in nvml.processes().items() if pid in {one.pid for one in others}]
    if len(costs) > 1:  # one of four has 2 MiB more at times
        say(check_processes_cost_the_same=[max(costs) - min(costs) <= 16 * MIB, [min(costs), max(costs)]])
    for one in others:
        one.kill()
    mine = nvml.processes().get(os.getpid())
    say(
        check_own_pid_is_listed=[mine is not None, mine],
        check_bytes_are_told=[mine is not None and mine > 0, mine],
    )
    reading = alone["processes"][0] + alone["memory"][0]
    pair_cost = alone["allocation pair of 2 MiB"][0]
    say(
        check_a_reading_is_cheap=[
            reading < 20 * pair_cost,
            f"a reading {reading} ns, a pair of 2 MiB {pair_cost} ns",
        ]
    )
    done()


if __name__ == "__main__":
    if sys.argv[1] == "role":
        neighbour(sys.argv[2] == "1")
    else:
        main([int(word) for word in sys.argv[1:]])
