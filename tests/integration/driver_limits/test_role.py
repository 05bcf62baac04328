# SPDX-License-Identifier: Apache-2.0
"""`gigaslice driver-limits` as a process, with NVML's calls, on the simulated driver with the rules of each backend."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gigaslice.core.errors import ControlError, MissingError
from gigaslice.core.limits.driver_limit_messages import (
    ApplyAnswer,
    ApplyRequest,
    ContainerLimits,
    GpuLimitState,
    Leaf,
    PodLimits,
    PodLimitState,
    SupportAnswer,
    WatchAnswer,
    WatchRequest,
)
from gigaslice.runtime.local_protocol import ask
from tests.fakedriver.cgroups import make_group, make_root, region_of
from tests.unit.fakedriver.conftest import Machine, Peer

GIB, MIB = 1 << 30, 1 << 20
OWN, UID = "1c48913c-b29f-11e7-9350-020968147796", "2c48913c-b29f-11e7-9350-020968147796"
ID = "a1" * 32
PCI = "00000000:3b:00.0"
OOM = -2
# As `gigaslice driver-limits` in a pod of its own, with ordinary directories for a mount of cgroup v2.
ROLE = """
import os, sys
from pathlib import Path
from gigaslice.roles.driver_limits import cgroup_tree, service
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
root, socket, own = map(Path, sys.argv[1:])
cgroup_tree.filesystem = lambda path: cgroup_tree._CGROUP2 if path == root else 0
(own / "cgroup.procs").write_text(f"{os.getpid()}\\n")
service.run(DriverLimitSettings(socket=socket, cgroup_root=root), "0.0")
"""


class Node:
    """A node with a pod, the role, and processes on its GPU."""

    def __init__(self, tmp_path: Path, short: Path, backend: str, *keys: str) -> None:
        self.kind = "dmem" if backend == "dmem" else "misc"
        self.root = make_root(tmp_path / "cgroup", self.kind, {region_of(PCI): 24 * GIB})
        self.own = self.group(f"kubepods/pod{OWN}")
        self.pod = self.group(f"kubepods/burstable/pod{UID}")
        self.container = self.group(f"kubepods/burstable/pod{UID}/{ID}")
        text = [f"memory_limits: {backend}", "context_memory: 0", *keys, "gpu *:", "  memory: 24GiB"]
        (tmp_path / "machine.txt").write_text("\n".join([*text, "gpu 0:", f"  pci: {PCI}", ""]))
        self.machine = Machine(tmp_path / "machine.txt", tmp_path / "driver")
        self.socket = short / "limits.sock"
        self.log = tmp_path / "log"
        self.roles: list[subprocess.Popen[bytes]] = []
        self.gpu = ""

    def group(self, path: str) -> Path:
        directory = self.root
        for name in Path(path).parts:
            directory /= name
            if not directory.exists():
                make_group(directory, self.kind)
        return directory

    def start(self, **env: str) -> subprocess.Popen[bytes]:
        """A role that answers."""
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            role = subprocess.Popen(
                [sys.executable, "-c", ROLE, str(self.root), str(self.socket), str(self.own)],
                env=self.machine.env(**env),
                stderr=log,
            )
        self.roles.append(role)
        until(lambda: self.socket.exists() or role.poll() is not None)
        assert role.poll() is None, self.log.read_text()
        return role

    def support(self) -> SupportAnswer:
        support = SupportAnswer.decode(ask(self.socket, "role", {"support": {}}))
        self.gpu = next(iter(support.gpus), "")
        return support

    def apply(self, size: int, *containers: ContainerLimits, uid: str = UID) -> PodLimitState:
        request = ApplyRequest((PodLimits(uid, {self.gpu: size}),), containers)
        (pod,) = ApplyAnswer.decode(ask(self.socket, "role", request.encode())).pods
        return pod

    def process(self, group: Path | None = None) -> Peer:
        """A process in the container, with a context."""
        process = self.machine.peer(FAKEDRIVER_CGROUP=str(group or self.container))
        process("context(0)")
        return process

    def close(self) -> None:
        for role in self.roles:
            role.kill()
            role.wait()
        self.machine.close()


def until(condition: Callable[[], object]) -> None:
    """Waits; the test's own limit ends a wait in vain."""
    while not condition():
        time.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path, short_dir: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(backend: str, *keys: str) -> Node:
        nodes.append(Node(tmp_path, short_dir, backend, *keys))
        return nodes[-1]

    yield make
    for each in nodes:
        each.close()


