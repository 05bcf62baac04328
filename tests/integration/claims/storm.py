# SPDX-License-Identifier: Apache-2.0
"""A node of claims under load, on which everything dies again and again, against what is true at any instant.

Pods with claims of their own and with shared ones come and go in a thread, in all ways: they end, are deleted, and are
deleted by force. Meanwhile the agent and its front are killed, the kubelet starts again, the agent is handed over,
the files of the container runtime are wiped, and claims are deleted. In a third thread the books of the API server and
of the node are compared without a pause (`oracle`). Nothing may be left at the end. `make test-claim-kills` runs it for
long and prints how long pods were delayed; test_storm.py is the short form.

The kubelet of this storm never repeats by itself a call that was answered with an error.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path

import psutil

from tests.fakes.claims import ClaimPlane
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubeapi.device_documents import DRIVER, class_document, request_document
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, Pod, Runtime
from tests.fakes.kubelet.cdi import write_nvidia
from tests.fakes.threads import await_end
from tests.integration.agent.conftest import PATIENCE, AgentProcess, inventory_text, wait_until
from tests.integration.claims.node import CLAIM_QUICK, ClaimNode, claim_flags
from tests.integration.claims.oracle import Books, compare, compare_containers, wait_nothing_left
from tests.steps import each

GIB = 1 << 30
GPUS, SIZE = 3, 16
MOST_PODS = 14
NEVER = 3600.0
LONGEST_DELAY = 5.0  # that one restart of anything may cost a pod, in seconds
ROUNDS_OF_A_KILL = 1.55  # seen; for the progress alone
LULL_AFTER = 10  # rounds; on a busy machine an agent needs longer to start than the next kill takes to come
TIMES = replace(
    CLAIM_QUICK,
    claims=replace(CLAIM_QUICK.claims, call_s=45.0, resync_s=NEVER, register_after_s=0.3),
)


class ClaimStorm:
    """Weather over a node. directory: short enough for sockets below it."""

    def __init__(self, directory: Path, api: ApiServer, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts: dict[str, int] = {}
        self.delays: list[float] = []  # from the binding of a pod to its start, in seconds
        self.lulls: list[
            float
        ] = []  # from the last restart to the start of every pod that was bound, in seconds
        api.answers.pod_policy = True
        api.create("deviceclasses", class_document())
        kubelet = FakeKubelet(directory / "kubelet", seed, settings=TIMES, runtime=Runtime("plain"), api=api)
        agent = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        agent.inventory.write_text(inventory_text(GPUS, gib=SIZE))
        agent.flags |= {"--kubeconfig": api.kubeconfig(directory), **claim_flags(kubelet)}
        agent.flags["--log-level"] = "info"
        self.node = ClaimNode(api, ClaimPlane(api), kubelet, agent)
        self.logs = directory
        self._halt = threading.Event()
        self._failures: list[BaseException] = []
        self._pods: list[Pod] = []
        self._gone: list[threading.Thread] = []
        self.books = Books(api)
        self._bound_at: dict[str, float] = {}
        self._started: set[str] = set()
        self._shared: list[str] = []
        self._number = 0
        self._lock = threading.RLock()  # while pods are compared, or the kubelet is not there
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._come_and_go, self._compare)
        ]

    def begin(self) -> None:
        """Starts everything."""
        self.node.plane.start()
        self.node.kubelet.start()
        (self.node.kubelet.directory / "plugins" / DRIVER).mkdir(exist_ok=True)
        self.node.agent.start()
        self.node.agent.wait_event("watching")
        names = [event["gpu"] for event in self.node.agent.events("GPU found")]
        write_nvidia(self.node.kubelet.cdi_directory, names)
        self.node.wait_served(GPUS)
        for thread in self._threads:
            thread.start()

    def blow(self, rounds: int = 0, *, kills: int = 0, longest: float = float("inf")) -> None:
        """Rounds of weather, so many and with so many kills of agent and front, or what fits in LONGEST seconds."""
        until = time.monotonic() + longest
        weather = (
            [self._kill_worker] * 5
            + [self._kill_front] * 3
            + [self._restart_kubelet, self._wipe, self._hand_over, self._force_while_away]
        )
        numbers = takewhile(lambda number: number <= rounds or self._kills < kills, count(1))
        total = max(rounds, round(kills * ROUNDS_OF_A_KILL))
        for number in each(numbers, "rounds of weather", total=total, even=True):
            if time.monotonic() > until or self._failures:
                break
            time.sleep(self.rng.random() ** 2 * 1.2)
            self._look_after_the_agent()
            self.rng.choice(weather)()
            if number % LULL_AFTER == 0:
                self._lull()
        self._raise()

    def end(self) -> None:
        """Ends load and pods; then nothing may be left."""
        try:
            wait_until(self._calm, "every pod to run, or not to be bound")
        except TimeoutError:
            states = [(pod, [one.state for one in pod.containers]) for pod in self._pods]
            raise AssertionError(f"pods that never started: {states}") from None
        self._halt.set()
        for thread in self._threads:
            await_end(thread, 2 * PATIENCE)
        self._raise()
        node = self.node
        for pod in self._pods:
            node.kubelet.delete_pod(pod)
        for name in self._shared:
            node.api.delete("resourceclaims", name, "default")
        for thread in self._gone:
            await_end(thread, 2 * PATIENCE)
        wait_nothing_left(node.kubelet, node.agent.state)
        wait_until(lambda: not node.api.all("resourceclaims"), "the end of the claims")
        self._raise()

    def stop(self) -> None:
        """Ends what runs, whatever has happened."""
        self._halt.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(PATIENCE)
        if self.node.agent.process is not None:
            self._kill()
        self.node.kubelet.close()
        self.node.plane.stop()

    def report(self) -> dict[str, object]:
        """What happened, for people."""
        delays = sorted(self.delays)
        times = "-"
        if delays:
            p99 = delays[int(len(delays) * 0.99)]
            times = f"median {statistics.median(delays):.2f} s, p99 {p99:.2f} s, longest {delays[-1]:.2f} s"
        lulls = f"longest of {len(self.lulls)}: {max(self.lulls):.2f} s" if self.lulls else "-"
        return {
            **self.counts,
            "from a pod's binding to its start": times,
            "from the last restart to every start": lulls,
        }

    @property
    def _kills(self) -> int:
        return self.counts.get("kills of the agent", 0) + self.counts.get("kills of the front", 0)

    def _look_after_the_agent(self) -> None:
        """A front whose first agent is killed before it serves ends with it, and the kubelet starts the container."""
        process = self.node.agent.process
        assert process is not None
        if process.poll() is not None:
            self._count("fronts that ended with their agents")
            self.node.agent.process = None
            self.node.agent.start()

    # --- weather ---------------------------------------------------------------------------------------------

    def _kill_worker(self) -> None:
        worker = self.node.agent.worker
        if worker is not None:  # else its front starts it, or ends
            self._count("kills of the agent")
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()

    def _kill_front(self) -> None:
        self._count("kills of the front")
        self._kill()
        time.sleep(self.rng.random() * 0.5)
        self.node.agent.start()

    def _kill(self) -> None:
        process = self.node.agent.process
        assert process is not None
        if process.poll() is None:
            self.node.agent.kill()
        self.node.agent.process = None

    def _restart_kubelet(self) -> None:
        self._count("restarts of the kubelet")
        with self._lock:
            self.node.kubelet.stop()
            self.node.kubelet.start()

    def _wipe(self) -> None:
        self._count("wiped files of the runtime")
        for path in self.node.kubelet.cdi_directory.glob("*gigaslice*"):
            path.unlink(missing_ok=True)

    def _hand_over(self) -> None:
        agent = self.node.agent
        other = copy.copy(agent)
        other.process, other.output = None, self.logs / f"agent-{self.counts.get('hand-overs', 0)}.log"
        served = len(agent.events("metrics served"))
        time.sleep(self.rng.random())
        if len(agent.events("metrics served")) == served and len(agent.events("starting")) > served:
            return  # it is being started, and may end with its front
        other.start(standby="on")
        wait_until(lambda: other.events("standing by") or other.events("state loaded"), "the successor")
        if not other.events("standing by"):
            self._come_first(other)
            return
        agent.wait_event("successor is ready")
        assert agent.terminate() == 0
        if self.rng.random() < 0.3:
            other.kill_worker()
        self.node.agent = other
        other.wait_event("taken over")
        self._count("hand-overs")

    def _come_first(self, other: AgentProcess) -> None:
        """The agent was still being started, and found the state directory taken by the one that was to follow it."""
        self._count("hand-overs")
        older, self.node.agent = self.node.agent, other
        assert older.process is not None
        older.process.wait(PATIENCE)
        older.process = None

    def _force_while_away(self) -> None:
        """Pods are deleted by force, and their claims with them, while there is no agent."""
        self._count("kills of the front")
        self._kill()
        with self._lock:
            if synced := [pod for pod in self._pods if self.node.kubelet.syncs(pod)]:
                self._delete(self.rng.choice(synced), force=True)
        time.sleep(self.rng.random())
        self.node.agent.start()

    # --- load ------------------------------------------------------------------------------------------------

    def _come_and_go(self) -> None:
        rng = random.Random(self.rng.random())
        while not self._halt.wait(rng.random() * 0.2):
            with self._lock:
                self._note_starts()
                if len(self._pods) < MOST_PODS and rng.random() < 0.6:
                    self._add(rng)
                elif self._pods:
                    self._end_some(rng)
                if len(self._shared) > 4:
                    self.node.api.delete("resourceclaims", self._shared.pop(0), "default")

    def _add(self, rng: random.Random) -> None:
        self._number += 1
        name, node, size = f"p{self._number}", self.node, f"{rng.randint(1, 7)}Gi"
        if rng.random() < 0.3:
            if not self._shared or rng.random() < 0.4:
                self._shared.append(f"shared-{self._number}")
                node.claim(self._shared[-1], request_document(memory=size))
            pod = node.create(name, node.named(rng.choice(self._shared)))
        elif rng.random() < 0.2:
            containers = tuple(ContainerSpec(one, claims=("vgpu",)) for one in ("main", "side"))
            pod = node.create(name, containers=containers, memory=size)
        else:
            pod = node.create(name, memory=size)
        self._pods.append(pod)
        self._count("pods")

    def _end_some(self, rng: random.Random) -> None:
        pod = rng.choice(self._pods)
        if self.node.kubelet.syncs(pod):
            self._delete(pod, force=rng.random() < 0.25)
        elif (
            "is being deleted" in pod.message or "not found" in pod.message
        ):  # its claim is: nobody will bind it
            self._pods.remove(pod)
            self.node.kubelet.delete_pod(pod, force=True)

    def _delete(self, pod: Pod, *, force: bool) -> None:
        self._pods.remove(pod)
        if force:
            self._count("pods deleted by force")
            self.books.forced |= self._claims_of(pod)  # before: they may go with the pod's object
        thread = threading.Thread(
            target=self._guarded,
            args=(lambda: self.node.kubelet.delete_pod(pod, force=force, timeout_s=2 * PATIENCE),),
            daemon=True,
        )
        thread.start()
        self._gone.append(thread)
        if force:
            await_end(thread, PATIENCE)

    def _claims_of(self, pod: Pod) -> set[str]:
        """The UIDs of the claims that a pod has, alone or with others."""
        uids = set()
        for claim in self.node.api.all("resourceclaims"):
            users = (claim.get("status") or {}).get("reservedFor") or []
            if any(
                one["uid"] == pod.uid for one in (*users, *(claim["metadata"].get("ownerReferences") or []))
            ):
                uids.add(claim["metadata"]["uid"])
        return uids

    def _note_starts(self) -> None:
        now = time.monotonic()
        for pod in self._pods:
            bound = self._bound_at.setdefault(pod.uid, now) if pod.bound else None
            if pod.phase == "Running" and bound is not None and pod.uid not in self._started:
                self._started.add(pod.uid)
                self.delays.append(now - bound)

    # --- what is true ----------------------------------------------------------------------------------------

    def _compare(self) -> None:
        while not self._halt.wait(0.02):
            compare(self.books, self.node.agent.state, SIZE * GIB)
            with self._lock:
                compare_containers(self.books, self._pods, SIZE * GIB)
            self._count("comparisons")

    def _lull(self) -> None:
        """Nothing dies until every pod that is bound by now runs, or is deleted."""
        since = time.monotonic()
        with self._lock:
            bound = [pod for pod in self._pods if pod.bound]

        def all_run() -> bool:
            self._look_after_the_agent()
            with self._lock:
                left = [pod for pod in bound if pod in self._pods and pod.bound]
                return bool(self._failures) or all(pod.phase == "Running" for pod in left)

        wait_until(all_run, "every pod that is bound to run")
        self.lulls.append(time.monotonic() - since)

    def _calm(self) -> bool:
        self._look_after_the_agent()
        with self._lock:
            return bool(self._failures) or all(pod.phase == "Running" or not pod.bound for pod in self._pods)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (raised by whoever waits for the storm)
            self._failures.append(error)

    def _raise(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    print(f"seed {options.seed}, in {directory}", flush=True)
    with ApiServer(NODE) as api:
        storm = ClaimStorm(directory, api, options.seed)
        try:
            storm.begin()
            storm.blow(kills=options.kills)
            storm.end()
            assert max(storm.lulls) <= LONGEST_DELAY, "a pod was delayed for too long by a restart"
        finally:
            print(json.dumps(storm.report(), indent=1), flush=True)
            storm.stop()
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
