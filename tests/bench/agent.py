# SPDX-License-Identifier: Apache-2.0
"""What the node agent costs at 8 GPUs of 141 GiB, which are 1,128 device IDs: start, calls, memory.

Both calls are timed twice: in the agent's own code with its files on disk, which is what it adds to an admission, and
at the kubelet's end of the socket. Once more both together for pods with annotations, from the kubelet's list to the
answer; asking for the list is the kubelet's time. Over the socket the agent runs as a process of its own with an
inventory file, registered with a kubelet stand-in and watching 110 pods of an API server stand-in. Allocations are
given back in between, as a node with a steady load of pods does. Memory and processor are those of an agent with its
default intervals, 40 containers that run, and a client that scrapes its metrics every 15 seconds.

What is not the agent's at the socket is timed beside it, alternately: a server of the same kind that answers messages
of the same sizes and does nothing (`echo.py`), and the question that the agent asks the kubelet's list, which a
stand-in in Python answers. Requests are put into bytes before the clock starts: the kubelet is not written in Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
from rich.console import Console
from rich.table import Table

from agent.inventory.holder import InventoryHolder
from agent.inventory.static import parse_inventory
from agent.kubelet import listing
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.kubelet.pb import podresources_v1_pb2 as podresources
from agent.link import CallContext
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.deviceplugin.device_id import gpu_device_ids
from gigaslice.core.deviceplugin.lifetime import ListedPod
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.kube.decode import parse_pod
from gigaslice.core.placement import Policy
from gigaslice.runtime import logs
from tests.bench import echo
from tests.fakes.cluster import MemoryCluster
from tests.fakes.kubeapi import NODE, ApiServer, pod_document
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, PodSpec, Runtime
from tests.fakes.kubelet.podresources import RateLimit
from tests.fakes.nodes import device_allocator
from tests.fakes.served import gpu_memory
from tests.steps import each, step

ROOT = Path(__file__).resolve().parents[2]
RESOURCE = "gigaslice.io/vgpu-memory"
GPUS, GIB = 8, 141
ROUNDS = 300
PODS = 40
PORT = 39445


def inventory() -> str:
    """Eight H200s of 141 GiB on two NUMA nodes."""
    gpus = "\n".join(
        f"  - uuid: GPU-00000000-0000-4000-8000-{index:012d}\n    model: NVIDIA H200\n    memory: {GIB}GiB\n"
        f"    numa: {index * 2 // GPUS}"
        for index in range(GPUS)
    )
    return f"gpus:\n{gpus}\n"


def percentile(values: list[float], part: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def load() -> Iterator[int]:
    """Sizes of containers, 1 to 40 slices."""
    rng = random.Random(1)
    while True:
        yield rng.randint(1, 40)


def measure_code(directory: Path) -> tuple[list[float], list[float]]:
    """Times of both decisions without gRPC, on a node that holds about 40 containers."""
    source = parse_inventory(inventory().encode(), "the inventory", 1 << 30)
    gpus = InventoryHolder(source)
    logs.set_up("error", "json")
    store = Store(directory / "state-in-process", codec=CODEC)
    store.open()
    allocator = device_allocator(store, gpus, Policy.GAIA, time.time, lambda: secrets.token_hex(16))
    free = [device_id for gpu in source.gpus for device_id in gpu_device_ids(gpu)]
    held = list[tuple[str, ...]]()
    rng, preferred, allocate = random.Random(2), list[float](), list[float]()
    for size, _ in zip(load(), each(range(ROUNDS), "decisions in the agent", even=True), strict=False):
        while held and (len(free) < 200 or len(held) > 40):
            free += held.pop(rng.randrange(len(held)))
        begin = time.perf_counter()
        chosen = allocator.prefer(free, [], size)
        preferred.append((time.perf_counter() - begin) * 1e3)
        allocate.append(timed(lambda chosen=chosen: allocator.allocate([chosen])))
        gone = [
            allocation.id
            for allocation in store.table.allocations
            if allocation.ended or plugin(allocation).forgotten
        ]
        store.update(store.table.without(gone))  # as the next poll of the kubelet's list would
        for allocation_id in gone:
            store.dirs.remove(allocation_id)
        store.tidy()
        taken = set(chosen)
        free = [device_id for device_id in free if device_id not in taken]
        held.append(chosen)
    store.close()
    return preferred, allocate


class _Listed:
    """The kubelet's list as bytes, read anew for each question, as the agent's client reads it."""

    settled = informed = True

    def __init__(self) -> None:
        self.answer = podresources.ListPodResourcesResponse()

    async def pods(self) -> tuple[ListedPod, ...]:
        raw = self.answer.SerializeToString()
        return listing.listed_pods(
            podresources.ListPodResourcesResponse.FromString(raw), RESOURCE, (RESOURCE,)
        )


def measure_pods(directory: Path) -> list[float]:
    """Milliseconds of the agent per pod with annotations: whose it is, preference, allocation, event."""
    source = parse_inventory(inventory().encode(), "the inventory", 1 << 30)
    gpus = InventoryHolder(source)
    store = Store(directory / "state-of-pods", codec=CODEC)
    store.open()
    allocator = device_allocator(store, gpus, Policy.GAIA, time.time, lambda: secrets.token_hex(16))
    cluster, kubelet = MemoryCluster(), _Listed()
    servicer = gpu_memory(store, allocator, gpus, kubelet=kubelet, cluster=cluster).servicer
    free = [device_id for gpu in source.gpus for device_id in gpu_device_ids(gpu)]
    all_options = ({}, {"gpus": "2"}, {"cores": "5"}, {"same-gpu": "true"}, {"exclude-gpu-type": "L4"})
    held = list[tuple[str, tuple[str, ...]]]()
    rng, times = random.Random(4), list[float]()

    async def story() -> None:
        nonlocal free
        for number, size in zip(
            each(range(ROUNDS), "pods with annotations", even=True), load(), strict=False
        ):
            while held and (len(free) < 200 or len(held) > 40):
                name, device_ids = held.pop(rng.randrange(len(held)))
                free += device_ids
                cluster.pods.pop(("default", name))
                for at, pod in enumerate(kubelet.answer.pod_resources):
                    if pod.name == name:
                        del kubelet.answer.pod_resources[at]
                        break
            name, wanted = f"p{number}", max(2, size)
            said = {
                f"gigaslice.io/{key}": text for key, text in all_options[number % len(all_options)].items()
            }
            cluster.put(parse_pod(pod_document(name, {RESOURCE: wanted}, annotations=said)))
            listed = kubelet.answer.pod_resources.add(namespace="default", name=name)
            listed.containers.add(name="c0")
            asked = api.PreferredAllocationRequest(
                container_requests=[
                    api.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=wanted)
                ]
            )
            begin = time.perf_counter()
            context = CallContext(None, None)
            answer = await servicer.GetPreferredAllocation(asked, context)
            chosen = tuple(answer.container_responses[0].deviceIDs)
            await servicer.Allocate(
                api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=chosen)]),
                context,
            )
            times.append((time.perf_counter() - begin) * 1e3)
            for device_id in chosen:
                listed.containers[0].devices.add(resource_name=RESOURCE, device_ids=[device_id])
            gone = [
                allocation.id
                for allocation in store.table.allocations
                if allocation.ended or plugin(allocation).forgotten
            ]
            store.update(store.table.without(gone))
            for allocation_id in gone:
                store.dirs.remove(allocation_id)
            store.tidy()
            taken = frozenset(chosen)
            free = [device_id for device_id in free if device_id not in taken]
            held.append((name, chosen))

    asyncio.run(story())
    assert not any(plugin(allocation).undecided for allocation in store.table.allocations)
    store.close()
    return times


@dataclass
class Calls:
    """Milliseconds at the kubelet's end of the socket; idle: of calls that do nothing, with messages of those sizes."""

    prefer: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    idle_prefer: list[float] = field(default_factory=list)
    idle_allocate: list[float] = field(default_factory=list)
    listed: list[float] = field(default_factory=list)


