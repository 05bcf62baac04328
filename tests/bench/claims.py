# SPDX-License-Identifier: Apache-2.0
"""What it costs to serve claims: a kubelet's calls at a node with 100 of them, and the memory beside device plugins.

The agent is a process of its own with an inventory file and an API server stand-in. Calls are made over the kubelet's
socket, through the front. A call reads its claim from the API server, so a GET of the same claim by the same kind of
client is timed beside it, alternately: that part is the API server's and the network's. Memory is that of front and
agent with 100 allocations, by either API, each with its pod. Health is timed on GPUs of the simulated driver, from an
Xid to the taint in the slice that the API server has, for eight GPUs one after the other.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
from rich.console import Console
from rich.table import Table

from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as plugin_api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as plugin_rpc
from agent.kubelet.pb import dra_v1_pb2 as api
from gigaslice.core.claims.names import device_name
from tests.bench.agent import GIB, GPUS, ROOT, inventory, percentile
from tests.fakedriver.env import driver_env, library_directory
from tests.fakes.kubeapi import NODE, ApiServer, pod_document
from tests.steps import each

CLAIMS, ROUNDS, PORT = 100, 300, 39446
TURNS, HEALTH_GPUS = 5, 8
MACHINE = """\
driver_version: 550.163.01
cuda_version: 12040
context_memory: 100MiB
seed: 7

gpu *:
  model: NVIDIA L4
  memory: 24GiB
  capability: 8.9
  multiprocessors: 58
""" + "".join(f"gpu {number}:\n  pci: 00000000:{0x3B + number:02x}:00.0\n" for number in range(HEALTH_GPUS))
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
UNPREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
CLAIMS_PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
RESOURCE = "gigaslice.io/vgpu-memory"


def uuid_of(gpu: int) -> str:
    """The UUID of the inventory's GPU of that number."""
    return f"GPU-00000000-0000-4000-8000-{gpu:012d}"


def put_claim(kube: ApiServer, number: int, gpu: int, gib: int) -> api.Claim:
    """Makes a pod with an allocated claim; returns the claim as the kubelet names it."""
    pod, claim = str(uuid.uuid4()), str(uuid.uuid4())
    document: dict[str, Any] = pod_document(f"p{number}", {}, annotations={"a": "x" * 3000})
    document["metadata"]["uid"] = pod
    document["spec"]["nodeName"] = NODE
    document["spec"]["resourceClaims"] = [{"name": "vgpu", "resourceClaimName": f"c{number}"}]
    document["spec"]["containers"][0]["resources"] = {"claims": [{"name": "vgpu"}]}
    kube.put("pods", document)
    kube.put(
        "resourceclaims",
        {
            "metadata": {"namespace": "default", "name": f"c{number}", "uid": claim},
            "spec": {
                "devices": {
                    "requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu.gigaslice.io"}}]
                }
            },
            "status": {
                "allocation": {
                    "devices": {
                        "results": [
                            {
                                "request": "gpu",
                                "driver": "gigaslice.io",
                                "pool": NODE,
                                "device": device_name(uuid_of(gpu)),
                                "shareID": str(uuid.uuid4()),
                                "consumedCapacity": {"memory": f"{gib}Gi", "cores": "0"},
                            }
                        ]
                    }
                },
                "reservedFor": [{"resource": "pods", "name": f"p{number}", "uid": pod}],
            },
        },
    )
    return api.Claim(namespace="default", name=f"c{number}", uid=claim)


