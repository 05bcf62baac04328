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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from agent.audit.cgroups import parse
from agent.discovery.source import Inventory
from agent.discovery.sysfs import SYSFS, node_cpus
from agent.state.breaks import with_breaks
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
            await self.round()
            await asyncio.sleep(self._interval)

    async def round(self) -> None:
        """Looks once. The book is read here, everything else in a thread: a node has thousands of processes."""
        owners: dict[str, tuple[int, ...]] = {}
        async for grant in with_breaks(self._store.book.grants):
            reading = self._store.reading(grant.id)
            if reading.alive:
                owners[grant.id] = reading.pids
        grants = tuple(grant for grant in self._store.book.grants if grant.id in owners)
        if grants:
            nodes = {gpu.uuid: gpu.numa_node for gpu in self._inventory().gpus}
            await asyncio.to_thread(self._look, grants, owners, nodes)
        self._said &= {grant.id for grant in self._store.book.grants}

    def _look(
        self,
        grants: tuple[Grant, ...],
        owners: Mapping[str, tuple[int, ...]],
        nodes: Mapping[str, int | None],
    ) -> None:
        members = self._members(owners.values())
        for grant in grants:
            near = self._near(grant, nodes)
            if not near:
                continue
            own = [pid for pid in owners[grant.id] if not self._is_elsewhere(grant, pid)]
            pids = set(own)
            for pid in own:
                pids.update(members.get(_cgroup(self._proc, pid), ()))
            self._bind(grant, pids, near)

    def _is_elsewhere(self, grant: Grant, pid: int) -> bool:
        """Whether a process that holds a slot of GRANT's ledger runs in another pod: see `audit.rules.credible`."""
        place = parse(_cgroup(self._proc, pid)) if grant.owner else None
        return place is not None and grant.owner is not None and place.uid != grant.owner.uid

    def _near(self, grant: Grant, nodes: Mapping[str, int | None]) -> frozenset[int]:
        of_cards = {nodes[gpu] for gpu in grant.quota() if gpu in nodes}
        if None in of_cards:
            return frozenset()
        return frozenset(cpu for node in of_cards if node is not None for cpu in node_cpus(node, self._sysfs))

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