Call = Callable[[bytes], bytes]


@contextlib.contextmanager
def idle_server(socket: Path) -> Iterator[Call]:
    """What calls a server that does nothing."""
    command = [sys.executable, "-m", "tests.bench.echo", str(socket)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as server:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            call = channel.unary_unary(f"/{echo.SERVICE}/{echo.METHOD}")
            call(b"0" * echo.DIGITS, wait_for_ready=True)
            yield call
        server.communicate()


def _of_size(request: bytes, answer: bytes) -> bytes:
    """A request as long as REQUEST for an answer as long as ANSWER."""
    return f"{len(answer):0{echo.DIGITS}}".encode().ljust(len(request), b"x")


def measure_calls(prefer: Call, allocate: Call, idle: Call, listed: Call, device_ids: list[str]) -> Calls:
    """The same over the socket. Pauses now and then, so that the agent releases what was given back."""
    rng, found = random.Random(2), Calls()
    free, held = list(device_ids), list[list[str]]()
    for size, number in zip(load(), each(range(ROUNDS), "calls over the socket", even=True), strict=False):
        if number % 10 == 9:
            time.sleep(0.5)
        while held and (len(free) < 200 or len(held) > 40):
            free += held.pop(rng.randrange(len(held)))
        ask = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=size)
            ]
        )
        question = ask.SerializeToString()
        begin = time.perf_counter()
        answer = prefer(question)
        found.prefer.append((time.perf_counter() - begin) * 1e3)
        chosen = list(api.PreferredAllocationResponse.FromString(answer).container_responses[0].deviceIDs)
        order = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=chosen)]
        ).SerializeToString()
        begin = time.perf_counter()
        mounts = allocate(order)
        found.allocate.append((time.perf_counter() - begin) * 1e3)
        nothing = _of_size(question, answer), _of_size(order, mounts)
        found.idle_prefer.append(timed(lambda nothing=nothing: idle(nothing[0])))
        found.idle_allocate.append(timed(lambda nothing=nothing: idle(nothing[1])))
        found.listed.append(timed(lambda: listed(b"")))
        taken = set(chosen)
        free = [device_id for device_id in free if device_id not in taken]
        held.append(chosen)
    return found