@contextmanager
def node(
    directory: Path, kube: ApiServer, *flags: str, machine: Mapping[str, str] | None = None
) -> Iterator[list[psutil.Process]]:
    """A running agent; its processes. MACHINE is the environment of a simulated driver, whose GPUs it has then."""
    kubelet = directory / "kubelet"
    for name in ("plugins/gigaslice.io", "plugins_registry", "device-plugins"):
        (kubelet / name).mkdir(parents=True, exist_ok=True)
    (directory / "inventory.yaml").write_text(inventory())
    command = [sys.executable, "-m", "gigaslice_cli", "node", f"--state-dir={directory / 'state'}"]
    source = directory / "inventory.yaml" if machine is None else "nvml"
    command += [f"--inventory={source}", f"--kubelet-root={kubelet}"]
    command += [f"--kubelet-dir={kubelet / 'device-plugins'}", f"--pod-resources={directory / 'none.sock'}"]
    command += [
        f"--cdi-dir={directory / 'cdi'}",
        f"--kubeconfig={kube.kubeconfig(directory)}",
        f"--node-name={NODE}",
    ]
    command += [f"--metrics-address=127.0.0.1:{PORT}", "--log-level=error", *flags]
    with subprocess.Popen(command, cwd=ROOT, env=machine) as front:
        try:
            process = psutil.Process(front.pid)
            yield [process, *children(process)]
        finally:
            front.terminate()


def children(process: psutil.Process) -> list[psutil.Process]:
    """The agent behind a front, once it has started."""
    for _ in range(500):
        if found := process.children():
            return found
        time.sleep(0.02)
    sys.exit("bench: no agent")


def wait_for(path: Path) -> Path:
    """Returns a socket that listens."""
    for _ in range(1000):
        if path.exists():
            return path
        time.sleep(0.02)
    sys.exit(f"bench: {path} does not listen")


def memory(processes: list[psutil.Process]) -> int:
    """Bytes of all of them; what several share counts once."""
    time.sleep(10)
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    taken = [line for line in lines if line.startswith("gigaslice_gpu_slices{") and '"allocated"' in line]
    assert sum(float(line.rpartition(" ")[2]) for line in taken) == CLAIMS * 8
    time.sleep(5)
    return sum(process.memory_full_info().pss for process in processes)


def measure_claims(directory: Path) -> tuple[list[float], list[float], list[float], int]:
    """Milliseconds of Prepare, Unprepare and a GET of a claim; bytes of the processes."""
    with ApiServer(NODE) as kube, node(directory, kube, "--api=dra") as processes:
        socket = wait_for(directory / "kubelet" / "plugins" / "gigaslice.io" / "dra.sock")
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            prepare = channel.unary_unary(
                PREPARE,
                request_serializer=api.NodePrepareResourcesRequest.SerializeToString,
                response_deserializer=api.NodePrepareResourcesResponse.FromString,
            )
            unprepare = channel.unary_unary(
                UNPREPARE,
                request_serializer=api.NodeUnprepareResourcesRequest.SerializeToString,
                response_deserializer=api.NodeUnprepareResourcesResponse.FromString,
            )
            for number in each(range(CLAIMS), "preparing claims", even=True):
                claim = put_claim(kube, number, number % GPUS, 8)
                answer = prepare(api.NodePrepareResourcesRequest(claims=[claim]), timeout=45)
                assert not answer.claims[claim.uid].error, answer.claims[claim.uid].error
            size = memory(processes)
            prepared, unprepared, read = [], [], []
            for number in each(range(CLAIMS, CLAIMS + ROUNDS), "rounds of claims", even=True):
                claim = put_claim(kube, number, number % GPUS, 8)
                time.sleep(0.05)  # the watch shows the pod, as it does while a pod is scheduled
                begun = time.perf_counter()
                with urllib.request.urlopen(
                    urllib.request.Request(
                        f"http://127.0.0.1:{kube.port}{CLAIMS_PATH}/{claim.name}",
                        headers={"Authorization": f"Bearer {kube.token}"},
                    )
                ) as plain:
                    plain.read()
                read.append((time.perf_counter() - begun) * 1e3)
                begun = time.perf_counter()
                answer = prepare(api.NodePrepareResourcesRequest(claims=[claim]), timeout=45)
                prepared.append((time.perf_counter() - begun) * 1e3)
                assert not answer.claims[claim.uid].error, answer.claims[claim.uid].error
                kube.delete("pods", f"p{number}", "default")
                begun = time.perf_counter()
                unprepare(api.NodeUnprepareResourcesRequest(claims=[claim]), timeout=45)
                unprepared.append((time.perf_counter() - begun) * 1e3)
    return prepared, unprepared, read, size


