"""Keeps the limits of running containers as they should be, and changes them when an administrator or a pod asks.

The allocation table comes first, then the directory's record, then the page, each number of which is one atomic store:
an agent that is killed in between leaves a allocation table that its successor carries out. Everything happens in the
agent's own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import vcuda
from agent.allocation.service import AllocationService
from agent.apiserver import Cluster
from agent.inventory.source import Inventory
from agent.persistence.store import Store
from gigaslice import units
from gigaslice.allocation.table import Allocation, AllocationOptions, AllocationTable
from gigaslice.errors import GigasliceError
from gigaslice.limits import live_limits
from gigaslice.model import ContainerKind, Pod, RequestOptions, SliceUnit, parse_options
from gigaslice.runtime.logs import get_logger

__all__ = ["Ask", "LimitsManager", "Outcome"]

Present = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A change of a running container. container, gpu: empty where there is only one. memory, cores: None to leave."""

    namespace: str
    pod: str
    container: str = ""
    gpu: str = ""
    memory: int | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done. before, after: the allocation. used: bytes in use by GPU."""

    before: Allocation
    after: Allocation
    used: Mapping[str, int]


class LimitsManager:
    """Writes the limits pages of STORE. WITHHOLD takes the device IDs that the kubelet must not give out."""

    def __init__(
        self,
        store: Store,
        allocator: AllocationService,
        cluster: Cluster,
        *,
        slice_bytes: int,
        interval: float,
        withhold: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._allocator = allocator
        self._cluster = cluster
        self._unit = SliceUnit(slice_bytes, units.parse_bytes)
        self._interval = interval
        self._withhold = withhold
        self._said: dict[str, str] = {}
        self._followed: dict[str, tuple[Pod, AllocationOptions]] = {}
        self._refreshed: AllocationTable | None = None
        self._wake = asyncio.Event()
        self._log = get_logger("limits")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            self._wake.clear()
            try:
                self.refresh()
                self._follow_annotations()
                await self._withhold(
                    live_limits.withheld(self._store.table, self._inventory.gpus, self._uncounted())
                )
            except GigasliceError as error:
                self._say("", "limits not kept", str(error))
            waits = {
                asyncio.create_task(self._wake.wait()),
                asyncio.create_task(self._cluster.news(self._interval)),
            }
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waits:
                    task.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    def _uncounted(self) -> frozenset[str]:
        """Allocations that neither the kubelet nor the scheduler counts: forgotten by the one, and their pods are no
        more.

        The requests of a pod that the API server shows are subtracted by the scheduler, whatever the kubelet believes.
        """
        if not (self._cluster.expected and self._cluster.synced):
            return frozenset()
        found = set()
        for allocation in self._store.table.allocations:
            if allocation.forgotten and allocation.kept and allocation.ref is not None:
                pod = self._cluster.pod(allocation.ref.namespace, allocation.ref.pod)
                same = pod is not None and (
                    allocation.owner is None or allocation.owner.uid == pod.uid or pod.mirror
                )
                if pod is None or not same or pod.terminal:
                    found.add(allocation.id)
        return frozenset(found)

    def refresh(self, *, every: bool = False) -> None:
        """Writes what follows from the allocation table to the pages. EVERY: also to pages that were never changed."""
        self._refreshed = self._store.table
        allocations = self._store.table.allocations
        special = {one.id for one in allocations if every or one.resizes or one.policy.elastic}
        if not special:
            return
        wanted = live_limits.limits_now(self._store.table, self._inventory.gpus, self._present())
        for allocation in allocations:
            if allocation.id not in special:
                continue
            try:
                changed = self._store.dirs.set_limits(allocation.id, wanted[allocation.id])
                if allocation.physical:
                    now = {gpu: count for gpu, (count, *_) in wanted[allocation.id].items()}
                    self._store.dirs.set_physical(
                        allocation.id, live_limits.physical_now(allocation, self._inventory.gpus, now)
                    )
            except vcuda.VcudaError as error:
                self._say(allocation.id, "limits not written", str(error), container=allocation.name)
                continue
            self._said.pop(allocation.id + "limits not written", None)
            if changed:
                now = {gpu: wanted[allocation.id][gpu][0] for gpu in changed}
                self._log.info(
                    "limits changed", allocation=allocation.id, container=allocation.name, bytes=now
                )

    def changed(self) -> None:
        """The allocation table may have changed: a container that was alone on its GPU is so no more, at once.

        Each container at the start gate says so ten times a second, and every ledger would be read for it.
        """
        if self._store.table is self._refreshed:
            return
        if any(
            allocation.resizes or allocation.policy.elastic for allocation in self._store.table.allocations
        ):
            self.refresh()
            self._wake.set()

    def resize(self, ask: Ask) -> Outcome | live_limits.Refusal:
        """Carries out what an administrator asks, all of it or nothing. Raises StorageError."""
        allocation = self._find(ask)
        if isinstance(allocation, live_limits.Refusal):
            return allocation
        if ask.memory is None and ask.cores is None:
            return live_limits.Refusal("nothing to change; say --memory or --cores", mistake=True)
        gpus = [ask.gpu] if ask.gpu else list(allocation.quota())
        memory = dict.fromkeys(gpus, ask.memory) if ask.memory is not None else {}
        cores = dict.fromkeys(gpus, ask.cores) if ask.cores is not None else {}
        return self._change(allocation, allocation, memory, cores)

    def _change(
        self, before: Allocation, allocation: Allocation, memory: Mapping[str, int], cores: Mapping[str, int]
    ) -> Outcome | live_limits.Refusal:
        present = self._present()
        after = live_limits.resized(
            self._store.table, allocation, self._inventory.gpus, present, memory=memory, cores=cores
        )
        if isinstance(after, live_limits.Refusal):
            return after
        quota = before.quota()
        grows = any(count > quota[gpu] for gpu, count in after.quota().items())
        if grows and (lack := self._allocator.host_lacks(after)):
            return live_limits.Refusal(f"that needs {lack}")
        if after != before:
            if after.resizes == before.resizes:
                after = replace(after, resizes=before.resizes + 1)
            self._store.resize(after)
            self._log.info(
                "resized",
                allocation=after.id,
                container=after.name,
                before=before.quota(),
                after=after.quota(),
                cores={gpu: after.cores_of(gpu) for gpu in after.quota()},
            )
        self.refresh()
        self._wake.set()
        return Outcome(before, after, present.get(after.id, {}))

    def _find(self, ask: Ask) -> Allocation | live_limits.Refusal:
        named = f"{ask.namespace}/{ask.pod}"
        of_pod = [
            allocation
            for allocation in self._store.table.allocations
            if allocation.ref
            and (allocation.ref.namespace, allocation.ref.pod) == (ask.namespace, ask.pod)
            and allocation.kept
            and not allocation.whole
        ]
        if not of_pod:
            return live_limits.Refusal(
                f"pod {named} holds no slices of this node; gigaslice status lists those that do",
                mistake=False,
            )
        names = sorted({allocation.ref.container for allocation in of_pod if allocation.ref})
        found = [
            allocation
            for allocation in of_pod
            if not ask.container or (allocation.ref and allocation.ref.container == ask.container)
        ]
        if not found:
            return live_limits.Refusal(
                f"pod {named} has no container {ask.container} with slices, but {', '.join(names)}"
            )
        if not ask.container and len(names) > 1:
            return live_limits.Refusal(
                f"pod {named} has several containers with slices; say --container {'|'.join(names)}",
                mistake=True,
            )
        return _changeable(found[-1])

    def _follow_annotations(self) -> None:
        known = {allocation.id for allocation in self._store.table.allocations}
        self._followed = {key: seen for key, seen in self._followed.items() if key in known}
        for allocation in self._store.table.allocations:
            if allocation.ref is None or allocation.undecided or allocation.whole or not allocation.kept:
                continue
            pod = self._cluster.pod(allocation.ref.namespace, allocation.ref.pod)
            if (
                pod is None
                or (allocation.owner and allocation.owner.uid != pod.uid)
                or not _is_app(pod, allocation)
            ):
                continue
            seen = self._followed.get(allocation.id)
            if seen is not None and seen[0] is pod and seen[1] is allocation.policy:
                continue  # nothing to follow in it, as before
            options = parse_options(pod.annotations, allocation.ref.container, self._unit)
            if options.mistakes:
                self._tell(pod, allocation, "InvalidAnnotation", "; ".join(options.mistakes))
            else:
                self._follow(pod, allocation, options)

    def _follow(self, pod: Pod, allocation: Allocation, options: RequestOptions) -> None:
        """Brings ALLOCATION into agreement with an annotation that was changed since it was last looked at."""
        policy = allocation.policy
        # Whose its GPUs are alone, and whether it may use host memory, was decided when they were chosen.
        wanted = replace(
            AllocationOptions.of(options), exclusive=policy.exclusive, oversubscribe=policy.oversubscribe
        )
        if wanted == policy:
            self._followed[allocation.id] = (pod, policy)
            self._said.pop(allocation.id + "GPUResizeDeferred", None)
            return
        memory: dict[str, int] = {}
        if options.parts != policy.parts:
            if options.parts and len(options.parts) != len(allocation.holds):
                self._tell(
                    pod,
                    allocation,
                    "GPUResizeDeferred",
                    f"{len(options.parts)} sizes for {len(allocation.holds)} GPUs; "
                    "the number of GPUs cannot change while it runs",
                )
                return
            memory = _sizes(allocation, options.parts, self._unit.size)
        cores = dict.fromkeys(allocation.quota(), options.cores) if options.cores != policy.cores else {}
        kept = (
            allocation
            if not cores
            else replace(allocation, limits=tuple(replace(x, cores=None) for x in allocation.limits))
        )
        refusal = live_limits.resized(
            self._store.table, allocation, self._inventory.gpus, self._present(), memory=memory, cores=cores
        )
        if isinstance(refusal, live_limits.Refusal):
            self._tell(pod, allocation, "GPUResizeDeferred", refusal.detail)
            return
        done = self._change(
            allocation, live_limits.with_limits(replace(kept, policy=wanted), {}, {}), memory, {}
        )
        if isinstance(done, live_limits.Refusal):
            self._tell(pod, allocation, "GPUResizeDeferred", done.detail)
            return
        self._said.pop(allocation.id + "GPUResizeDeferred", None)
        if memory and done.before.quota() != done.after.quota():
            sizes = ", ".join(f"{units.format_bytes(n)} of {gpu}" for gpu, n in done.after.quota().items())
            self._event(pod, allocation, "Normal", "GPUResizeCompleted", f"now {sizes}")

    def _tell(self, pod: Pod, allocation: Allocation, reason: str, text: str) -> None:
        if self._said.get(allocation.id + reason) != text:
            self._said[allocation.id + reason] = text
            self._log.warning(
                "annotation not applied", allocation=allocation.id, container=allocation.name, detail=text
            )
        self._event(pod, allocation, "Warning", reason, text)

    def _event(self, pod: Pod, allocation: Allocation, kind: str, reason: str, text: str) -> None:
        self._cluster.event(pod, kind, reason, text, allocation.ref.container if allocation.ref else "")

    def _say(self, allocation_id: str, event: str, detail: str, **more: str) -> None:
        """Logs a problem when it begins, not every round."""
        if self._said.get(allocation_id + event) != detail:
            self._said[allocation_id + event] = detail
            self._log.error(event, allocation=allocation_id, detail=detail, **more)

    def _present(self) -> Present:
        return {key: reading.present() for key, reading in self._store.readings().items()}

    @property
    def _inventory(self) -> Inventory:
        return self._allocator.inventory


def _changeable(allocation: Allocation) -> Allocation | live_limits.Refusal:
    if (allocation.owner and allocation.owner.init) or allocation.lent:
        return live_limits.Refusal(
            f"{allocation.name} is an init container, whose slices others take over; change those"
        )
    if allocation.undecided:
        return live_limits.Refusal(
            f"{allocation.name} has not started yet; wait until its annotations are settled"
        )
    return allocation


def _is_app(pod: Pod, allocation: Allocation) -> bool:
    return any(
        one.name == allocation.ref.container and one.kind is not ContainerKind.INIT
        for one in pod.containers
        if allocation.ref
    )


def _sizes(allocation: Allocation, parts: tuple[int, ...], slice_bytes: int) -> dict[str, int]:
    """Bytes by GPU: the largest part for the GPU with the most; what was given where no part is named."""
    if not parts:
        return {hold.gpu: hold.memory_bytes for hold in allocation.holds}
    quota = allocation.quota()
    largest_first = sorted(quota, key=lambda gpu: -quota[gpu])
    return {
        gpu: part * slice_bytes for gpu, part in zip(largest_first, sorted(parts, reverse=True), strict=True)
    }