both = pytest.mark.parametrize("backend", ["misc", "dmem"])


@both
def test_a_wall_bounds_a_pod_without_our_library(node: Callable[..., Node], backend: str) -> None:
    made = node(backend)
    made.start()
    support = made.support()
    assert (support.backend, support.reason) == (backend, "")
    assert support.gpus[made.gpu].total == 24 * GIB
    assert made.apply(2 * GIB).gpus == {made.gpu: GpuLimitState(2 * GIB, 0)}
    process = made.process()
    assert process(f"alloc({2 * GIB})") > 0
    assert process("alloc(4096)") == OOM
    assert made.apply(GIB).gpus == {made.gpu: GpuLimitState(2 * GIB, 2 * GIB)}
    process.kill()
    assert made.apply(GIB).gpus == {made.gpu: GpuLimitState(GIB, 0)}
    assert made.process()(f"alloc({GIB + 1})") == OOM


@both
def test_a_gpu_that_a_pod_has_nothing_of_gives_it_nothing(node: Callable[..., Node], backend: str) -> None:
    made = node(backend)
    made.start()
    made.support()
    assert made.apply(0).gpus == {made.gpu: GpuLimitState(0, 0)}
    assert made.process()("alloc(4096)") == OOM


@both
def test_what_was_used_before_the_wall(node: Callable[..., Node], backend: str) -> None:
    """dmem counts it, and the wall follows it; misc never does."""
    made = node(backend)
    made.start()
    made.support()
    process = made.process()
    process(f"alloc({3 * GIB})")
    counted = 3 * GIB if backend == "dmem" else 0
    assert made.apply(GIB).gpus == {made.gpu: GpuLimitState(max(GIB, counted), counted)}


@both
def test_a_killed_role_leaves_the_walls_and_the_next_goes_on(node: Callable[..., Node], backend: str) -> None:
    made = node(backend)
    role = made.start()
    made.support()
    made.apply(2 * GIB)
    role.send_signal(signal.SIGKILL)
    role.wait()
    assert made.process()(f"alloc({2 * GIB + 1})") == OOM
    with pytest.raises(MissingError):
        ask(made.socket, "role", {"support": {}})
    made.start()
    assert made.apply(2 * GIB).gpus == {made.gpu: GpuLimitState(2 * GIB, 0)}
    assert made.apply(GIB).gpus == {made.gpu: GpuLimitState(GIB, 0)}