def tainted(kube: ApiServer) -> int:
    """How many devices the API server has with a taint; -1 without a slice."""
    slices = kube.all("resourceslices")
    devices = [device for one in slices for device in one["spec"].get("devices") or ()]
    return sum(bool(device.get("taints")) for device in devices) if devices else -1


def reach(kube: ApiServer, count: int) -> None:
    """Returns when so many devices have a taint."""
    deadline = time.monotonic() + 60
    while tainted(kube) != count:
        if time.monotonic() > deadline:
            sys.exit(f"bench: {tainted(kube)} devices with a taint, not {count}")
        time.sleep(0.005)


def measure_health(directory: Path) -> list[float]:
    """Milliseconds from an Xid to the GPU's taint."""
    description = directory / "machine.txt"
    description.write_text(MACHINE)
    machine = {**os.environ, **driver_env(description, directory / "machine.state")}
    times = []
    for turn in each(range(TURNS), "Xids", even=True):
        folder = directory / str(turn)
        folder.mkdir()
        with ApiServer(NODE) as kube, node(folder, kube, "--api=dra", machine=machine):
            reach(kube, 0)
            time.sleep(1)  # the driver is listened to
            for gpu in range(HEALTH_GPUS):
                begun = time.perf_counter()
                subprocess.run(
                    [library_directory() / "fakectl", "xid", str(gpu), "95"], env=machine, check=True
                )
                reach(kube, gpu + 1)
                times.append((time.perf_counter() - begun) * 1e3)
        subprocess.run([library_directory() / "fakectl", "reset"], env=machine, check=True)
    return times


def measure_plugins(directory: Path) -> int:
    """Bytes of the processes with as many allocations by device plugins."""
    with ApiServer(NODE) as kube, node(directory, kube, "--api=device-plugin") as processes:
        for number in range(CLAIMS):
            kube.put("pods", pod_document(f"p{number}", {RESOURCE: 8}, annotations={"a": "x" * 3000}))
        socket = wait_for(directory / "kubelet" / "device-plugins" / "gigaslice.io_vgpu-memory.sock")
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            stub = plugin_rpc.DevicePluginStub(channel)
            for number in each(range(CLAIMS), "allocations by device plugins", even=True):
                gpu, first = number % GPUS, number // GPUS * 8
                ids = [f"{uuid_of(gpu)}/{slice_number}" for slice_number in range(first, first + 8)]
                stub.Allocate(
                    plugin_api.AllocateRequest(
                        container_requests=[plugin_api.ContainerAllocateRequest(devices_ids=ids)]
                    ),
                    timeout=30,
                )
        return memory(processes)


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory(prefix="gs-bench-", dir="/tmp") as scratch:
        claims, plugins = Path(scratch) / "c", Path(scratch) / "d"
        for directory in (claims, plugins):
            directory.mkdir()
        prepared, unprepared, read, size = measure_claims(claims)
        beside = measure_plugins(plugins)
        ill = Path(scratch) / "h"
        ill.mkdir()
        health = measure_health(ill)
    table = Table("figure", "p50", "p99", title=f"claims at a node with {CLAIMS} of them, {GPUS} × {GIB} GiB")
    for name, values in (
        ("NodePrepareResources, ms", prepared),
        ("NodeUnprepareResources, ms", unprepared),
        ("GET of a claim by itself, ms", read),
        ("from an Xid to the taint in the slice, ms", health),
    ):
        table.add_row(name, f"{statistics.median(values):.1f}", f"{percentile(values, 0.99):.1f}")
    table.add_row("memory of front and agent, MiB", f"{size / 2**20:.1f}", "")
    table.add_row("the same by device plugins, MiB", f"{beside / 2**20:.1f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
