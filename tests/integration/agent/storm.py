# SPDX-License-Identifier: Apache-2.0
"""A node under load whose agent is killed again and again, whose kubelet restarts, and whose sockets are wiped.

Pods come and go in a thread of their own. After each kill, while nothing can change, what is on disk is
compared with what runs: every running container's allocation is in the allocation table and whole, no GPU is promised
twice, and no container was restarted or ended. `Breeze` kills the agent's process behind its front, and has successors
take over, on a node that reports its slices as seldom as a real one: there no pod may fail. Nor in `Crowd`, where an
API server shows the pods and these ask for more than the node has: the kubelet gives a device out again as soon as its
pod has ended, and fails each pod that the scheduler has bound by a number of slices that is no more. `make test-kills`
runs all for long and prints how long registrations took; the short forms are tests (test_storm.py). Kills between two
given system calls are the business of tests/unit/agent/persistence/killing.py.
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
from pathlib import Path

import vcuda
from agent.front.resource_endpoint import ResourceEndpoint
from agent.persistence.store import read_only
from agent.roles.records import CODEC
from gigaslice.core.deviceplugin.origin import held
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubelet import FakeKubelet, Runtime
from tests.fakes.kubelet.deployment import Deployment
from tests.integration.agent.conftest import (
    PATIENCE,
    QUICK,
    RESOURCE,
    AgentProcess,
    allocation_dir,
    inventory_text,
    pod,
    wait_until,
)
from tests.steps import each
from vcuda import contract

GPUS, GIB = 4, 1 << 30
SLICES = 16
_MOST_PODS = 12
_MOST_WAIT_S = 5.0  # for a GPU without a change


class Storm:
    """Weather over NODE and AGENT."""

    level = "warning"
    slices = 2 * GPUS * SLICES  # that the load requests at most: more than there are, so that some pods wait

    def __init__(self, node: FakeKubelet, agent: AgentProcess, seed: int) -> None:
        self.node, self.agent, self.rng = node, agent, random.Random(seed)
        self.kills = self.restarts = self.wipes = self.made = 0
        self.registered: list[float] = []  # seconds from the kubelet's socket to its register call
        self.started: list[float] = []  # from the start of the agent's process to the same
        self.halt = threading.Event()
        self.failure: BaseException | None = None
        self._pods: list = []
        self._pids: dict[str, int] = {}
        self._refused: list[str] = []
        self._kubelet = threading.RLock()  # taken while there is none
        self._load = threading.Thread(target=self._come_and_go, daemon=True)

    def begin(self) -> None:
        """Starts kubelet, agent and load."""
        self.agent.inventory.write_text(inventory_text(GPUS, SLICES))
        self.agent.flags["--log-level"] = self.level
        self.node.start()
        self.agent.start()
        self._load.start()

    def blow(self, kills: int) -> None:
        """Kills the agent so many times, and looks after each."""
        for _ in each(range(kills), f"{type(self).__name__}, kills", even=True):
            self._something_else()
            time.sleep(self.rng.random() ** 2 * 1.2)  # in the middle of its start, or at work
            self.agent.kill()
            self.kills += 1
            self.check()
            self._start()
            if self.failure:
                raise self.failure

    def end(self) -> None:
        """Ends load and pods; then everything must be free again, and be had."""
        self.halt.set()
        self._load.join(60)
        assert not self._load.is_alive()
        if self.failure:
            raise self.failure
        self._wait_registered()
        # An agent that has only just started believes no empty list for minutes: something has to be in it.
        last = self.node.create_pod(pod("last", 1))
        for one in self._pods:
            self.node.delete_pod(one)
        last.wait("Running", PATIENCE)
        wait_until(lambda: len(self._allocations()) == 1, "every other allocation to be given up")
        self.node.delete_pod(last)
        wait_until(lambda: self._allocations() == (), "every allocation to be given up")
        wait_until(lambda: self.directories() == [], "their directories")
        self.node.wait_allocatable(RESOURCE, GPUS * SLICES)
        for number in range(GPUS):
            assert self.node.run_pod(pod(f"whole{number}", SLICES)).phase == "Running"

    def _allocations(self) -> tuple:
        return read_only(self.agent.state, CODEC)[0].allocations

    def directories(self) -> list[str]:
        """All but those made ahead for allocations to come."""
        names = {path.name for path in (self.agent.state / "allocations").iterdir()}
        return sorted(name for name in names if not name.startswith(".new-spare-"))

    def check(self) -> None:
        """What is true at any instant. No pod of the load comes or goes meanwhile."""
        with self._kubelet:
            self._compare([(one, each) for one in self._pods for each in one.containers if each.running])

    def _compare(self, running: list) -> None:
        if not (self.agent.state / "allocations").is_dir():
            return  # it was killed before its first breath
        table, _ = read_only(self.agent.state, CODEC)
        known = {allocation.id: allocation for allocation in table.allocations}
        promised: dict[str, int] = {}
        for one, container in running:
            directory = allocation_dir(container)
            assert directory.name in known, f"{one}: its allocation is lost"
            page = vcuda.read_limits(directory / contract.LIMITS_FILE)
            assert vcuda.read_ledger(directory / contract.LEDGER_FILE).allocation_id == page.allocation_id
            requested = container.spec.resources[RESOURCE]
            assert sum(gpu.memory_bytes for gpu in page.gpus) == requested * GIB, f"{one}: another limit"
            for gpu in page.gpus:
                promised[gpu.uuid] = promised.get(gpu.uuid, 0) + gpu.memory_bytes
            assert container.restarts == 0, f"{one}: restarted"
            pid = self._pids.setdefault(f"{one.uid}/{container.name}", container.process.pid)
            assert container.process.pid == pid, f"{one}: another process"
        assert max(promised.values(), default=0) <= SLICES * GIB, "a GPU is promised twice"
        taken = [device_id for allocation in table.allocations for device_id in held(allocation)]
        assert len(taken) == len(set(taken)), "a device ID counts twice"

    def report(self) -> dict[str, object]:
        """What happened, for people."""

        def times(values: list[float]) -> str:
            if not values:
                return "-"
            return f"median {statistics.median(values):.2f} s, longest {max(values):.2f} s of {len(values)}"

        return {
            "kills": self.kills,
            "kubelet restarts": self.restarts,
            "sockets wiped": self.wipes,
            "pods": self.made,
            "pods that met a dying agent": len(self._refused),
            "kubelet's socket to registered": times(self.registered),
            "agent's start to registered": times(self.started),
        }

    def _start(self) -> None:
        begun = time.monotonic()
        before = len(self.node.registry.registrations)
        self.agent.start()
        if self.rng.random() < 0.3:
            wait_until(lambda: len(self.node.registry.registrations) > before, "registration")
            self.started.append(time.monotonic() - begun)

    def _wait_registered(self) -> None:
        wait_until(lambda: self.node.allocatable().get(RESOURCE) == GPUS * SLICES, "slices")

    def _something_else(self) -> None:
        what = self.rng.random()
        if what < 0.1:
            self._wait_registered()
            with self._kubelet:
                self.node.stop()
                self.node.settings = QUICK
                self.node.start()
                self.restarts += 1
            self.registered.append(wait_until(lambda: self.node.registry.took, "registration")[0])
        elif what < 0.2:
            for path in self.node.plugin_directory.glob("*.sock"):
                if path.name != "kubelet.sock":
                    path.unlink(missing_ok=True)
            self.wipes += 1

    def _come_and_go(self) -> None:
        rng, number = random.Random(self.rng.random()), 0
        try:
            while not self.halt.wait(rng.random() * 0.1):
                with self._kubelet:
                    self._bury()
                    counts = [rng.randint(1, 6) for _ in range(rng.choice((1, 1, 2)))]
                    taken = sum(one.spec.requests(RESOURCE) for one in self._pods)
                    room = len(self._pods) < _MOST_PODS and taken + sum(counts) <= self.slices
                    if room and rng.random() < 0.7:
                        number += 1
                        self._pods.append(self.node.create_pod(pod(f"p{number}", *counts)))
                        self.made += 1
                    elif self._pods:
                        ending = self._pods.pop(rng.randrange(len(self._pods)))
                        self.node.delete_pod(ending)
        except BaseException as error:  # noqa: BLE001  (shown by the caller that waits for the storm)
            self.failure = error

    def _bury(self) -> None:
        """Pods whose Allocate the agent did not live to answer have failed for good, as a kubelet has it."""
        for one in [one for one in self._pods if one.phase == "Failed"]:
            assert one.reason == "UnexpectedAdmissionError", one.message
            assert "slices in all" not in one.message, f"refused for want of room: {one.message}"
            self._refused.append(one.message)
            self._pods.remove(one)
            self.node.delete_pod(one)


class Breeze(Storm):
    """The agent dies and is replaced, its front and its container do not: no pod may notice."""

    level = "info"
    slices = GPUS * SLICES // 2  # the deployment has the others
    replicas = 8

    def __init__(self, node: FakeKubelet, agent: AgentProcess, seed: int) -> None:
        super().__init__(node, agent, seed)
        self.handed_over = 0
        self.deployment = Deployment(node, lambda number: pod(f"d{number}", 4), self.replicas)

    def begin(self) -> None:
        super().begin()
        self.node.wait_allocatable(RESOURCE, GPUS * SLICES, 60)
        self.node.report_every(
            10.0
        )  # what the kubelet has lost the scheduler learns as late as from a real node
        self.deployment.start()

    def blow(self, kills: int) -> None:
        rested = time.monotonic()
        for number in each(range(kills), f"{type(self).__name__}, kills", even=True):
            time.sleep(self.rng.random() ** 2 * 1.2)
            self.deployment.replace(self.rng.randint(0, 3))
            if number % 4 == 1:
                self._hand_over(number)
            else:
                self.agent.kill_worker()
                self.kills += 1
            self.check()
            # An agent that never gets to serve is away for longer than the front waits, the sooner on a busy machine.
            if number % 3 == 2 or time.monotonic() - rested > ResourceEndpoint.patience / 3:
                self._wait_all_run()
                rested = time.monotonic()
            if self.failure:
                raise self.failure
            failed = self.deployment.failed + self._refused
            assert failed == [], failed

    def end(self) -> None:
        self._wait_all_run()
        assert self.deployment.end() == []
        for one in list(self.deployment.pods):
            self.node.delete_pod(one)
        super().end()
        assert self._refused == []
        assert self.node.registry.registrations == [RESOURCE] and self.node.registry.stream_ends == []

    def report(self) -> dict[str, object]:
        return {
            "kills of the agent's process": self.kills,
            "hand-overs": self.handed_over,
            "pods": self.made + self.deployment.made,
            "pods that failed": len(self._refused) + len(self.deployment.failed),
        }

    def _wait_all_run(self) -> None:
        """Returns when every pod of the deployment runs. One may wait for a GPU that the others fill, and these stay:
        so another is replaced now and then.
        """
        due = time.monotonic() + _MOST_WAIT_S

        def all_run() -> bool:
            nonlocal due
            if time.monotonic() > due:
                due += _MOST_WAIT_S
                self.deployment.replace()
            return self.deployment.running() == self.deployment.replicas

        wait_until(all_run, "all pods of the deployment", 2 * PATIENCE)

    def _hand_over(self, number: int) -> None:
        """As a rolling update does; sometimes the successor's own agent is killed, too."""
        agent = self.agent
        other = copy.copy(agent)
        other.process, other.output = None, agent.output.with_name(f"agent-{number}.log")
        other.start(standby="on")
        other.wait_event("standing by")
        agent.wait_event("successor is ready")
        assert agent.terminate() == 0
        if self.rng.random() < 0.3:
            other.kill_worker()
        self.agent = other
        other.wait_event("taken over")
        self.handed_over += 1