@contextlib.contextmanager
def running(command: list[str], kubelet: FakeKubelet) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """An agent, registered, and the seconds that took it."""
    before = len(kubelet.registry.registrations)
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT) as agent:
        while len(kubelet.registry.registrations) == before or not kubelet.allocatable().get(RESOURCE):
            if agent.poll() is not None:
                sys.exit(f"bench: gigaslice node ended with {agent.returncode}")
            time.sleep(0.002)
        try:
            yield agent, time.perf_counter() - begin
        finally:
            agent.terminate()


def _memory(processes: list[psutil.Process]) -> int:
    """Bytes of all of them; what several share counts once, as in a container's account."""
    return sum(process.memory_full_info().pss for process in processes)


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measure_idle(front: psutil.Process) -> tuple[int, int, float]:
    """Bytes of front and agent at first and at last, and the processor's share of 45 seconds with three scrapes."""
    with step("waiting until the agent rests, 15 s"):
        time.sleep(15)  # what the pods' start has set off comes to rest
    processes = [front, *front.children()]
    first, cpu, begin = _memory(processes), _cpu(processes), time.monotonic()
    for _ in each(range(3), "memory and CPU over 15 s", even=True):
        time.sleep(15)
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as answer:
            assert b"gigaslice_container_memory_limit_bytes" in answer.read()
    share = (_cpu(processes) - cpu) / (time.monotonic() - begin)
    return first, _memory(processes), share


