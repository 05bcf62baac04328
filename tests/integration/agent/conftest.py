# SPDX-License-Identifier: Apache-2.0
"""A node: the kubelet stand-in and the agent as a process of its own, which may be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import vcuda
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import INVENTORY
from tests.fakedriver.env import driver_env
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubelet import ContainerSpec, FakeKubelet, Pace, PodSpec, Runtime, Settings
from tests.fakes.nodes import uuid
from tests.native.running import CLIENTS, LIBRARY, Client
from vcuda import contract

ROOT = Path(__file__).resolve().parents[3]
RESOURCE = "gigaslice.io/vgpu-memory"
PATIENCE = 60.0  # seconds until a test gives up; nothing is asserted about time
QUICK = Settings(
    dial_timeout_s=5.0,
    status_period_s=0.02,
    readmit_after_s=0.5,
    # The agent holds a start for as long as the kubelet's deadline lets it: 3 of these 6 seconds, 25 of a kubelet's 30.
    pace=Pace(
        crash_backoff_s=0.05, start_retries_s=(0.05, 1.2), pre_start_timeout_s=6.0, force_kill_delay_s=1.0
    ),
)


def wait_until(condition, what, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {patience} s")
        time.sleep(0.02)
    return found


def inventory_text(gpus=2, gib=24, numa=(0, 1)):
    return "gpus:\n" + "".join(
        f"  - {{uuid: {uuid(n)}, model: NVIDIA L4, memory: {gib}GiB, numa: {numa[n % len(numa)]}}}\n"
        for n in range(gpus)
    )


def wait_back(node, agent, slices=48):
    """Until an agent that was started, for the first time or again, serves all its slices."""
    agent.wait_registered()
    node.wait_allocatable(RESOURCE, slices, PATIENCE)


@contextlib.contextmanager
def ended(processes):
    """Returns when PROCESSES have ended, with all their threads: process 1 may take seconds to reap an orphan."""
    with contextlib.ExitStack() as stack:
        descriptors = []
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                descriptors.append(os.pidfd_open(process.pid))
                stack.callback(os.close, descriptors[-1])
        yield
        for descriptor in descriptors:
            ready, _, _ = select.select([descriptor], [], [], PATIENCE)
            assert ready, f"the agent has not ended within {PATIENCE} s"


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


class AgentProcess:
    """`gigaslice node` with its own output file; every start is a new process on the same directories."""

    def __init__(self, directory: Path, kubelet_dir: Path, pod_resources: Path) -> None:
        self.state = directory / "state"
        self.inventory = directory / "inventory.yaml"
        self.inventory.write_text(inventory_text())
        self.output = directory / "agent.log"
        self.flags = {
            "--state-dir": self.state,
            "--ledger-dir": directory / "ledgers",
            "--kubelet-dir": kubelet_dir,
            "--pod-resources": pod_resources,
            "--inventory": self.inventory,
            "--poll-interval": "300ms",
            "--scan-interval": "200ms",
            "--measure-interval": "200ms",
            "--metrics-address": "127.0.0.1:0",
            "--log-level": "debug",
        }
        self.driver: dict[str, str] | None = None  # environment of a simulated driver
        self.root = ROOT  # where its code is
        self.process: subprocess.Popen[bytes] | None = None
        self.registered_before = 0

    @property
    def socket(self) -> Path:
        return Path(self.flags["--kubelet-dir"]) / "gigaslice.io_vgpu-memory.sock"

    def command(self, **flags) -> list[str]:
        chosen = {**self.flags, **{"--" + name.replace("_", "-"): value for name, value in flags.items()}}
        return [
            sys.executable,
            "-m",
            "gigaslice_cli",
            "node",
            *(str(part) for pair in chosen.items() for part in pair),
        ]

    def start(self, **flags) -> None:
        assert self.process is None
        self.registered_before = len(self.events("registered"))
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self.command(**flags), cwd=self.root, stdout=output, stderr=output, env=self.environment()
            )

    def environment(self) -> dict[str, str]:
        if self.driver is not None:
            return self.driver
        steering = ("GIGASLICE_", "VCUDA_")
        return {name: value for name, value in os.environ.items() if not name.startswith(steering)}

    def run(self, **flags) -> tuple[int, list[str]]:
        """Runs another agent that is expected to end by itself; its code and the lines it says to the user."""
        ended = subprocess.run(
            self.command(**{"log-level": "error", **flags}),
            cwd=self.root, capture_output=True, text=True, timeout=PATIENCE, check=False, env=self.environment(),
        )  # fmt: skip
        assert "Traceback" not in ended.stderr
        return ended.returncode, [line for line in ended.stderr.splitlines() if line.startswith("gigaslice ")]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    @property
    def worker(self) -> psutil.Process | None:
        """The agent's own process behind the front; None while there is none that lives."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return next(filter(_lives, psutil.Process(self.process.pid).children()), None)
        return None

    def kill_worker(self) -> None:
        """Kills the agent's own process, and not its front, which starts another. Returns when it has ended, so that
        the next worker is another process.
        """
        worker = wait_until(lambda: self.worker, "the agent's process")
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
        wait_until(lambda: not _lives(worker), "the end of the agent's process")

    def _end(self, number: int) -> int:
        assert self.process is not None
        assert self.process.poll() is None, f"ended by itself: {self.output.read_text()[-2000:]}"
        with ended(psutil.Process(self.process.pid).children()):
            self.process.send_signal(number)
            code = self.process.wait(PATIENCE)
            self.process = None
        return code

    def events(self, name: str = "") -> list[dict]:
        text = self.output.read_text() if self.output.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if not name or event["event"] == name]

    def wait_event(self, name: str, count: int = 1) -> dict:
        """The newest event NAME as soon as there are COUNT of them. An agent that has ended logs none any more."""

        def newest() -> dict | None:
            code = None if self.process is None else self.process.poll()
            logged = self.events(name)
            if len(logged) >= count:
                return logged[-1]
            assert code is None, (
                f"ended with {code} before {count} x {name!r}: {self.output.read_text()[-2000:]}"
            )
            return None

        return wait_until(newest, f"{count} x {name!r}")

    def wait_registered(self, resources: int = 1) -> None:
        """Until the agent of the last start has registered RESOURCES of its resources.

        What the node reports says nothing of it: right after a kill it is still the report of before.
        """
        self.wait_event("registered", self.registered_before + resources)

    def wait_found(self) -> list[dict]:
        """The GPUs that the agent has found at its last start."""
        self.wait_registered()
        started = [number for number, event in enumerate(self.events()) if event["event"] == "starting"][-1]
        return [event for event in self.events()[started:] if event["event"] == "GPU found"]

    def status(self) -> list[dict]:
        """What `gigaslice status` says."""
        command = [sys.executable, "-m", "gigaslice_cli", "status", "--json", "--state-dir", str(self.state)]
        answer = subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, check=True, env=self.environment()
        )
        return json.loads(answer.stdout)["allocations"]