class Crowd(Breeze):
    """The agent dies on a node that is asked for more than it has: what has not been bound waits, and no pod fails."""

    replicas, pauses = 14, (1.0, 8.0)

    def __init__(self, node: FakeKubelet, agent: AgentProcess, seed: int) -> None:
        super().__init__(node, agent, seed)
        assert node.api is not None
        agent.flags |= {"--kubeconfig": node.api.kubeconfig(agent.state.parent), "--node-name": NODE}

    def blow(self, kills: int) -> None:
        for _ in each(range(kills), f"{type(self).__name__}, kills", even=True):
            until = time.monotonic() + self.rng.uniform(*self.pauses)
            while time.monotonic() < until:
                self.deployment.replace(self.rng.randint(0, 2))
                time.sleep(self.rng.random())
            # One that is killed before it serves is away for longer than the front waits, the sooner on a busy machine.
            self.agent.wait_event("metrics served", self.kills + 1)
            self.agent.kill_worker()
            self.kills += 1
            self.check()
            if self.failure:
                raise self.failure
            failed = self.deployment.failed + self._refused
            assert failed == [], failed

    def _wait_all_run(self) -> None:
        """There is no room for all."""


KINDS: tuple[type[Storm], ...] = (Breeze, Crowd, Storm)


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=[kind.__name__ for kind in KINDS])
    options = parser.parse_args()
    for kind in KINDS:
        if options.only not in (None, kind.__name__):
            continue
        directory = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
        api = ApiServer(NODE) if issubclass(kind, Crowd) else None
        node = FakeKubelet(
            directory / "kubelet", options.seed, settings=QUICK, runtime=Runtime("plain"), api=api
        )
        with contextlib.ExitStack() as stack:
            if api is not None:
                stack.enter_context(api)
            _long(kind, node, directory, options)
        shutil.rmtree(directory)
    return 0


def _long(kind: type[Storm], node: FakeKubelet, directory: Path, options: argparse.Namespace) -> None:
    agent = AgentProcess(directory, node.plugin_directory, node.pod_resources_socket)
    storm = kind(node, agent, options.seed)
    try:
        storm.begin()
        storm.blow(options.kills)
        storm.end()
    finally:
        storm.halt.set()
        storm.agent.kill()
        node.close()
        print(json.dumps({"seed": options.seed, **storm.report()}, indent=1), flush=True)
    assert not [one for one in directory.glob("agent*.log") if "Traceback" in one.read_text()]


if __name__ == "__main__":
    sys.exit(main())
