# SPDX-License-Identifier: Apache-2.0
"""How many pods a second a real kube-scheduler binds, with and without the service as its extender.

    K8S_BIN=… python -m tests.cluster.throughput --nodes 500 --pods 500 --rounds 3

Paired runs on the same nodes, in turns: pods are made first, then the scheduler starts, and the time is taken from its
tenth binding to the last but ten. Both ways have the same profile; only the second has the extender.

Beside the pods per second stands the processor time of each process per pod. On a machine that does nothing else, all
of them together decide how fast pods are bound; on a shared one, that sum says more than the clock.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.cluster import roles
from tests.cluster.control_plane import ControlPlane, find_binaries
from tests.cluster.test_scheduler import NAMESPACE, Cluster
from tests.fakes.ports import free_port

_EDGE = 10  # bindings at either end that are not timed


def _configuration(cluster: Cluster, *, extender: bool) -> Path:
    document: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(cluster.plane.kubeconfig()), "qps": 5000, "burst": 5000},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": "gigaslice-scheduler", "percentageOfNodesToScore": 100}],
    }
    if extender:
        verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "preempt", "bind")}
        document["extenders"] = [
            {
                "urlPrefix": f"http://127.0.0.1:{cluster.port}/scheduler",
                **verbs,
                "weight": 1,
                "nodeCacheCapable": True,
                "httpTimeout": "5s",
                "managedResources": [{"name": "gigaslice.io/vgpu-memory"}],
            }
        ]
    path = cluster.folder / f"extender-{extender}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def _run(cluster: Cluster, pods: int, *, extender: bool) -> tuple[float, dict[str, float]]:
    """Returns pods per second, and the milliseconds of each process per pod."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: cluster.pod(f"t{number}", 4), range(pods)))
    time.sleep(2)
    scheduler = cluster.plane.start(
        "kube-scheduler", f"--config={_configuration(cluster, extender=extender)}", f"--secure-port={free_port()}",
        "--bind-address=127.0.0.1", f"--cert-dir={cluster.folder}",
    )  # fmt: skip
    processes = {**cluster.plane.running(), **({"service": cluster.service} if cluster.service else {})}
    seen: list[tuple[float, int, dict[str, float]]] = []
    end = time.monotonic() + 300
    while not seen or seen[-1][1] < pods:
        if time.monotonic() > end:
            raise SystemExit(f"only {seen[-1][1]} of {pods} pods were bound; logs are in {cluster.folder}")
        seen.append((time.monotonic(), len(cluster.bound()), _processor_seconds(processes)))
        time.sleep(0.25)
    cluster.check()
    scheduler.terminate()
    scheduler.wait(30)
    for number in range(pods):
        cluster.delete(f"t{number}")
    inner = [one for one in seen if one[1] >= _EDGE]
    first, last = inner[0], next(one for one in inner if one[1] >= pods - _EDGE)
    count = last[1] - first[1]
    spent = {name: 1000 * (last[2][name] - first[2][name]) / count for name in processes}
    return count / (last[0] - first[0]), spent


def _processor_seconds(processes: dict[str, subprocess.Popen[bytes]]) -> dict[str, float]:
    found = {}
    for name, process in processes.items():
        times = psutil.Process(process.pid).cpu_times()
        found[name] = times.user + times.system
    return found


def _shown(rate: float, spent: dict[str, float]) -> str:
    parts = ", ".join(f"{name} {value:.1f}" for name, value in spent.items())
    return f"{rate:.0f} pods/s, {sum(spent.values()):.1f} ms of processor a pod ({parts})"


def main() -> None:
    """Prints a line for each pair, and the ratio's median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    binaries = find_binaries()
    if isinstance(binaries, str):
        sys.exit(binaries)
    with tempfile.TemporaryDirectory() as name, ControlPlane(Path(name), binaries) as plane:
        cluster = Cluster(plane, Path(name), free_port())
        plane.admin.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        roles.install(plane, "admission.mode=none")
        with ThreadPoolExecutor(8) as pool:
            made = [
                pool.submit(cluster.nodes, **{f"n{number}": {"gpus": 8}}) for number in range(given.nodes)
            ]
        for one in made:
            one.result()
        ratios, costs = [], []
        for _ in range(given.rounds):
            alone, least = _run(cluster, given.pods, extender=False)
            cluster.start_service()
            try:
                beside, spent = _run(cluster, given.pods, extender=True)
            finally:
                cluster.stop_service()
            ratios.append(beside / alone)
            costs.append(sum(least.values()) / sum(spent.values()))
            print(f"without: {_shown(alone, least)}\nwith:    {_shown(beside, spent)}")
            print(f"ratio {ratios[-1]:.2f} by the clock, {costs[-1]:.2f} by processor time", flush=True)
    print(
        f"median of {given.rounds}: {statistics.median(ratios):.2f} by the clock, "
        f"{statistics.median(costs):.2f} by processor time"
    )


if __name__ == "__main__":
    main()
