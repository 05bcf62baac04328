# SPDX-License-Identifier: Apache-2.0
"""From a pod to its data, through the service as a process, the kubelet's calls and the kernel's mounts. Needs root.

    python -m tests.bench.dataset_start [--files N] [--pairs N] [--calls N]

* Publishing what is there: times of NodePublishVolume, for what the node lists again and for what it need not list.
* Eight pods at once: bytes that are read from the source, and the last pod's time against that of a pod alone.
* The first batch: a program that walks a dataset, shuffles it and reads 256 files, from its start. Cold: with a plain
  copy of the source before it, and with the call that fetches. Warm: on the mount, and on a local directory.

A read from the source takes a millisecond longer, as does each file of the plain copy.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

from tests.bench.dataset_fetch import DELAY, make_tree, plain_copy
from tests.bench.scratch import load, own_mounts, percentile, scratch, spread
from tests.fakes.eventually import until
from tests.fakes.kubelet.csi import CsiPod, CsiVolumeOfPod
from tests.integration.dataset.service import ServiceNode
from tests.steps import each

_BATCH = 256
_PODS = 8
_AGAIN = 20
_PATIENCE = 600
_WARM = 15  # pairs of starts that fetch nothing
_PROGRAM = """
import os, random, sys
def walk(top):
    for one in os.scandir(top):
        if one.is_dir(follow_symlinks=False):
            yield from walk(one.path)
        else:
            yield one.path
files = sorted(walk(sys.argv[1]))
random.Random(7).shuffle(files)
for one in files[:int(sys.argv[2])]:
    with open(one, "rb", 0) as file:
        assert file.read()
"""


class SlowNode(ServiceNode):
    """A node whose sources are slow. `data` has a directory for each dataset, by its number of FILES."""

    def __init__(self, root: Path, files: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        super().__init__(root, metrics_address=f"127.0.0.1:{self._port}")
        self.settings["allow"] = f"{self.data}/set{files},{self.data}"

    def command(self) -> list[str]:
        """The service's command line."""
        command = super().command()
        at = command.index("-m")
        return [*command[:at], "-m", "tests.bench.slow_service", str(DELAY), *command[at + 3 :]]

    def cpu_seconds(self) -> float:
        """What the service has used of the processors."""
        assert self.process is not None
        spent = psutil.Process(self.process.pid).cpu_times()
        return spent.user + spent.system

    def metric(self, name: str) -> float:
        """A counter of the service."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    async def started(self, name: str, **attributes: str) -> tuple[CsiPod, float]:
        """A pod with its volume, and the seconds that its call took."""
        pod = CsiPod(name, [CsiVolumeOfPod("data", attributes)])
        self.kubelet.run(pod)
        try:
            await asyncio.wait_for(pod.ready.wait(), _PATIENCE)
        except asyncio.TimeoutError:
            raise SystemExit(f"{name} has no data: {pod.events[-1:]}") from None
        return pod, self.call_of(pod)

    def call_of(self, pod: CsiPod) -> float:
        """Seconds of the call that published a pod's volume."""
        target = str(self.kubelet.target(pod, "data"))
        calls = self.kubelet.rpcs("NodePublishVolume")
        return next(one["ms"] for one in reversed(calls) if one["request"].target_path == target) / 1000

    async def clean(self, *pods: CsiPod) -> None:
        """Deletes pods, and every dataset that is not in use then."""
        for pod in pods:
            self.kubelet.delete(pod)
        await until(lambda: not any(pod.uid in self.kubelet.pods for pod in pods), 60)
        await asyncio.to_thread(functools.partial(self.ask, evict={"idle_seconds": 0}))


def synced(where: Path) -> float:
    """Milliseconds of writing a small file and syncing it."""
    began = time.perf_counter()
    with where.open("wb") as file:
        file.write(bytes(200))
        os.fsync(file.fileno())
    return (time.perf_counter() - began) * 1000


def call_row(name: str, took: list[float], cpu: str = "") -> None:
    """A line of the table of calls."""
    cells = (statistics.median(took), percentile(took, 0.99), max(took))
    print(f"| {name} | {len(took)} | {' | '.join(f'{one:.1f}' for one in cells)} | {cpu} |", flush=True)


async def calls(node: SlowNode, name: str, most: int, **attributes: str) -> None:
    """A line of the table of calls: one pod after the other, each deleted before the next but one."""
    there = len(node.kubelet.pods) + 1
    first, _ = await node.started("first", **attributes)
    took, disk, before = [], [], node.cpu_seconds()
    for number in each(range(most), f"calls, {name}", even=True):
        pod, seconds = await node.started(f"p{number}", **attributes)
        took.append(seconds * 1000)
        node.kubelet.delete(pod)
        disk.append(await asyncio.to_thread(synced, node.root / "synced"))
    await until(lambda: len(node.kubelet.pods) == there, 60)
    cpu = (node.cpu_seconds() - before) / most * 1000
    node.kubelet.calls.clear()
    node.kubelet.delete(first)
    await until(lambda: first.uid not in node.kubelet.pods, 60)
    call_row(name, took, f"{cpu:.1f}")
    call_row("meanwhile: a small file written and synced, without a call", disk)


