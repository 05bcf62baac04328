# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's CUDA runtime, as programs use it: does what it allocates reach the quota? Argument: its file, or
its major version.

What each function takes is seen in cudaMemGetInfo, which is the quota's under the library, and in NVML, which
a process without the library asks; beyond the quota each must answer 2. `hooked`: bytes that the quota has
grown by.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from driver import MIB, allocate, cuda, done, missing, open_context, pointer, ref, release, say, size_t

# The runtime's first private table: without one there is no driver that it would work with.
TABLE = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9")
SIZE, TOO_MUCH = 64 * MIB, 1 << 45


class Extent(ctypes.Structure):
    """cudaExtent."""

    _fields_ = (("width", size_t), ("height", size_t), ("depth", size_t))


class PitchedPtr(ctypes.Structure):
    """cudaPitchedPtr."""

    _fields_ = (("ptr", pointer), ("pitch", size_t), ("xsize", size_t), ("ysize", size_t))


class ChannelDesc(ctypes.Structure):
    """cudaChannelFormatDesc."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("x", "y", "z", "w", "f"))


def find(wanted):
    """The runtime's file."""
    if Path(wanted).exists():
        return wanted
    places = [
        *sys.path,
        *os.environ.get("GPU_PACK", "").split(os.pathsep),
        "/usr/local/cuda",
        f"/usr/local/cuda-{wanted}",
    ]
    folders = ("nvidia/*/lib", "lib", "lib64", ".")
    for place in filter(None, places):
        for folder in folders:
            for path in sorted(Path(place).glob(f"{folder}/libcudart.so.{wanted}*")):
                return str(path)
    missing(f"no libcudart.so.{wanted} on this machine, nor brought along")
    return ""


class Trace:
    """What trace.so has counted, when it is there: calls of the driver by their names, however they were found."""

    def __init__(self):
        self.function = getattr(ctypes.CDLL(None), "gigaslice_trace_take", None)
        self.room = ctypes.create_string_buffer(1 << 18)
        self.found = {}

    def around(self, name, action):
        """ACTION's answer; what it called is kept under NAME."""
        if self.function is None:
            return action()
        self.function(self.room, ctypes.c_long(len(self.room)))
        answer = action()
        self.function(self.room, ctypes.c_long(len(self.room)))
        rows = [line.split("\t") for line in self.room.value.decode().splitlines()]
        self.found[name] = {f"{function} in {file}": int(count) for count, function, file in rows}
        say(**{f"calls of {name}": self.found[name]})
        return answer


trace = Trace()


def used():
    """Bytes of the whole GPU, by a process that has no library."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith("VCUDA_")
    }
    done_ = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("used.py"))],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done_.stdout.strip():
        sys.exit(f"NVML did not answer: {done_.stderr.strip()[-200:]}")
    return int(done_.stdout)


class Runtime:
    """The runtime's functions, and what they take."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.found = {}

    def free(self):
        """By cudaMemGetInfo."""
        left, total = size_t(), size_t()
        result = self.lib.cudaMemGetInfo(ref(left), ref(total))
        if result != 0:
            sys.exit(f"cudaMemGetInfo returned {result}")
        return left.value, total.value

    def step(self, name, take, refuse, give):
        """Takes SIZE, takes too much, gives back."""
        before, gpu = self.free()[0], used()
        code = trace.around(name, take)
        hooked, real = before - self.free()[0], used() - gpu
        over = trace.around(f"{name}, too much", refuse)
        self.lib.cudaGetLastError()
        back = trace.around(f"{name}, given back", give) if code == 0 else None
        self.lib.cudaDeviceSynchronize()
        self.found[name] = {
            "code": code,
            "hooked": hooked,
            "real": real,
            "over": over,
            "freed": back,
            "kept": before - self.free()[0],
        }
        say(**{name: self.found[name]})

    def linear(self, name, *more):
        """A function that gives a pointer for a size."""
        out, function = pointer(), getattr(self.lib, name)
        self.step(
            name,
            lambda: function(ref(out), size_t(SIZE), *more),
            lambda: function(ref(pointer()), size_t(TOO_MUCH), *more) if name != "cudaMallocManaged" else 2,
            lambda: self.lib.cudaFree(out),
        )


def everything(run):
    """Each way of the runtime to take memory."""
    lib, out, pitch, extent = run.lib, pointer(), size_t(), PitchedPtr()
    run.linear("cudaMalloc")
    run.linear("cudaMallocManaged", 1)
    run.step(
        "cudaMallocPitch",
        lambda: lib.cudaMallocPitch(ref(out), ref(pitch), size_t(8192), size_t(8192)),
        lambda: lib.cudaMallocPitch(ref(pointer()), ref(size_t()), size_t(1 << 24), size_t(1 << 22)),
        lambda: lib.cudaFree(out),
    )
    lib.cudaMalloc3D.argtypes = (pointer, Extent)
    run.step(
        "cudaMalloc3D",
        lambda: lib.cudaMalloc3D(ctypes.addressof(extent), Extent(1024, 1024, 64)),
        lambda: lib.cudaMalloc3D(ctypes.addressof(PitchedPtr()), Extent(1 << 20, 1 << 15, 1 << 10)),
        lambda: lib.cudaFree(pointer(extent.ptr)),
    )
    floats = ChannelDesc(32, 0, 0, 0, 2)
    run.step(
        "cudaMallocArray",
        lambda: lib.cudaMallocArray(ref(out), ref(floats), size_t(4096), size_t(4096), 0),
        lambda: 2,
        lambda: lib.cudaFreeArray(out),
    )
    run.step(
        "cudaMallocAsync",
        lambda: lib.cudaMallocAsync(ref(out), size_t(SIZE), None),
        lambda: lib.cudaMallocAsync(ref(pointer()), size_t(TOO_MUCH), None),
        lambda: lib.cudaFreeAsync(out, None),
    )


def main(path):
    """Everything."""
    say(runtime=path)
    run, number, table = Runtime(path), ctypes.c_int(), pointer()
    run.lib.cudaRuntimeGetVersion(ref(number))
    say(version=number.value)
    trace.around("itself", lambda: release(allocate(4096)[1]) if open_context() else None)
    if cuda.cuGetExportTable(ref(table), TABLE) != 0:
        missing("this driver has none of the private tables that the runtime needs")
    result = trace.around("start", lambda: run.lib.cudaFree(None))
    if result != 0:
        sys.exit(f"the runtime does not start: {result}")
    say(total=run.free()[1])
    everything(run)
    done()


if __name__ == "__main__":
    main(find(sys.argv[1]))
