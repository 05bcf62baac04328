# SPDX-License-Identifier: Apache-2.0
"""Keeps processes of containers on the CPUs nearest to their GPUs, where the node wants that (`--bind-cpus=on`).

It only removes distant CPUs: a process's affinity is intersected with the CPUs of its GPUs' NUMA nodes, so a cpuset of
the kubelet and the program's own choice stay in force. Processes without a near CPU keep their affinity, and so do
those on a GPU whose NUMA node is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from agent.inventory.source import Inventory
from agent.inventory.sysfs import SYSFS, node_cpus
from agent.persistence.store import Store
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.kube.cgroups import parse
from gigaslice.runtime.logs import get_logger
from gigaslice.runtime.yielding import with_breaks

__all__ = ["CpuBinder", "narrowed"]

_POD_CGROUP = re.compile(r"pod[0-9a-f]{8}[-_][0-9a-f]{4}")  # as the kubelet names them
_PROC = Path("/proc")


def narrowed(present: frozenset[int], near: frozenset[int]) -> frozenset[int] | None:
    """The new affinity of a thread that may use PRESENT; None when it stays."""
    cpus = present & near
    return None if not cpus or cpus == present else cpus


class CpuBinder:
    """Binds the processes of every allocation in STORE, every INTERVAL seconds. Their children inherit the affinity."""

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
        self._reported: set[str] = set()
        self._log = get_logger("cpus")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(self._interval)

    async def round(self) -> None:
        """Binds once. Only the allocation table is read in this thread: a node has thousands of processes."""
        owners: dict[str, tuple[int, ...]] = {}
        async for allocation in with_breaks(self._store.table.allocations):
            reading = self._store.reading(allocation.id)
            if reading.alive:
                owners[allocation.id] = reading.pids
        allocations = tuple(
            allocation for allocation in self._store.table.allocations if allocation.id in owners
        )
        if allocations:
            nodes = {gpu.uuid: gpu.numa_node for gpu in self._inventory().gpus}
            await asyncio.to_thread(self._bind_all, allocations, owners, nodes)
        self._reported &= {allocation.id for allocation in self._store.table.allocations}

    def _bind_all(
        self,
        allocations: tuple[Allocation, ...],
        owners: Mapping[str, tuple[int, ...]],
        nodes: Mapping[str, int | None],
    ) -> None:
        members = self._members(owners.values())
        for allocation in allocations:
            near = self._near(allocation, nodes)
            if not near:
                continue
            own = [pid for pid in owners[allocation.id] if not self._is_elsewhere(allocation, pid)]
            pids = set(own)
            for pid in own:
                pids.update(members.get(_cgroup(self._proc, pid), ()))
            self._bind(allocation, pids, near)

    def _is_elsewhere(self, allocation: Allocation, pid: int) -> bool:
        """Whether a process with a slot of ALLOCATION runs in another pod: see `attribution.credible_owners`."""
        uids = {consumer.uid for consumer in allocation.consumers}
        place = parse(_cgroup(self._proc, pid)) if uids and "" not in uids else None
        return place is not None and place.uid not in uids

    def _near(self, allocation: Allocation, nodes: Mapping[str, int | None]) -> frozenset[int]:
        of_gpus = {nodes[gpu] for gpu in allocation.quota() if gpu in nodes}
        if None in of_gpus:
            return frozenset()
        return frozenset(cpu for node in of_gpus if node is not None for cpu in node_cpus(node, self._sysfs))

    def _bind(self, allocation: Allocation, pids: Iterable[int], near: frozenset[int]) -> None:
        bound = 0
        for thread in (thread for pid in pids for thread in self._threads(pid)):
            try:
                cpus = narrowed(frozenset(os.sched_getaffinity(thread)), near)
                if cpus is not None:
                    os.sched_setaffinity(thread, cpus)
                    bound += 1
            except ProcessLookupError:
                continue
            except OSError as error:
                if allocation.id not in self._reported:
                    self._reported.add(allocation.id)
                    self._log.warning(
                        "cpus not bound",
                        allocation=allocation.id,
                        container=allocation.name,
                        detail=f"{error.strerror}; the agent needs the capability SYS_NICE for this",
                    )
                return
        if bound:
            self._log.info("cpus bound", allocation=allocation.id, container=allocation.name, threads=bound)

    def _threads(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._proc / str(pid) / "task")]  # noqa: PTH208
        except OSError:
            return []

    def _members(self, owners: Iterable[tuple[int, ...]]) -> dict[str, list[int]]:
        """All processes of the containers of OWNERS, by cgroup; a process outside of pods has no such group."""
        groups = {_cgroup(self._proc, pid) for pids in owners for pid in pids} - {""}
        members: dict[str, list[int]] = {}
        for pid in self._pids() if groups else ():
            group = _cgroup(self._proc, pid)
            if group in groups:
                members.setdefault(group, []).append(pid)
        return members

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