class ProgramAgent(AgentProcess):
    """The agent as another program, in a module that runs it as `python -m` does: each is one for some tests."""

    module = ""

    def command(self, **flags) -> list[str]:
        python, option, _, *words = super().command(**flags)
        return [python, option, self.module, *words]


class PatientAgent(ProgramAgent):
    """An agent that waits for an API server for as long as a test does."""

    module = "tests.integration.agent.patient"


@pytest.fixture
def directory():
    """Short enough for the name of a unix socket."""
    found = Path(tempfile.mkdtemp(prefix="gs-", dir="/tmp"))
    yield found
    shutil.rmtree(found)


@pytest.fixture
def kubelet(directory):
    made = FakeKubelet(directory / "kubelet", seed=7, settings=QUICK, runtime=Runtime("plain"))
    yield made
    made.close()


@pytest.fixture
def agent(directory, kubelet):
    made = AgentProcess(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
    yield made
    if made.process is not None:
        made.kill()
    text = made.output.read_text() if made.output.exists() else ""
    assert "Traceback" not in text, text[text.index("Traceback") :]


@pytest.fixture
def driver(directory):
    """Environment of programs on a simulated machine of two 24 GiB GPUs."""
    return driver_env("two-24g", directory / "machine")


@pytest.fixture
def gpu_node(kubelet, agent, driver):
    """As `node`, with the simulated driver's GPUs found through NVML."""
    agent.driver = driver
    agent.flags["--inventory"] = "nvml"
    kubelet.start()
    agent.start()
    wait_back(kubelet, agent, sum(event["slices"] for event in agent.wait_found()))
    return kubelet


@pytest.fixture
def program(driver):
    """program(container) -> a CUDA program under the container's quota, ready on its first GPU; killed at the end."""
    started = []

    def start(container, **extra):
        quota = {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(allocation_dir(container))}
        visible = {"CUDA_VISIBLE_DEVICES": gpu_of(container)}
        client = Client({**driver, **quota, **visible, **extra})
        started.append(client)
        return client.ready()

    yield start
    for client in started:
        client.kill()


@pytest.fixture
def bypass(driver):
    """bypass(container) -> a CUDA program with the container's mounts, but without the library."""
    started = []

    def start(container):
        limits = allocation_dir(container) / contract.LIMITS_FILE
        script = (
            "mount -t tmpfs none /etc && mkdir /etc/vcuda && : > /etc/vcuda/limits && "
            f"mount --bind {limits} /etc/vcuda/limits && exec {CLIENTS / 'client'} dlsym"
        )
        if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
            pytest.skip("mount namespaces cannot be made here")
        client = object.__new__(Client)
        client.process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script],
            env={**driver, "CUDA_VISIBLE_DEVICES": gpu_of(container)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(client)
        return client.ready()

    yield start
    for client in started:
        client.kill()


@pytest.fixture
def node(kubelet, agent):
    """Kubelet and agent, registered: 48 slices on two GPUs."""
    kubelet.start()
    agent.start()
    wait_back(kubelet, agent)
    return kubelet


@pytest.fixture
def api():
    """An API server that has the node."""
    with ApiServer(NODE) as made:
        yield made


@pytest.fixture
def begin(directory, api):
    """Starts a node of GPUs of GIB on two NUMA nodes, with its pods in the API server; flags are those of the agent.

    process: what the agent is.
    """
    started = []

    def start(policy="none", gpus=4, gib=24, settings=QUICK, process=AgentProcess, **flags):
        kubelet = FakeKubelet(
            directory / "kubelet", 7, policy, settings=settings, runtime=Runtime("plain"), api=api
        )
        agent = process(directory, kubelet.plugin_directory, kubelet.pod_resources_socket)
        agent.inventory.write_text(inventory_text(gpus, gib=gib))
        agent.flags |= {"--kubeconfig": api.kubeconfig(directory), "--node-name": NODE}
        agent.flags |= {"--" + name.replace("_", "-"): value for name, value in flags.items()}
        started.append((kubelet, agent))
        kubelet.start()
        agent.start()
        agent.wait_event("watching")
        wait_back(kubelet, agent, gpus * gib)
        return kubelet, agent

    yield start
    for kubelet, agent in started:
        if agent.process is not None:
            assert agent.terminate() == 0
        kubelet.close()
        assert "Traceback" not in agent.output.read_text()


def published_inventory(api):
    """What the node's annotation says; None while there is none."""
    text = api.get("nodes", NODE)["metadata"].get("annotations", {}).get(INVENTORY)
    return NodeInventory.decode(text) if text else None


def free_slices(api):
    """The free slices of each GPU as the node's annotation says; None while there is none."""
    found = published_inventory(api)
    return found and [one.free for one in found.gpus]


def until_there(path):
    """The command of a container that ends when PATH is made, in a runtime without namespaces."""
    return ("sh", "-c", 'until [ -e "$0" ]; do sleep 0.05; done', str(path))


def asking(count, name="main", **more):
    return ContainerSpec(name, {RESOURCE: count}, **more)


def pod(name, *counts, **more):
    """A pod of containers c0, c1, … with so many slices each."""
    return PodSpec(name, tuple(asking(count, f"c{number}") for number, count in enumerate(counts)), **more)


def allocation_dir(container) -> Path:
    """The host's directory behind a container's mounts."""
    (source,) = (
        mount.source for mount in container.started.mounts if mount.target == contract.CONTAINER_LIMITS
    )
    return Path(source).parent


def gpu_limits(container):
    """The limits of a container's GPUs, as its library reads them."""
    return vcuda.read_limits(allocation_dir(container) / contract.LIMITS_FILE).gpus


def gpu_of(container) -> str:
    return container.started.env["NVIDIA_VISIBLE_DEVICES"]