@both
def test_a_role_killed_in_the_middle_of_passes_leaves_what_the_next_one_mends(
    node: Callable[..., Node], backend: str
) -> None:
    """Killed at moments spread over passes that set twenty pods, each time with other numbers."""
    made = node(backend)
    made.start()
    made.support()
    uids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(20)]
    for uid in uids:
        made.group(f"kubepods/pod{uid}")
    for step in range(8):
        role = made.roles[-1]
        request = ApplyRequest(tuple(PodLimits(uid, {made.gpu: (step + 1) * 100 * MIB}) for uid in uids))
        asking = subprocess.Popen(
            [sys.executable, "-c", "import json, sys; from pathlib import Path\n"
             "from gigaslice.runtime.local_protocol import ask\n"
             "ask(Path(sys.argv[1]), 'role', json.loads(sys.argv[2]))",
             str(made.socket), json.dumps(request.encode())], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(0.05 + 0.02 * step)
        role.kill()
        role.wait()
        asking.wait()
        made.start()
        request = ApplyRequest(tuple(PodLimits(uid, {made.gpu: (step + 2) * 100 * MIB}) for uid in uids))
        answer = ApplyAnswer.decode(ask(made.socket, "role", request.encode()))
        expected = {made.gpu: GpuLimitState((step + 2) * 100 * MIB, 0)}
        assert all(pod.gpus == expected and not pod.problem for pod in answer.pods)


def test_a_dead_pods_wall_is_not_a_new_ones(node: Callable[..., Node]) -> None:
    made = node("misc", "memory_limits_reuse: yes")
    made.start()
    made.support()
    made.apply(GIB)
    shutil.rmtree(made.pod)
    fresh = "3c48913c-b29f-11e7-9350-020968147796"
    container = made.group(f"kubepods/burstable/pod{fresh}/{ID}")
    pod = made.apply(4 * GIB, uid=fresh)
    assert pod.gpus == {made.gpu: GpuLimitState(4 * GIB, 0)}
    named = ContainerLimits(fresh, ID, {made.gpu: 4 * GIB})
    made.apply(4 * GIB, *([named] if pod.leaves else []), uid=fresh)
    process = made.process(container)
    assert process(f"alloc({4 * GIB})") > 0 and process("alloc(4096)") == OOM


def test_a_container_that_was_given_its_own_entry_is_told_and_set(node: Callable[..., Node]) -> None:
    made = node("misc")
    made.start()
    made.support()
    made.apply(2 * GIB)
    hook = made.process(made.own)
    limits = (
        "(lambda n: (n.nvmlInit(), n.nvmlDeviceSetMemoryLimits_v1(n.nvmlDeviceGetHandleByIndex(0),"
        f" n.c_nvmlSetMemoryLimits_v1_t(b'{made.container}', 0, {20 * GIB})), 1)[-1])(__import__('pynvml'))"
    )
    assert hook(limits) == 1
    (made.container / "cgroup.procs").write_text("7\n")
    assert made.apply(2 * GIB).leaves == (Leaf(ID, made.gpu, 20 * GIB, (7,)),)
    assert made.apply(2 * GIB, ContainerLimits(UID, ID, {made.gpu: GIB})).leaves == ()
    process = made.process()
    assert process(f"alloc({GIB})") > 0 and process("alloc(4096)") == OOM


def test_limits_that_went_with_the_gpus_state_are_set_again(node: Callable[..., Node]) -> None:
    made = node("misc")
    made.start()
    made.support()
    made.apply(GIB)
    made.machine.order("forget-limits", 0)
    assert made.process()(f"alloc({2 * GIB})") > 0
    made.apply(GIB)
    assert made.process()(f"alloc({2 * GIB})") == OOM


@both
def test_without_the_right_to_set_the_reason_says_so(node: Callable[..., Node], backend: str) -> None:
    made = node(backend)
    made.start(FAKEDRIVER_ADMIN="no")
    support = made.support()
    assert support.backend == "none" and "CAP_SYS_ADMIN" in support.reason


@pytest.mark.parametrize(("backend", "reason"), [("none", "branch 615"), ("off", "RmMemacctMode=0")])
def test_a_driver_without_limits_says_so(node: Callable[..., Node], backend: str, reason: str) -> None:
    made = node(backend)
    made.start()
    support = made.support()
    assert support.backend == "none" and reason in support.reason
    if backend == "none":
        with pytest.raises(ControlError, match="branch 615"):
            made.apply(GIB)
    else:
        assert made.apply(GIB).gpus[made.gpu].problem


def test_pods_are_told_as_they_come(node: Callable[..., Node]) -> None:
    made = node("misc")
    made.start()
    answer = WatchAnswer.decode(ask(made.socket, "role", WatchRequest(0).encode()))
    assert answer.uids == (OWN, UID)
    made.group("kubepods/besteffort/pod" + "0f" * 16)
    while "0f" * 16 not in answer.uids:
        answer = WatchAnswer.decode(ask(made.socket, "role", WatchRequest(answer.sequence, 20).encode()))


def test_it_ends_when_asked_and_is_in_a_network_of_its_own(node: Callable[..., Node]) -> None:
    made = node("misc")
    role = made.start()
    own, other = (Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", role.pid))
    assert own != other or "network not left" in made.log.read_text()
    role.terminate()
    assert role.wait(30) == 0
    assert not made.socket.exists()


def test_the_command_runs_it(tmp_path: Path, short_dir: Path, node: Callable[..., Node]) -> None:
    made = node("misc")
    command = Path(sys.executable).with_name("gigaslice")
    role = subprocess.Popen(
        [command, "driver-limits", "--socket", made.socket, "--cgroup-root", tmp_path],
        env=made.machine.env(), stderr=subprocess.PIPE,
    )  # fmt: skip
    made.roles.append(role)
    until(made.socket.exists)
    support = made.support()
    assert support.backend == "none" and f"{tmp_path} is no cgroup v2" in support.reason
    role.terminate()
    assert role.wait(30) == 0
    assert role.stderr is not None
    role.stderr.close()
