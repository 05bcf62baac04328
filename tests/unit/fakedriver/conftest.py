# SPDX-License-Identifier: Apache-2.0
"""Processes on a simulated machine of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakedriver.cgroups import make_group, make_root
from tests.fakedriver.env import ROOT, driver_env, library_directory


class Peer:
    """A process on the driver that evaluates expressions (see client.py)."""

    def __init__(
        self, env: dict[str, str], wrapper: tuple[str, ...] = (), module: str = "tests.unit.fakedriver.client"
    ) -> None:
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            bufsize=1,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __call__(self, expression: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(expression.replace("\n", " ") + "\n")
        line = self.process.stdout.readline()
        assert line, f"the process ended: {self.end()}"
        answer = json.loads(line)
        assert "value" in answer, answer["error"]
        return answer["value"]

    def end(self) -> str:
        """Closes its input, waits, and returns what it wrote to stderr."""
        _, err = self.process.communicate()
        return err

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.process.kill()
        self.process.communicate()


class Machine:
    """One simulated machine: its processes, and orders to its driver."""

    def __init__(self, machine: str | Path, state: Path) -> None:
        self.machine = machine
        self.state_file = state
        self.peers: list[Peer] = []

    def env(self, **extra: str) -> dict[str, str]:
        return driver_env(self.machine, self.state_file, **{"PYTHONPATH": str(ROOT), **extra})

    def peer(self, *wrapper: str, **extra: str) -> Peer:
        """A process, started by the command WRAPPER if one is given."""
        started = Peer(self.env(**extra), wrapper)
        self.peers.append(started)
        return started

    def fakectl(self, *args: str | int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(library_directory() / "fakectl"), *map(str, args)],
            env=self.env(),
            text=True,
            capture_output=True,
            check=False,
        )

    def order(self, *args: str | int) -> None:
        done = self.fakectl(*args)
        assert done.returncode == 0, done.stderr

    def state(self) -> Any:
        done = self.fakectl("state")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def close(self) -> None:
        for peer in self.peers:
            peer.process.kill()
            peer.process.communicate()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes machines; their processes end with the test."""
    made: list[Machine] = []

    def make(name: str | Path = "two-24g") -> Machine:
        made.append(Machine(name, tmp_path / f"state{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def small(machine: Callable[..., Machine]) -> Machine:
    """Two GPUs of 24 GiB, 100 MiB a context."""
    return machine("two-24g")


@pytest.fixture
def written(machine: Callable[..., Machine]) -> Iterator[Callable[[str], Machine]]:
    """A machine from the text of a machine file, whose name leaves room in the driver's messages."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:

        def make(text: str) -> Machine:
            path = Path(name) / "machine.txt"
            path.write_text(text)
            return machine(path)

        yield make


class LimitedNode:
    """A machine with limits, its tree of cgroups, and an agent that may set them."""

    def __init__(self, machine: Machine, root: Path, backend: str = "misc") -> None:
        self.machine, self.root, self.backend = machine, root, backend
        make_root(root, backend)
        self.agent = machine.peer(FAKEDRIVER_ADMIN="yes")

    def group(self, name: str, controller: bool = True) -> Path:
        return make_group(self.root / name, self.backend, controller)

    def process(self, group: Path | None) -> Peer:
        return self.machine.peer(**({"FAKEDRIVER_CGROUP": str(group)} if group else {}))

    def set(self, group: Path, hard: int, soft: int = 0, index: int = 0) -> int:
        return int(self.agent(f"set_limit({str(group)!r}, {hard}, {soft}, {index})"))

    def get(self, group: Path, index: int = 0) -> list[int]:
        return list(self.agent(f"get_limit({str(group)!r}, {index})"))


@pytest.fixture
def node(written: Callable[[str], Machine], tmp_path: Path) -> Callable[..., LimitedNode]:
    def make(*keys: str, backend: str = "misc", gpu: str = "  memory: 24GiB") -> LimitedNode:
        text = "\n".join([f"memory_limits: {backend}", "context_memory: 0", *keys, "gpu *:", gpu, "gpu 1:"])
        return LimitedNode(written(text + "\n"), tmp_path / "cgroup", "dmem" if backend == "dmem" else "misc")

    return make
