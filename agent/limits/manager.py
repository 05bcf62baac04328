# SPDX-License-Identifier: Apache-2.0
"""Keeps the limits of running containers up to date, and changes them for an administrator or a pod's annotations.

A change is written first to the allocation table, then to the directory's record, then to the page, where each number
is one atomic store. An agent that is killed in between leaves an allocation table that the next agent carries out.
Everything happens in the agent's own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import vcuda
from agent.allocation.service import AllocationService
from agent.apiserver import Cluster
from agent.apiserver.consumer_pods import ConsumerPods
from agent.inventory.source import Inventory
from agent.persistence.store import Store
from gigaslice.core import units
from gigaslice.core.allocation.consumer import Consumer
from gigaslice.core.allocation.table import Allocation, AllocationOptions, AllocationTable
from gigaslice.core.errors import GigasliceError
from gigaslice.core.limits import live_limits
from gigaslice.core.model import (
    AnnotationRights,
    ContainerKind,
    Pod,
    RequestOptions,
    SliceUnit,
    parse_options,
)
from gigaslice.core.uuids import matching
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["LimitChange", "LimitsManager", "ResizeOutcome"]

Present = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A request to change what runs: a container of a pod or, by the first digits of its id, an allocation.

    container, gpu: empty: the only one. memory, cores: None: keep.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    gpu: str = ""
    memory: int | None = None
    cores: int | None = None
    allocation: str = ""

    @property
    def subject(self) -> str:
        """What is to be changed, in words."""
        return f"allocation {self.allocation}" if self.allocation else f"pod {self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class ResizeOutcome:
    """The result of a change. before, after: the allocation. used: bytes in use by GPU."""

    before: Allocation
    after: Allocation
    used: Mapping[str, int]


class LimitsManager:
    """Writes the limits pages of STORE."""

    def __init__(
        self,
        store: Store,
        allocator: AllocationService,
        cluster: Cluster,
        *,
        slice_bytes: int,
        rights: AnnotationRights = AnnotationRights.REFUSE,
        interval: float,
        most: Callable[[Allocation, str], int | None] = lambda allocation, gpu: None,
    ) -> None:
        """Initializes the manager.

        Args:
            store: The allocation table and the limits pages.
            allocator: The GPUs, and whether the host has memory to lend.
            cluster: The pods of this node.
            slice_bytes: Memory of one unit in annotations.
            rights: Which annotations count.
            interval: Seconds between two passes without news.
            most: Returns how large the page of an allocation may be on a GPU before the driver's own limit has grown
                (`agent.limits.driver_limit_manager`); None where there is none.
        """
        self._store = store
        self._allocator = allocator
        self._cluster = cluster
        self._pods = ConsumerPods(cluster)
        self._unit = SliceUnit(slice_bytes, units.parse_bytes)
        self._rights = rights
        self._interval = interval
        self._most = most
        self._reported = LogOnce()
        self._applied: dict[str, tuple[Pod, AllocationOptions]] = {}
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
            except GigasliceError as error:
                self._report("", "limits not kept", str(error))
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

    def refresh(self, *, every: bool = False) -> None:
        """Writes the limits that follow from the allocation table. EVERY: also to pages that were never changed."""
        self._refreshed = self._store.table
        allocations = self._store.table.allocations
        special = {
            allocation.id
            for allocation in allocations
            if every or allocation.resizes or allocation.policy.elastic
        }
        if not special:
            return
        readings = self._store.readings()
        present = {key: reading.present() for key, reading in readings.items()}
        limits = live_limits.limits_now(self._store.table, self._inventory.gpus, present)
        for allocation in allocations:
            if allocation.id not in special:
                continue
            limits[allocation.id] = self._within_driver_limit(
                allocation, limits[allocation.id], readings[allocation.id].limits
            )
            try:
                changed = self._store.dirs.set_limits(allocation.id, limits[allocation.id])
                if allocation.physical:
                    now = {gpu: count for gpu, (count, *_) in limits[allocation.id].items()}
                    self._store.dirs.set_physical(
                        allocation.id, live_limits.physical_now(allocation, self._inventory.gpus, now)
                    )
            except vcuda.VcudaError as error:
                self._report(allocation.id, "limits not written", str(error), container=allocation.name)
                continue
            self._reported.over((allocation.id, "limits not written"))
            if changed:
                now = {gpu: limits[allocation.id][gpu][0] for gpu in changed}
                self._log.info(
                    "limits changed", allocation=allocation.id, container=allocation.name, bytes=now
                )

    def _within_driver_limit(
        self, allocation: Allocation, limits: Mapping[str, tuple[int, int]], page: Mapping[str, int]
    ) -> dict[str, tuple[int, int]]:
        """LIMITS, where they grow only as far as the driver allows by now. PAGE: the bytes that the page has."""
        within = {}
        for gpu, (count, cores) in limits.items():
            most = self._most(allocation, gpu) if count > page.get(gpu, count) else None
            within[gpu] = (count if most is None else max(page[gpu], min(count, most)), cores)
        return within

    def changed(self) -> None:
        """Refreshes at once when the allocation table has changed: a container may no longer be alone on its GPU.

        Containers that wait for their start cause this call ten times a second, so an unchanged table costs nothing.
        """
        if self._store.table is self._refreshed:
            return
        if any(
            allocation.resizes or allocation.policy.elastic for allocation in self._store.table.allocations
        ):
            self.refresh()
            self._wake.set()

    def resize(self, change: LimitChange) -> ResizeOutcome | live_limits.ResizeRefusal:
        """Carries out an administrator's change, all of it or nothing. Raises StorageError."""
        allocation = self._find(change)
        if isinstance(allocation, live_limits.ResizeRefusal):
            return allocation
        if change.memory is None and change.cores is None:
            return live_limits.ResizeRefusal("nothing to change; give --memory or --cores", mistake=True)
        gpus = list(allocation.quota())
        if change.gpu:
            gpus = matching(change.gpu, gpus) or [change.gpu]
            if len(gpus) > 1:
                return live_limits.ResizeRefusal(
                    f"several GPUs of {allocation.name} begin with {change.gpu}: {', '.join(gpus)}",
                    mistake=True,
                )
        memory = dict.fromkeys(gpus, change.memory) if change.memory is not None else {}
        cores = dict.fromkeys(gpus, change.cores) if change.cores is not None else {}
        return self._change(allocation, allocation, memory, cores)

    def _change(
        self, before: Allocation, allocation: Allocation, memory: Mapping[str, int], cores: Mapping[str, int]
    ) -> ResizeOutcome | live_limits.ResizeRefusal:
        present = self._present()
        after = live_limits.resized(
            self._store.table, allocation, self._inventory.gpus, present, memory=memory, cores=cores
        )
        if isinstance(after, live_limits.ResizeRefusal):
            return after
        if sentence := _beyond_given(after):
            return live_limits.ResizeRefusal(sentence)
        quota = before.quota()
        grows = any(count > quota[gpu] for gpu, count in after.quota().items())
        if grows and (lack := self._allocator.host_lacks(after)):
            return live_limits.ResizeRefusal(f"that needs {lack}")
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
        return ResizeOutcome(before, after, present.get(after.id, {}))

    def _find(self, change: LimitChange) -> Allocation | live_limits.ResizeRefusal:
        allocations = self._store.table.allocations
        limited = [allocation for allocation in allocations if allocation.keeps and not allocation.whole]
        none = live_limits.ResizeRefusal(
            f"{change.subject} holds no slices of this node; gigaslice status lists those that do"
        )
        if change.allocation:
            named = [allocation for allocation in limited if allocation.id.startswith(change.allocation)]
            if len(named) > 1:
                return live_limits.ResizeRefusal(
                    f"{change.subject} may be one of {len(named)}; write more of its id", mistake=True
                )
            return _changeable(named[0]) if named else none
        of_pod = [
            (consumer.ref.container, allocation)
            for allocation in limited
            for consumer in allocation.consumers
            if (consumer.ref.namespace, consumer.ref.pod) == (change.namespace, change.pod)
        ]
        if not of_pod:
            return none
        names = sorted({container for container, _ in of_pod})
        of_container = [allocation for container, allocation in of_pod if change.container in ("", container)]
        if not of_container:
            return live_limits.ResizeRefusal(
                f"{change.subject} has no container {change.container} with slices, but {', '.join(names)}"
            )
        if not change.container and len(names) > 1:
            return live_limits.ResizeRefusal(
                f"{change.subject} has several containers with slices; name one with --container {'|'.join(names)}",
                mistake=True,
            )
        return _changeable(of_container[-1])

    def _follow_annotations(self) -> None:
        ids = {allocation.id for allocation in self._store.table.allocations}
        self._applied = {key: applied for key, applied in self._applied.items() if key in ids}
        for allocation in self._store.table.allocations:
            origin = allocation.origin
            if not origin.follows_annotations or origin.undecided or allocation.whole or not allocation.keeps:
                continue
            followed = [
                (pod, consumer)
                for consumer in allocation.consumers
                if (pod := self._cluster.pod(consumer.ref.namespace, consumer.ref.pod)) is not None
                and consumer.may_be_of(pod)
                and _is_app(pod, consumer)
            ]
            if len(followed) == 1:  # of several, nothing says whose annotations are meant
                self._follow_pod(*followed[0], allocation)

    def _follow_pod(self, pod: Pod, consumer: Consumer, allocation: Allocation) -> None:
        applied = self._applied.get(allocation.id)
        if applied is not None and applied[0] is pod and applied[1] is allocation.policy:
            return
        options = parse_options(
            pod.annotations,
            consumer.ref.container,
            self._unit,
            self._rights,
            recorded=asdict(allocation.policy),
        )
        if options.mistakes:
            self._report_annotation(allocation, "InvalidAnnotation", "; ".join(options.mistakes))
        else:
            self._follow(pod, allocation, options)

    def _follow(self, pod: Pod, allocation: Allocation, options: RequestOptions) -> None:
        """Applies annotations that have changed since they were last applied."""
        policy = allocation.policy
        # Exclusive GPUs and the use of host memory were decided when the GPUs were chosen.
        updated = replace(
            AllocationOptions.of(options), exclusive=policy.exclusive, oversubscribe=policy.oversubscribe
        )
        if updated == policy:
            self._applied[allocation.id] = (pod, policy)
            self._reported.over((allocation.id, "GPUResizeDeferred"))
            return
        memory: dict[str, int] = {}
        if options.parts != policy.parts:
            if options.parts and len(options.parts) != len(allocation.holds):
                self._report_annotation(
                    allocation,
                    "GPUResizeDeferred",
                    f"{len(options.parts)} sizes for {len(allocation.holds)} GPUs; "
                    "the number of GPUs cannot change while it runs",
                )
                return
            memory = _sizes(allocation, options.parts, self._unit.size)
            if beyond := _beyond_request(allocation, memory):
                self._report_annotation(allocation, "InvalidAnnotation", beyond)
                return
        cores = dict.fromkeys(allocation.quota(), options.cores) if options.cores != policy.cores else {}
        fixed = not allocation.origin.may_grow  # then its holds say what it was given, and not its options
        kept = (
            allocation
            if fixed or not cores
            else replace(allocation, limits=tuple(replace(limit, cores=None) for limit in allocation.limits))
        )
        refusal = live_limits.resized(
            self._store.table, allocation, self._inventory.gpus, self._present(), memory=memory, cores=cores
        )
        if isinstance(refusal, live_limits.ResizeRefusal):
            self._report_annotation(allocation, "GPUResizeDeferred", refusal.detail)
            return
        done = self._change(
            allocation,
            live_limits.with_limits(replace(kept, policy=updated), {}, {}),
            memory,
            cores if fixed else {},
        )
        if isinstance(done, live_limits.ResizeRefusal):
            self._report_annotation(allocation, "GPUResizeDeferred", done.detail)
            return
        self._reported.over((allocation.id, "GPUResizeDeferred"))
        if memory and done.before.quota() != done.after.quota():
            sizes = ", ".join(f"{units.format_bytes(n)} of {gpu}" for gpu, n in done.after.quota().items())
            self._pods.event(allocation, "Normal", "GPUResizeCompleted", f"now {sizes}")

    def _report_annotation(self, allocation: Allocation, reason: str, text: str) -> None:
        if self._reported.new((allocation.id, reason), text):
            self._log.warning(
                "annotation not applied", allocation=allocation.id, container=allocation.name, detail=text
            )
        self._pods.event(allocation, "Warning", reason, text)

    def _report(self, allocation_id: str, event: str, detail: str, **more: str) -> None:
        """Logs a problem when it begins, not every round."""
        if self._reported.new((allocation_id, event), detail):
            self._log.error(event, allocation=allocation_id, detail=detail, **more)

    def _present(self) -> Present:
        return {key: reading.present() for key, reading in self._store.readings().items()}

    @property
    def _inventory(self) -> Inventory:
        return self._allocator.inventory


