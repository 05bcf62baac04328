# SPDX-License-Identifier: Apache-2.0
"""Client libraries from elsewhere run on the simulated driver unchanged."""

from __future__ import annotations

import json
import subprocess
import sys

GIB = 1 << 30

PYNVML = """
import json, os, pynvml as n
n.nvmlInit()
gpus = []
for index in range(n.nvmlDeviceGetCount()):
    gpu = n.nvmlDeviceGetHandleByIndex(index)
    memory = n.nvmlDeviceGetMemoryInfo(gpu)
    gpus.append({
        "name": n.nvmlDeviceGetName(gpu),
        "uuid": n.nvmlDeviceGetUUID(gpu),
        "bus": n.nvmlDeviceGetPciInfo(gpu).busId,
        "memory": [memory.total, memory.used, memory.free],
        "second": n.nvmlDeviceGetMemoryInfo(gpu, n.nvmlMemory_v2).total,
        "processes": [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(gpu)],
        "capability": n.nvmlDeviceGetCudaComputeCapability(gpu),
        "again": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(gpu))),
    })
driver, cuda = n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2()
print(json.dumps({"driver": driver, "cuda": cuda, "gpus": gpus}))
n.nvmlShutdown()
"""

BINDINGS = """
import json
from cuda.bindings import driver as d

def good(result):
    assert result[0] == d.CUresult.CUDA_SUCCESS, result
    return result[1] if len(result) == 2 else result[1:]

good(d.cuInit(0))
device = good(d.cuDeviceGet(1))
context = good(d.cuDevicePrimaryCtxRetain(device))
good(d.cuCtxSetCurrent(context))
before = good(d.cuMemGetInfo())
data = bytes(range(256)) * 4096
address = good(d.cuMemAlloc(len(data)))
good(d.cuMemcpyHtoD(address, data, len(data)))
back = bytearray(len(data))
good(d.cuMemcpyDtoH(back, address, len(data)))
stream = good(d.cuStreamCreate(0))
other = good(d.cuMemAllocAsync(1 << 20, stream))
good(d.cuMemFreeAsync(other, stream))
good(d.cuStreamSynchronize(stream))
module = good(d.cuModuleLoadData(b"image\\0"))
kernel = good(d.cuModuleGetFunction(module, b"kernel"))
good(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
refused = d.cuMemAlloc(1 << 40)[0]
good(d.cuMemFree(address))
print(json.dumps({
    "total": before[1], "taken": before[1] - before[0], "same": bytes(back) == data, "refused": int(refused),
    "after": good(d.cuMemGetInfo())[0] == before[0], "text": good(d.cuGetErrorName(refused)).decode(),
}))
"""


def run(machine, program, *args):
    done = subprocess.run(
        [sys.executable, "-c", program, *args], env=machine.env(), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nvidia_ml_py(small):
    holder = small.peer()
    holder("context(0)")
    holder(f"alloc({GIB})")
    seen = run(small, PYNVML)
    assert seen["driver"] == "550.163.01"
    assert seen["cuda"] == 12040
    first, second = seen["gpus"]
    assert first["name"] == "NVIDIA L4"
    assert first["bus"] == "00000000:3B:00.0"
    assert first["memory"] == [24 * GIB, GIB + (100 << 20), 23 * GIB - (100 << 20)]
    assert first["second"] == 24 * GIB
    assert first["processes"] == [[holder.pid, GIB + (100 << 20)]]
    assert first["capability"] == [8, 9]
    assert second["memory"] == [24 * GIB, 0, 24 * GIB]
    assert second["processes"] == []
    assert [first["again"], second["again"]] == [0, 1]
    assert first["uuid"] != second["uuid"]


def test_cuda_bindings(small):
    assert run(small, BINDINGS) == {
        "total": 24 * GIB,
        "taken": 100 << 20,
        "same": True,
        "refused": 2,
        "after": True,
        "text": "CUDA_ERROR_OUT_OF_MEMORY",
    }


def test_gpustat(machine):
    dgx = machine("dgx-h200")
    holder = dgx.peer()
    holder("context(5)")
    holder(f"alloc({8 * GIB})")
    done = subprocess.run(
        [sys.executable, "-m", "gpustat", "--json"],
        env=dgx.env(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen["gpus"]) == 8
    assert seen["driver_version"] == "580.65.06"
    gpu = seen["gpus"][5]
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["memory.total"] == 141 * 1024
    assert gpu["memory.used"] == 8 * 1024 + 256
    assert [(p["pid"], p["gpu_memory_usage"]) for p in gpu["processes"]] == [(holder.pid, 8 * 1024 + 256)]
    assert seen["gpus"][4]["processes"] == []
