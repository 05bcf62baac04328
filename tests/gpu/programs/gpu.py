# SPDX-License-Identifier: Apache-2.0
"""Name, driver and memory of the GPU, from NVML, or from CUDA where NVML does not answer."""

import ctypes
from pathlib import Path

from driver import Nvml, call, cuda, done, memory, open_context, ref, say, size_t, uuid


def by_nvml():
    """What NVML knows."""
    nvml = Nvml(uuid() if cuda.cuInit(0) == 0 else None)
    name, driver, version = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96), ctypes.c_int()
    nvml.lib.nvmlDeviceGetName(nvml.device, name, 96)
    nvml.lib.nvmlSystemGetDriverVersion(driver, 96)
    nvml.lib.nvmlSystemGetCudaDriverVersion(ctypes.byref(version))
    total, free, _ = nvml.memory()
    say(name=name.value.decode(), driver=driver.value.decode(), cuda=version.value, total=total, free=free)


def by_cuda(reason):
    """What the driver knows."""
    say(nvml=str(reason))
    open_context()
    name, version, total = ctypes.create_string_buffer(96), ctypes.c_int(), size_t()
    call("cuDeviceGetName", name, 96, 0)
    call("cuDriverGetVersion", ref(version))
    call("cuDeviceTotalMem_v2", ref(total), 0)
    say(name=name.value.decode(), driver="unknown", cuda=version.value, total=total.value, free=memory()[0])


try:
    by_nvml()
except (OSError, SystemExit) as error:
    by_cuda(error)
if cuda.cuInit(0) == 0:
    say(uuid=uuid())
say(namespace=Path("/proc/self/ns/pid").readlink())
done()
