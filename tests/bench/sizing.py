# SPDX-License-Identifier: Apache-2.0
"""What Gigaslice costs a cluster: memory, processor, requests and bytes of each part, for docs/sizing.md.

    python -m tests.bench.sizing cluster --nodes 200 --pods 2000
    python -m tests.bench.sizing node --pods 40
    python -m tests.bench.sizing dataset

Roles are the real ones, as processes of their own. The API server is the stand-in, in this process, and counts what
each client asks for by its User-Agent; kubelet and GPUs are stand-ins, too. Memory is what counts for a container's
limit: what several processes share counts once (PSS), and the highest is the kernel's own mark. A processor's time is
that of the role alone, so a machine that is busy with other things makes it only a little larger.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from gigaslice.core.cluster.names import ASSIGNMENT, INVENTORY
from tests.bench import scheduler as scheduler_bench
from tests.bench.agent import RESOURCE, inventory
from tests.demo.cluster.control_plane import NAMESPACE, WEBHOOK, Ports
from tests.demo.cluster.reviews import reviewed
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, PodSpec, Runtime
from tests.fakes.kubelet.csi import CsiKubelet
from tests.fakes.ports import free_port
from tests.integration.cluster.simulated_cluster import pod

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
_CONFIGURATIONS = "mutatingwebhookconfigurations"
QUIET = 3.0
"""Seconds without a write after which the controller has made what it makes."""
PAGE_FORGOTTEN = 65.0
"""Seconds without a look at the page after which the controller has given back what the page took, if it does."""


class CountingApiServer(ApiServer):
    """Counts requests by client and kind: lists and watches, other reads, writes."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(*nodes)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.written = 0.0
        """When anything was last written, by time.monotonic."""

    async def _one(self, request: Any, writer: asyncio.StreamWriter) -> bool:
        client = request.headers.get("user-agent", "").partition("/")[0]
        if request.method != "GET":
            kind = "event" if request.path.endswith("/events") or "/events/" in request.path else "write"
            kind = "lease" if "/leases" in request.path else kind
            self.written = time.monotonic() if kind == "write" else self.written
        else:
            kind = "watch" if request.query.get("watch") else "lease" if "/leases" in request.path else "read"
        self.counts[client, kind] += 1
        return await super()._one(request, writer)

    def since(self, before: Counter[tuple[str, str]], client: str) -> dict[str, int]:
        """Requests of a client since the counts were BEFORE, by kind."""
        return {
            kind: count for (name, kind), count in sorted((self.counts - before).items()) if name == client
        }


@dataclass
class Role:
    """A process of ours and those that it has started."""

    name: str
    process: psutil.Process

    @property
    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def memory(self) -> float:
        """MiB; what the processes share counts once."""
        return sum(process.memory_full_info().pss for process in self._all) / MIB

    def peak(self) -> float:
        """MiB at the highest, of each process by itself."""
        text = "".join(Path(f"/proc/{process.pid}/status").read_text() for process in self._all)
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) / 1024

    def cpu(self) -> float:
        """Seconds of a processor since its start."""
        return sum(sum(process.cpu_times()[:2]) for process in self._all)