def _changeable(allocation: Allocation) -> Allocation | live_limits.ResizeRefusal:
    init = any(consumer.init for consumer in allocation.consumers)
    if init or any(hold.lent_bytes for hold in allocation.holds):
        return live_limits.ResizeRefusal(
            f"{allocation.name} is an init container, whose slices others take over; change those"
        )
    if allocation.origin.undecided:
        return live_limits.ResizeRefusal(
            f"{allocation.name} has not started yet; wait until its annotations are settled"
        )
    return allocation


def _is_app(pod: Pod, consumer: Consumer) -> bool:
    return any(
        container.name == consumer.ref.container and container.kind is not ContainerKind.INIT
        for container in pod.containers
    )


def _beyond_request(allocation: Allocation, memory: Mapping[str, int]) -> str:
    """Why MEMORY, bytes by GPU, is more than the pod of ALLOCATION was counted for; empty where it is not.

    A ResourceQuota counts what a pod requests, and whoever may write the pod may write its annotations.
    """
    asked, counted = sum(memory.values()), sum(hold.memory_bytes for hold in allocation.holds)
    if asked <= counted:
        return ""
    return (
        f"gigaslice.io/memory: {units.format_bytes(asked)} are more than the {units.format_bytes(counted)} that the "
        f"container requests; write {units.format_bytes(counted)} in all at most, or have an operator run gigaslice "
        "resize"
    )