def main() -> None:
    """Print the table."""
    table = Table(
        "figure", "p50", "p99", title=f"gigaslice node, {GPUS} × {GIB} GiB = {GPUS * GIB} device IDs"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    with tempfile.TemporaryDirectory(prefix="gs-bench-", dir="/tmp") as scratch:
        directory = Path(scratch)
        (directory / "inventory.yaml").write_text(inventory())
        code = measure_code(directory)
        pods = measure_pods(directory)
        with (
            ApiServer(NODE) as kube,
            FakeKubelet(directory / "k", runtime=Runtime("plain"), api=kube) as kubelet,
        ):
            kubelet.pod_resources.limit = RateLimit(
                time.monotonic(), 1e6
            )  # else a round would wait for the limiter
            for number in range(110):  # as many as a node may have
                kube.put("pods", pod_document(f"p{number}", {RESOURCE: 1}, annotations={"a": "x" * 3000}))
            command = [sys.executable, "-m", "gigaslice_cli", "node", "--state-dir", str(directory / "state")]
            command += [
                "--kubelet-dir",
                str(kubelet.plugin_directory),
                "--inventory",
                str(directory / "inventory.yaml"),
            ]
            command += ["--pod-resources", str(kubelet.pod_resources_socket), "--log-level", "warning"]
            command += ["--metrics-address", f"127.0.0.1:{PORT}"]
            command += ["--kubeconfig", str(kube.kubeconfig(directory)), "--node-name", "node-a"]
            with running([*command, "--poll-interval", "200ms"], kubelet) as (_, started):
                sockets = [
                    path for path in kubelet.plugin_directory.glob("*.sock") if path != kubelet.kubelet_socket
                ]
                with (
                    grpc.insecure_channel(f"unix:{sockets[0]}") as channel,
                    grpc.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as lists,
                    idle_server(directory / "idle.sock") as idle,
                ):
                    stream = rpc.DevicePluginStub(channel).ListAndWatch(api.Empty())
                    device_ids = [device.ID for device in next(stream).devices]
                    calls = measure_calls(
                        channel.unary_unary("/v1beta1.DevicePlugin/GetPreferredAllocation"),
                        channel.unary_unary("/v1beta1.DevicePlugin/Allocate"),
                        idle,
                        lists.unary_unary("/v1.PodResourcesLister/List"),
                        device_ids,
                    )
                    stream.cancel()
            starts = [started]
            kubelet.wait_allocatable(RESOURCE, 0)  # else they are bound by what the node said last, and fail
            for number in each(range(PODS), "creating pods"):
                kubelet.create_pod(PodSpec(f"c{number}", (ContainerSpec("c0", {RESOURCE: 8 + number % 20}),)))
            with running(command, kubelet) as (agent, again):
                starts.append(again)
                for pod in each(kubelet.pods, "waiting for pods"):
                    pod.wait("Running", 60)
                resting, busy, cores = measure_idle(psutil.Process(agent.pid))
    for label, values in (
        ("GetPreferredAllocation, in the agent", code[0]),
        ("GetPreferredAllocation, over the socket", calls.prefer),
        ("  of it: an empty call with messages of the same sizes", calls.idle_prefer),
        ("  of it: the kubelet stand-in's answer, which pods there are", calls.listed),
        ("Allocate, in the agent", code[1]),
        ("Allocate, over the socket", calls.allocate),
        ("  of it: an empty call with messages of the same sizes", calls.idle_allocate),
        ("both for a pod with annotations, in the agent", pods),
    ):
        table.add_row(label, f"{statistics.median(values):.2f} ms", f"{percentile(values, 0.99):.2f} ms")
    table.add_row("start to registered: empty, and after these calls", *(f"{one:.2f} s" for one in starts))
    table.add_row(
        f"resident memory, {PODS} containers: first, last", f"{resting >> 20} MiB", f"{busy >> 20} MiB"
    )
    table.add_row(f"CPU, {PODS} containers, scraped every 15 s", f"{cores:.4f} core", "")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