@contextlib.contextmanager
def role(folder: Path, name: str, *flags: object) -> Iterator[Role]:
    """`gigaslice NAME` with FLAGS."""
    command = [sys.executable, "-m", "gigaslice_cli", name, *map(str, flags), "--log-level=warning"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield Role(name, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(60)


async def ready(session: aiohttp.ClientSession, *ports: int, seconds: float = 1200.0) -> None:
    """Waits until roles say that they are. Ends the program where they do not."""
    end = time.monotonic() + seconds
    for port in ports:
        while time.monotonic() < end:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as reply:
                    if reply.status == 200:
                        break
            await asyncio.sleep(0.2)
        else:
            sys.exit(f"sizing: the role at port {port} is not ready after {seconds:.0f} s")


def row(*cells: object) -> None:
    """Prints a line of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def per_minute(counts: dict[str, int], seconds: float) -> str:
    return ", ".join(f"{kind} {count * 60 / seconds:.1f}" for kind, count in counts.items()) or "none"


def size(document: object) -> int:
    """Bytes of an object as JSON, as etcd would have it of a kind of ours; Nodes and Pods are stored more densely."""
    return len(json.dumps(document, separators=(",", ":")))


# --- scheduler and controller ------------------------------------------------------------------------------------


async def measure_cluster(known: argparse.Namespace, folder: Path) -> None:
    """Prints what scheduler and controller take at this size."""
    async with CountingApiServer() as api:
        scheduler_bench.filled(api, known.nodes, known.pods)
        for name in ("research", NAMESPACE):
            api.put("namespaces", {"metadata": {"name": name}})
        api.put("secrets", {"metadata": {"name": WEBHOOK, "namespace": NAMESPACE}})
        hook = {"name": "pods.gigaslice.io", "clientConfig": {}}
        api.put(_CONFIGURATIONS, {"metadata": {"name": "gigaslice"}, "webhooks": [hook]})
        ports = Ports()
        local, kubeconfig = "127.0.0.1", f"--kubeconfig={api.kubeconfig(folder)}"
        with (
            role(folder, "scheduler", kubeconfig, f"--listen-address={local}:{ports.scheduler}",
                 f"--leader-lease={NAMESPACE}/gigaslice-scheduler-service",
                 f"--metrics-address={local}:{ports.scheduler_metrics}") as scheduler,
            role(folder, "controller", kubeconfig, f"--page-address={local}:{ports.page}",
                 f"--webhook-address={local}:{ports.webhook}", "--writes-per-second=9999",
                 f"--extended-resources={known.gpu_objects}",
                 f"--metrics-address={local}:{ports.controller_metrics}") as controller,
        ):  # fmt: skip
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
                await ready(session, ports.scheduler_metrics, ports.controller_metrics)
                cluster = _Cluster(api, ports, session, (scheduler, controller))
                await cluster.from_start(known.gpu_objects == "on")
                await cluster.at_rest(known.rest)
                await cluster.pods(known.calls)
                await cluster.reviews(known.calls)
                await cluster.looks()
        _print_objects(api)


@dataclass
class _Cluster:
    """A cluster that is up: the stand-in, the roles, and where they are asked."""

    api: CountingApiServer
    ports: Ports
    session: aiohttp.ClientSession
    roles: tuple[Role, Role]

    def _row(self, what: str, *cells: object) -> None:
        row(what, len(self.api.all("nodes")), len(self.api.all("pods")), *cells)

    async def _quiet(self) -> None:
        while time.monotonic() - self.api.written < QUIET:
            await asyncio.sleep(0.5)

    async def from_start(self, objects: bool) -> None:
        """What was needed until everything is made; then what rest takes."""
        gpus = len(self.api.all("nodes")) * scheduler_bench.GPUS if objects else 0
        while len(self.api.store.objects["extendedresources"]) < gpus:
            await asyncio.sleep(0.5)
        await self._quiet()
        for one in self.roles:
            counts = self.api.since(Counter(), f"gigaslice-{one.name}")
            self._row(f"{one.name}: from start to rest", f"{one.cpu():.1f} s", f"{one.memory():.0f} MiB",
                      f"{one.peak():.0f} MiB", counts)  # fmt: skip

    async def at_rest(self, rest: float) -> None:
        before, cpu = Counter(self.api.counts), [one.cpu() for one in self.roles]
        await asyncio.sleep(rest)
        for one, was in zip(self.roles, cpu, strict=True):
            counts = per_minute(self.api.since(before, f"gigaslice-{one.name}"), rest)
            self._row(f"{one.name}: at rest", f"{(one.cpu() - was) / rest * 1000:.1f} millicores",
                      f"{one.memory():.0f} MiB", "", f"a minute: {counts}")  # fmt: skip

    async def pods(self, calls: int) -> None:
        """Pods that are filtered, scored and bound, one after another."""
        before, cpu = Counter(self.api.counts), [one.cpu() for one in self.roles]
        url = f"http://127.0.0.1:{self.ports.scheduler}/scheduler"
        await scheduler_bench.talk(self.api, self.session, url, len(self.api.all("nodes")), range(calls))
        await self._quiet()
        for one, was in zip(self.roles, cpu, strict=True):
            asked = self.api.since(before, f"gigaslice-{one.name}")
            counts = {kind: round(count / calls, 2) for kind, count in asked.items()}
            self._row(f"{one.name}: {calls} pods", f"{(one.cpu() - was) / calls * 1000:.1f} ms a pod",
                      f"{one.memory():.0f} MiB", f"{one.peak():.0f} MiB", f"a pod: {counts}")  # fmt: skip

    async def reviews(self, calls: int) -> None:
        """Pods that the webhook sees, each over connections of its own, which an API server keeps instead."""
        controller = self.roles[1]
        was = controller.cpu()
        (hook,) = self.api.named(_CONFIGURATIONS)["gigaslice"]["webhooks"]
        for number in range(calls):
            document = pod(f"asked-{number}", 8)
            document["metadata"]["namespace"] = "research"
            for path in ("mutate", "validate"):
                document = await reviewed(self.session, self.ports.webhook, path, hook, document)
        self._row(
            "webhook", f"{(controller.cpu() - was) / calls * 1000:.1f} ms a pod", "", "", "2 reviews a pod"
        )

    async def looks(self, looks: int = 5) -> None:
        """The page, after a pod has gone, so that it is made anew; which is done at most once in some seconds."""
        controller = self.roles[1]
        was, length, made = controller.cpu(), 0, set()
        for number in range(looks):
            self.api.delete("pods", f"pod-{number}", "default")
            await asyncio.sleep(4)
            async with self.session.get(f"http://127.0.0.1:{self.ports.page}/") as reply:
                length = len(await reply.read())
                made.add(reply.headers["ETag"])
        each = (controller.cpu() - was) / len(made) * 1000
        self._row("page", f"{each:.0f} ms a page", f"{controller.memory():.0f} MiB",
                  f"{controller.peak():.0f} MiB", f"{length / 1024:.0f} KiB, made {len(made)} times")  # fmt: skip
        await asyncio.sleep(PAGE_FORGOTTEN)
        self._row("controller: after the page", "", f"{controller.memory():.0f} MiB")


def _print_objects(api: ApiServer) -> None:
    """Bytes of what is kept in etcd for us."""
    node = api.all("nodes")[0]
    row(
        "inventory, annotation of a Node of 8 GPUs",
        f"{len(node['metadata']['annotations'][INVENTORY])} bytes",
    )
    assigned = [one["metadata"]["annotations"][ASSIGNMENT] for one in api.all("pods")
                if ASSIGNMENT in one["metadata"].get("annotations", {})]  # fmt: skip
    if assigned:
        row("assignment, annotation of a pod with one GPU", f"{max(map(len, assigned))} bytes")
    for plural in ("extendedresources", "resourceclasses"):
        objects = api.all(plural)
        if objects:
            row(f"{plural}: {len(objects)}", f"{max(map(size, objects))} bytes at most")


# --- the agent of a node -----------------------------------------------------------------------------------------


def measure_node(pods: int, rest: float, folder: Path) -> None:
    """Prints what the agent of a node takes, at rest and for pods that start and end."""
    (folder / "inventory.yaml").write_text(inventory())
    with (
        CountingApiServer(NODE) as api,
        FakeKubelet(folder / "k", runtime=Runtime("plain"), api=api) as kubelet,
        role(folder, "node", "--state-dir", folder / "state", "--kubelet-dir", kubelet.plugin_directory,
             "--inventory", folder / "inventory.yaml", "--pod-resources", kubelet.pod_resources_socket,
             "--metrics-address", f"127.0.0.1:{free_port()}", "--kubeconfig", api.kubeconfig(folder),
             "--node-name", NODE) as agent,
    ):  # fmt: skip
        while not kubelet.allocatable().get(RESOURCE):
            time.sleep(0.1)
        time.sleep(5)
        row("agent and front: from start to rest", "", f"{agent.cpu():.1f} s", f"{agent.memory():.0f} MiB",
            f"{agent.peak():.0f} MiB", api.since(Counter(), "gigaslice-node"))  # fmt: skip
        _measure_rest(api, agent, 0, rest)
        before, was = Counter(api.counts), agent.cpu()
        for number in range(pods):
            kubelet.create_pod(PodSpec(f"c{number}", (ContainerSpec("c0", {RESOURCE: 8 + number % 20}),)))
        for one in kubelet.pods:
            one.wait("Running", 120)
        time.sleep(5)
        counts = {kind: round(count / pods, 2) for kind, count in api.since(before, "gigaslice-node").items()}
        row(f"agent and front: {pods} pods start", pods, f"{(agent.cpu() - was) / pods * 1000:.0f} ms a pod",
            f"{agent.memory():.0f} MiB", f"{agent.peak():.0f} MiB", f"a pod: {counts}")  # fmt: skip
        _measure_rest(api, agent, pods, rest)
        annotations = api.get("nodes", NODE)["metadata"]["annotations"]
        row("inventory of that node", f"{len(annotations.get(INVENTORY, ''))} bytes")
        events = api.all("events")
        if events:
            row(f"events: {len(events)}", f"{max(map(size, events))} bytes at most")


def _measure_rest(api: CountingApiServer, agent: Role, pods: int, rest: float) -> None:
    before, was = Counter(api.counts), agent.cpu()
    time.sleep(rest)
    counts = per_minute(api.since(before, "gigaslice-node"), rest)
    row("agent and front: at rest", pods, f"{(agent.cpu() - was) / rest * 1000:.1f} millicores",
        f"{agent.memory():.0f} MiB", "", f"a minute: {counts}")  # fmt: skip


# --- the dataset service of a node -------------------------------------------------------------------------------


async def measure_dataset(rest: float, folder: Path) -> None:
    """Prints what the dataset service of a node takes that nobody uses."""
    port, kubelet = free_port(), CsiKubelet(folder / "k")
    await kubelet.start()
    async with CountingApiServer(NODE) as api, aiohttp.ClientSession() as session:
        with role(folder, "dataset", "--state-dir", folder / "s", "--run-dir", folder / "r", "--kubelet-root",
                  kubelet.root, "--kubeconfig", api.kubeconfig(folder), "--node-name", NODE,
                  "--metrics-address", f"127.0.0.1:{port}") as service:  # fmt: skip
            await ready(session, port, seconds=60)
            await asyncio.sleep(5)
            counts = api.since(Counter(), "gigaslice-dataset")
            row("dataset service: from start to rest", f"{service.cpu():.1f} s", f"{service.memory():.0f} MiB",
                f"{service.peak():.0f} MiB", counts)  # fmt: skip
            before, was = Counter(api.counts), service.cpu()
            await asyncio.sleep(rest)
            counts = per_minute(api.since(before, "gigaslice-dataset"), rest)
            row("dataset service: at rest", f"{(service.cpu() - was) / rest * 1000:.1f} millicores",
                f"{service.memory():.0f} MiB", "", f"a minute: {counts}")  # fmt: skip
    await kubelet.stop()


def main() -> None:
    """Prints the rows of one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("cluster", "node", "dataset"))
    parser.add_argument(
        "--gpu-objects", choices=("on", "off"), default="on", help="whether each GPU is an object"
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--calls", type=int, default=200, help="pods that are scheduled and admitted")
    parser.add_argument(
        "--rest", type=float, default=60.0, metavar="SECONDS", help="how long rest is measured"
    )
    known = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gs-sizing-", dir="/tmp") as scratch:
        folder = Path(scratch)
        if known.part == "cluster":
            asyncio.run(measure_cluster(known, folder))
        elif known.part == "node":
            measure_node(min(known.pods, 100), known.rest, folder)
        else:
            asyncio.run(measure_dataset(known.rest, folder))


if __name__ == "__main__":
    main()