def _beyond_given(allocation: Allocation) -> str:
    """Why an allocation cannot have what it would have, where it may not grow; empty where it can."""
    if allocation.origin.may_grow:
        return ""
    quota = allocation.quota()
    for hold in allocation.holds:
        given = allocation.given_cores.get(hold.gpu, allocation.policy.cores)
        if quota[hold.gpu] > hold.memory_bytes:
            return (
                f"{allocation.name} was given {units.format_bytes(hold.memory_bytes)} of {hold.gpu} by a claim, and "
                "the scheduler gives out the rest; a limit can be lowered and raised up to that, or make a larger claim"
            )
        if allocation.cores_of(hold.gpu) > given:
            return (
                f"{allocation.name} was given {given} per cent of {hold.gpu}'s compute by a claim, and the scheduler "
                "gives out the rest; a share can be lowered and raised up to that, or make a larger claim"
            )
    return ""


def _sizes(allocation: Allocation, parts: tuple[int, ...], slice_bytes: int) -> dict[str, int]:
    """Bytes by GPU: the largest part for the GPU with the largest quota; the initial sizes without parts."""
    if not parts:
        return {hold.gpu: hold.memory_bytes for hold in allocation.holds}
    quota = allocation.quota()
    largest_first = sorted(quota, key=lambda gpu: -quota[gpu])
    return {
        gpu: part * slice_bytes for gpu, part in zip(largest_first, sorted(parts, reverse=True), strict=True)
    }