async def republished(node: SlowNode, source: str, pods: int) -> None:
    """The same for a kubelet that starts again: it publishes every volume once more, all at once."""
    for number in each(range(pods), "pods before the kubelet's restart"):
        await node.started(f"r{number}", source=source)
    node.kubelet.calls.clear()
    await node.kubelet.stop()
    await node.kubelet.start()
    await until(lambda: sum("reply" in one for one in node.kubelet.rpcs("NodePublishVolume")) == pods, 60)
    took = [one["ms"] for one in node.kubelet.rpcs("NodePublishVolume")]
    call_row(f"once more, after a restart of the kubelet, {pods} volumes at once", took)
    await node.clean(*node.kubelet.pods.values())


async def together(node: SlowNode, source: str, size: int, pairs: int) -> None:
    """Eight pods at once against one alone."""
    ratios, bytes_read = [], []
    for number in each(range(pairs), f"pairs of {_PODS} pods and one", even=True):
        alone, single = await node.started(f"alone{number}", source=source)
        await node.clean(alone)
        before = node.metric("gigaslice_dataset_fetch_bytes_total")
        found = await asyncio.gather(
            *(node.started(f"pod{number}-{one}", source=source) for one in range(_PODS))
        )
        bytes_read.append((node.metric("gigaslice_dataset_fetch_bytes_total") - before) / size)
        ratios.append(max(seconds for _, seconds in found) / single)
        await node.clean(*(pod for pod, _ in found))
    print(f"\n| {_PODS} pods of one dataset at once, {pairs} pairs | median | range |\n| --- | ---: | --- |")
    print(f"| bytes read from the source, by the dataset's | {spread(bytes_read, '{:.3f}')} |")
    print(f"| the last pod's call, by a single pod's | {spread(ratios)} |", flush=True)


def first_batch(where: Path) -> float:
    """Seconds from the start of a program to its first batch."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-S", "-c", _PROGRAM, str(where), str(_BATCH)], check=True)
    return time.perf_counter() - began


async def batches(node: SlowNode, source: Path, copy: Path, pairs: int) -> None:
    """The first batch, cold and warm."""
    cold, warm, called = [], [], []
    for number in each(range(pairs), "first batches, cold", even=True):
        shutil.rmtree(copy, ignore_errors=True)
        plain = await asyncio.to_thread(plain_copy, source, copy, DELAY)
        plain += await asyncio.to_thread(first_batch, copy)
        pod, seconds = await node.started(f"cold{number}", source=str(source))
        cold.append((plain, seconds + await asyncio.to_thread(first_batch, node.kubelet.target(pod, "data"))))
        if number + 1 < pairs:
            await node.clean(pod)
    for number in each(range(_WARM), "first batches, warm", even=True):
        one, seconds = await node.started(f"warm{number}", source=str(source))
        mounted = node.kubelet.target(one, "data")
        pair = [await asyncio.to_thread(first_batch, where) for where in (copy, mounted)]
        node.kubelet.delete(one)
        warm.append((pair[0], pair[1]))
        called.append(seconds)
    before, after = (statistics.median(one[index] for one in cold) for index in (0, 1))
    print(
        "\n| time to the first batch | seconds | against | ratio | range |\n| --- | ---: | ---: | ---: | --- |"
    )
    print(
        f"| cold, against a plain copy | {after:.2f} | {before:.2f} | {spread([a / b for b, a in cold], '{:.3f}')} |"
    )
    before, after = (statistics.median(one[index] for one in warm) for index in (0, 1))
    print(
        f"| warm, against a local directory | {after:.3f} | {before:.3f} | {spread([a / b for b, a in warm])} |"
        f"\n\nThe call that publishes it, warm: {statistics.median(called):.3f} s",
        flush=True,
    )


async def main_with(chosen: argparse.Namespace, base: Path) -> None:
    """Everything, on one node."""
    node = SlowNode(base / "n", chosen.files)
    sets = {}
    for files in sorted({1000, 10_000, chosen.files}):
        if files <= chosen.files:
            sets[files] = node.data / f"set{files}"
            make_tree(sets[files], files)
    most = sets[chosen.files]
    size = sum(one.stat().st_size for one in most.rglob("*") if one.is_file())
    async with node.running():
        head = "calls | median ms | p99 ms | most ms | CPU ms of a call and its unpublishing"
        print(f"| NodePublishVolume of what the node has | {head} |\n| --- |{' ---: |' * 5}")
        keep, _ = await node.started("keep", source=str(most))
        await calls(
            node, f"{chosen.files:,} files, a Dataset with `check: never`", chosen.calls, dataset="any"
        )
        for files, where in sets.items():
            number = max(5, chosen.calls * 1000 // files)
            await calls(node, f"{files:,} files, listed again", number, source=str(where))
        await node.clean(keep)
        await republished(node, str(most), _AGAIN)
        if chosen.only_calls:
            return
        await together(node, str(most), size, chosen.pairs)
        await batches(node, most, base / "copy", chosen.pairs)
    print(f"\n{load()}\n")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--only-calls", action="store_true")
    chosen = parser.parse_args()
    if why := own_mounts():
        print(f"(starts of pods left out: {why})")
        return
    with scratch("/tmp") as base:  # the paths of sockets must be short
        (base / "n").mkdir()
        asyncio.run(main_with(chosen, base))


if __name__ == "__main__":
    main()
