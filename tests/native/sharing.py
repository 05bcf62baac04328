# SPDX-License-Identifier: Apache-2.0
"""Containers that share a simulated GPU's time: real processes under the library, real pages, the agent's arbiter.

A `Stage` is a GPU; each `Tenant` on it has a limits page, a ledger and programs that launch (clients/load.c). What
each of them had is what the simulated driver says, not what the library believes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gigaslice.core.limits.compute_arbiter import ComputeArbiter, ComputeSample
from tests.native.running import CLIENTS, GIB, LIBRARY, Place
from vcuda.ledger import create_ledger, read_shares
from vcuda.limits import GpuLimit, create_limits, set_allowed, set_credit

INTERVAL = 0.005
"""Seconds between two passes of the arbiter, on average."""

Work = tuple[str, ...]
"""Arguments of the program: path, kernel, batch, pause."""

SMALL: Work = ("plain", "work_200us", "0", "0")
LONG: Work = ("plain", "work_60ms", "1", "0")
BURSTS: Work = ("stream", "work_1ms", "30", "30000")
SYNCHRONOUS: Work = ("plain", "work_2ms", "1", "500")


@dataclass
class Tenant:
    """A container with a share in percent. env: more of its environment."""

    directory: Path
    uuid: str
    cores: int
    elastic: bool = False
    weight: int = 1
    programs: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        identity = os.urandom(16)
        policy = (self.weight << 8) | int(self.elastic)
        limit = GpuLimit(self.uuid, 20 * GIB, cores_percent=self.cores, compute_policy=policy)
        create_limits(self.page, identity, [limit])
        create_ledger(self.ledger, identity, [limit])

    @property
    def page(self) -> Path:
        return self.directory / "limits"

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger"


class Stage:
    """A simulated GPU. Use as a context: its programs end with it."""

    def __init__(self, directory: Path, machine: str = "two-24g", *, arbiter: bool = True) -> None:
        self.place = Place(directory, machine)
        self.tenants: list[Tenant] = []
        self._arbiter = arbiter
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        state = json.loads(self.place.fakectl("state"))
        self.uuid = state["gpus"][0]["uuid"]

    def tenant(self, cores: int, *, elastic: bool = False, weight: int = 1) -> Tenant:
        """One more container."""
        made = Tenant(self.place.directory / f"tenant{len(self.tenants)}", self.uuid, cores, elastic, weight)
        self.tenants.append(made)
        if self._arbiter and self._thread is None:
            self._thread = threading.Thread(target=self._decide)
            self._thread.start()
        return made

    def start(
        self, tenant: Tenant | None, work: Work, count: int = 1, seconds: float = 600, streams: int = 1
    ) -> None:
        """Programs of TENANT that do WORK; without one, without the library."""
        env = self.place.plain_env()
        if tenant is not None:
            env |= {"LD_PRELOAD": str(LIBRARY), "VCUDA_DIR": str(tenant.directory)}
        for _ in range(count):
            program = subprocess.Popen(
                [str(CLIENTS / "load"), *work, str(seconds), str(streams)],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert program.stdout is not None
            line = program.stdout.readline()
            if line != "begin\n":
                raise AssertionError(program.communicate()[1])
            (tenant.programs if tenant is not None else self._others).append(program)

    @property
    def _others(self) -> list[subprocess.Popen[str]]:
        return self.__dict__.setdefault("others", [])

    def busy(self) -> dict[int, float]:
        """Seconds of the GPU that each living process has had, by PID."""
        state = json.loads(self.place.fakectl("state"))
        return {process["pid"]: process["busy_ns"][0] / 1e9 for process in state["processes"]}

    def shares(self, seconds: float, settle: float = 0.5) -> list[float]:
        """Percent of the GPU that each tenant has over SECONDS."""
        time.sleep(settle)
        before, begin = self.busy(), time.monotonic()
        time.sleep(seconds)
        after, passed = self.busy(), time.monotonic() - begin
        return [
            100 * sum(after[each.pid] - before[each.pid] for each in tenant.programs) / passed
            for tenant in self.tenants
        ]

    def _decide(self) -> None:
        arbiter, chance = ComputeArbiter(), random.Random(1)
        granted: dict[Path, int] = {}
        while not self._leaving.wait(INTERVAL * chance.uniform(0.5, 1.5)):
            seen = {str(tenant.page): self._sighting(tenant) for tenant in list(self.tenants)}
            for page, allowance in arbiter.decide(time.monotonic(), seen).items():
                set_credit(page, self.uuid, int(allowance.credit * 1e6))
                if granted.get(Path(page)) != allowance.allowed:
                    set_allowed(page, self.uuid, allowance.allowed)
                    granted[Path(page)] = allowance.allowed

    def _sighting(self, tenant: Tenant) -> ComputeSample:
        use = read_shares(tenant.ledger)[tenant.uuid]
        return ComputeSample(
            tenant.cores * 10, use.flying, use.spent, use.waiting, tenant.elastic, tenant.weight
        )

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for program in [*self._others, *(each for tenant in self.tenants for each in tenant.programs)]:
            program.kill()
            program.communicate()
        self._leaving.set()
        if self._thread is not None:
            self._thread.join()
