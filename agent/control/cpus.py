"""Keeps processes of containers on the CPUs nearest to their cards, where the node wants that (`--bind-cpus=on`).

Only ever takes CPUs away that are far: what a process may use is intersected with the CPUs of its cards' NUMA nodes, so
a cpuset of the kubelet and a choice of the program's own stay what they are. Processes that have no CPU near are left
alone, and so is everybody on a card whose NUMA node nobody knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from agent.discovery.source import Inventory
from agent.discovery.sysfs import SYSFS, node_cpus
from agent.state.records import Grant
from agent.state.store import Store
from agent.telemetry.logs import get_logger

__all__ = ["CpuBinder", "narrowed"]

_POD_CGROUP = re.compile(
    r"pod[0-9a-f]{8}[-_][0-9a-f]{4}"
)  # as the kubelet names them; nothing else is taken for one
_PROC = Path("/proc")


def narrowed(present: frozenset[int], near: frozenset[int]) -> frozenset[int] | None:
    """What PRESENT should become; None when it should stay."""
    wanted = present & near
    return None if not wanted or wanted == present else wanted


class CpuBinder:
    """Looks at the processes of every grant of STORE, every INTERVAL seconds; children inherit."""

    def __init__(
        self,
        store: Store,
        inventory: Callable[[], Inventory],
        interval: float,
        *,
        sysfs: Path = SYSFS,
        proc: Path = _PROC,
    ) -> None:
        self._store = store
        self._inventory = inventory
        self._interval = interval
        self._sysfs = sysfs
        self._proc = proc
        self._said: set[str] = set()
        self._log = get_logger("cpus")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            self.round()
            await asyncio.sleep(self._interval)

    def round(self) -> None:
        """Looks once."""
        owners = {key: reading.pids for key, reading in self._store.readings().items() if reading.alive}
        members = self._members(owners.values())
        for grant in self._store.book.grants:
            near = self._near(grant) if grant.id in owners else frozenset[int]()
            if not near:
                continue
            pids = set(owners[grant.id])
            for pid in owners[grant.id]:
                pids.update(members.get(_cgroup(self._proc, pid), ()))
            self._bind(grant, pids, near)
        self._said &= {grant.id for grant in self._store.book.grants}

    def _near(self, grant: Grant) -> frozenset[int]:
        cards = set(grant.quota())
        nodes = [gpu.numa_node for gpu in self._inventory().gpus if gpu.uuid in cards]
        if None in nodes:
            return frozenset()
        return frozenset(
            cpu for node in set(nodes) if node is not None for cpu in node_cpus(node, self._sysfs)
        )

    def _bind(self, grant: Grant, pids: Iterable[int], near: frozenset[int]) -> None:
        bound = 0
        for thread in (thread for pid in pids for thread in self._threads(pid)):
            try:
                wanted = narrowed(frozenset(os.sched_getaffinity(thread)), near)
                if wanted is not None:
                    os.sched_setaffinity(thread, wanted)
                    bound += 1
            except ProcessLookupError:
                continue
            except OSError as error:
                if grant.id not in self._said:
                    self._said.add(grant.id)
                    self._log.warning(
                        "cpus not bound",
                        allocation=grant.id,
                        container=grant.name,
                        detail=f"{error.strerror}; the agent needs the capability SYS_NICE for this",
                    )
                return
        if bound:
            self._log.info("cpus bound", allocation=grant.id, container=grant.name, threads=bound)

    def _threads(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._proc / str(pid) / "task")]  # noqa: PTH208
        except OSError:
            return []

    def _members(self, owners: Iterable[tuple[int, ...]]) -> dict[str, list[int]]:
        """All processes of the containers that OWNERS are in, by cgroup; plain processes have no such company."""
        wanted = {_cgroup(self._proc, pid) for pids in owners for pid in pids} - {""}
        found: dict[str, list[int]] = {}
        for pid in self._pids() if wanted else ():
            group = _cgroup(self._proc, pid)
            if group in wanted:
                found.setdefault(group, []).append(pid)
        return found

    def _pids(self) -> Iterator[int]:
        for name in os.listdir(self._proc):  # noqa: PTH208
            if name.isdigit():
                yield int(name)


def _cgroup(proc: Path, pid: int) -> str:
    """The cgroups of a process of a pod, as one text; empty for any other process."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = (proc / str(pid) / "cgroup").read_text(encoding="ascii")
        return text if _POD_CGROUP.search(text) else ""
    return ""
