# SPDX-License-Identifier: Apache-2.0
"""The scheduler service at 5,000 nodes of 8 GPUs with 50,000 pods: filter and prioritize over HTTP, memory, sends.

    python -m tests.bench.scheduler [--nodes 5000] [--pods 50000] [--calls 300]

The service is a process of its own between a stand-in of the API server and this program, which sends what
kube-scheduler sends: a filter with all names, a prioritize where it names several, a bind of the winner, so that every
next decision is from another state. The goals: p99 of filter and prioritize together at most 5 ms inside the service,
400 MiB, one send per reply. Figures are printed and never compared with the goals here: they are of one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from statistics import quantiles
from time import perf_counter, sleep
from typing import Any

import aiohttp
import orjson
import psutil

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.model import Share
from tests.fakes.kubeapi import ApiServer
from tests.integration.cluster.simulated_cluster import node, pod
from tests.steps import each, step

GPUS, SLICES = 8, 80
_TRACED = 20
PATIENCE = 300.0
"""Seconds for which a pod is tried again that the service cannot decide on yet."""
PAUSE = 0.5
SERVICE_UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE
SENDS = ("sendto", "sendmsg", "write", "writev")


def filled(api: ApiServer, nodes: int, pods: int) -> None:
    """Makes the nodes, and the pods bound on them: some GPUs of each are full, some empty."""
    for number in each(range(nodes), "making nodes"):
        api.create("nodes", node(f"node-{number:04}", gpus=GPUS, slices=SLICES))
    for number in each(range(pods), "making pods", even=True):
        name = f"node-{number % nodes:04}"
        gpu = number // nodes % GPUS
        slices = 4 + number % 7
        one = pod(f"pod-{number}", slices)
        text = Assignment({"main": (Share(f"GPU-{name}-{gpu}", slices),)}).encode()
        one["metadata"]["annotations"] = {ASSIGNMENT: text, "example.com/other": "x" * 200}
        one["spec"] |= {"nodeName": name}
        api.create("pods", one)


async def measure(nodes: int, pods: int, calls: int, folder: Path) -> None:
    async with ApiServer() as api:
        filled(api, nodes, pods)
        with closing(socket.socket()) as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        begun = perf_counter()
        service = subprocess.Popen(
            [sys.executable, "-m", "gigaslice_cli", "scheduler", f"--listen-address=127.0.0.1:{port}",
             f"--kubeconfig={api.kubeconfig(folder)}", "--log-level=warning"]
        )  # fmt: skip
        try:
            async with aiohttp.ClientSession() as session:
                with step("the scheduler reads them"):
                    await until_ready(session, f"http://127.0.0.1:{port}/readyz", service)
                print(f"ready after {perf_counter() - begun:.1f} s with {nodes} nodes and {pods} pods")
                process = psutil.Process(service.pid)
                print(f"memory when ready: {process.memory_info().rss >> 20} MiB")
                url = f"http://127.0.0.1:{port}"
                show(await talk(api, session, f"{url}/scheduler", nodes, range(calls)))
                print(f"memory after {calls} pods: {process.memory_info().rss >> 20} MiB")
                print(await inside(session, f"{url}/metrics"))
                traced = trace(service.pid, folder)  # afterwards: it makes every call slower
                await talk(api, session, f"{url}/scheduler", nodes, range(calls, calls + _TRACED))
                sends(traced, folder, _TRACED)
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(20)


async def until_ready(session: aiohttp.ClientSession, url: str, service: subprocess.Popen[bytes]) -> None:
    while service.poll() is None:
        try:
            async with session.get(url) as reply:
                if reply.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the service has ended")


class NotYetError(Exception):
    """The service does not decide now: its answer is 503, and its text says why."""


async def talk(
    api: ApiServer,
    session: aiohttp.ClientSession,
    url: str,
    nodes: int,
    numbers: range,
    *,
    patience: float = PATIENCE,
    pause: float = PAUSE,
) -> dict[str, list[float]]:
    """Seconds that each verb took, of pods that are placed one after another.

    A pod whose call is answered with 503 is tried again from its filter on, as kube-scheduler does: the service has a
    lease to take, and reads all pods before it decides. Such a call does not count; how many there were is printed.
    Ends the program where one pod is not placed within PATIENCE seconds.
    """
    names = [f"node-{number:04}" for number in range(nodes)]
    taken: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}

    async def send(verb: str, body: Any) -> Any:
        text = orjson.dumps(body)
        begun = perf_counter()
        async with session.post(f"{url}/{verb}", data=text) as reply:
            answer = await reply.read()
            if reply.status == SERVICE_UNAVAILABLE:
                raise NotYetError(answer.decode().strip())
        taken[verb].append(perf_counter() - begun)
        return orjson.loads(answer)

    async def place(one: Any) -> None:
        fitting = (await send("filter", {"Pod": one, "Nodes": None, "NodeNames": names}))["NodeNames"]
        best = fitting[0]
        if len(fitting) > 1:
            scores = await send("prioritize", {"Pod": one, "Nodes": None, "NodeNames": fitting})
            best = max(scores, key=lambda score: int(score["Score"]))["Host"]
        metadata = one["metadata"]
        error = await send(
            "bind",
            {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": best},
        )
        if error["Error"]:
            raise SystemExit(error["Error"])

    put_off: Counter[str] = Counter()
    for number in each(numbers, "placing pods", even=True):
        one = api.create("pods", pod(f"new-{number}", 8 + 8 * (number % 3)))
        end = perf_counter() + patience
        while True:
            try:
                await place(one)
                break
            except NotYetError as reason:
                put_off[str(reason)] += 1
                if perf_counter() > end:
                    raise SystemExit(f"a pod is not placed after {patience:.0f} s: {reason}") from None
            await asyncio.sleep(pause)
    for reason, count in put_off.items():
        print(f"tried again {count} times: {reason}", file=sys.stderr)
    return taken


def show(taken: dict[str, list[float]]) -> None:
    """Prints how long the calls took."""
    if taken["prioritize"]:
        both = [one + other for one, other in zip(taken["filter"], taken["prioritize"], strict=True)]
        taken = {**taken, "filter + prioritize": both}
    for name, values in taken.items():
        if not values:
            continue
        cut = quantiles(values[3:], n=100)
        print(f"{name}, seen by the client: p50 {cut[49] * 1000:.2f} ms, p99 {cut[98] * 1000:.2f} ms")


async def inside(session: aiohttp.ClientSession, url: str) -> str:
    """How many calls took how long inside the service, from its own histograms."""
    async with session.get(url) as reply:
        text = await reply.text()
    lines = []
    for verb in ("filter", "prioritize", "bind"):
        rows = re.findall(rf'gigaslice_scheduler_{verb}_seconds_bucket{{le="([^"]+)"}} (\S+)', text)
        lines.append(
            f"{verb} inside the service: " + ", ".join(f"<= {le} s: {float(n):g}" for le, n in rows[:6])
        )
    return "\n".join(lines)


def trace(pid: int, folder: Path) -> subprocess.Popen[bytes] | None:
    if shutil.which("strace") is None:
        return None
    flags = [
        "-f",
        "-c",
        "-e",
        f"trace={','.join(SENDS)}",
        "-o",
        str(folder / "sends"),
        "-p",
        str(pid),
    ]
    tracer = subprocess.Popen(["strace", *flags], stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")
    while tracer.poll() is None and "\nTracerPid:\t0\n" in status.read_text():
        sleep(0.01)  # before it is there, it would count nothing, and write nothing when it is asked to end
    return tracer if tracer.poll() is None else None


def sends(traced: subprocess.Popen[bytes] | None, folder: Path, pods: int) -> None:
    """Prints the sends per reply: two replies to kube-scheduler and one binding for each pod."""
    if traced is None:
        return
    traced.send_signal(signal.SIGINT)
    traced.wait(10)
    rows = [row.split() for row in (folder / "sends").read_text().splitlines()]
    count = sum(int(row[3]) for row in rows if row and row[-1] in SENDS)
    print(
        f"{count} sends for {2 * pods} replies and {pods} bindings: {(count - pods) / (2 * pods):.2f} per reply"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("nodes", 5000), ("pods", 50_000), ("calls", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    known = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(known.nodes, known.pods, known.calls, Path(folder)))


if __name__ == "__main__":
    main()
