# SPDX-License-Identifier: Apache-2.0
"""Claims in memory, and a node that serves them without a kubelet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent.accounting.presence import Presence
from agent.allocation.service import AllocationService
from agent.allocation.start import StartChecks
from agent.allocation.start_wait import StartTimes, StartWaiter
from agent.apiserver import PodLists
from agent.claims.cdi_files import CdiFiles
from agent.claims.following import ClaimFollowing
from agent.claims.messages import ClaimName, PrepareAnswer
from agent.claims.preparation import ClaimPreparation, edits_of
from agent.claims.release import ClaimRelease
from agent.claims.service import Claims
from agent.claims.waking import ClaimWaking
from agent.inventory.holder import InventoryHolder
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core import units
from gigaslice.core.claims.names import device_name
from gigaslice.core.claims.resource_claim import ClaimConfig, ClaimResult, PodReference, ResourceClaim
from gigaslice.core.model import AnnotationRights, ClaimUse, Pod, PodClaim, PodContainer, SliceUnit
from gigaslice.core.placement import Policy
from tests.fakes.cluster import MemoryCluster
from tests.fakes.gpus import GIB, uuid
from tests.fakes.nodes import inventory

NODE = "node-a"


def result(gpu: int, gib: int | None, request: str = "gpu", cores: int | None = None) -> ClaimResult:
    """GIB of the GPU of that number, for a request."""
    size = None if gib is None else gib * GIB
    return ClaimResult(request, NODE, device_name(uuid(gpu)), f"share-{gpu}-{request}", size, cores)


def claim(
    name: str,
    *results: ClaimResult,
    pods: tuple[Pod, ...] = (),
    configs: tuple[ClaimConfig, ...] = (),
    **more: object,
) -> ResourceClaim:
    """A claim in the namespace "default", reserved for pods."""
    return ResourceClaim(
        "default",
        name,
        f"uid-{name}",
        results=results,
        configs=configs,
        reserved_for=tuple(PodReference(pod.name, pod.uid) for pod in pods),
        spec_requests=tuple(dict.fromkeys(result.main for result in results)),
        allocated=True,
        **more,  # type: ignore[arg-type]
    )


def claiming(name: str, *containers: PodContainer, claims: tuple[str, ...] = ("c",), **more: object) -> Pod:
    """A pod of the namespace "default" with claims of these names, which its containers call by the same names."""
    own = tuple(PodClaim(claim_name, claim_name) for claim_name in claims)
    users = containers or (user("main", *claims),)
    return Pod("default", name, f"uid-{name}", containers=users, claims=own, node=NODE, **more)  # type: ignore[arg-type]


def user(name: str, *uses: str, **more: object) -> PodContainer:
    """A container that uses claims, "c", or requests of them, "c/a"."""
    return PodContainer(
        name,
        claims=tuple(ClaimUse(*use.split("/")) for use in uses),
        **more,  # type: ignore[arg-type]
    )


class MemoryClaims:
    """The API server's claims.

    failure: raised instead of an answer. reads: how often one was read.
    """

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], ResourceClaim] = {}
        self.failure: Exception | None = None
        self.reads = 0

    def put(self, one: ResourceClaim) -> ResourceClaim:
        self.by_name[one.namespace, one.name] = one
        return one

    async def read(self, namespace: str, name: str, seconds: float) -> ResourceClaim | None:
        del seconds
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return self.by_name.get((namespace, name))


class ClaimNode:
    """A node with GPUs that serves claims. Made again over the same directory it is the next process."""

    def __init__(
        self,
        directory: Path,
        library: Path,
        gpus: int = 2,
        times: StartTimes | None = None,
        visible_devices: str = "env",
    ) -> None:
        self.gpus = InventoryHolder(inventory(gpus))
        self.store = Store(directory / "state", library, codec=CODEC, gpu_bytes=self.gpus.gpu_bytes)
        self.store.open()
        self.cluster, self.claims, self.cdi = MemoryCluster(), MemoryClaims(), CdiFiles(directory / "cdi")
        ids = iter(range(1, 1 << 30))
        taken = {allocation.id for allocation in self.store.table.allocations}
        service = AllocationService(
            self.store,
            self.gpus,
            Policy.GAIA,
            lambda: 1000.0,
            lambda: next(text for n in ids if (text := f"{n:032x}") not in taken),
        )
        self.allocation_service = service
        quick = times or StartTimes(
            patience=0.3, unwatched_patience=0.2, margin=0.0, report_after=9.0, interval=0.01
        )
        self.waiter = StartWaiter(self.store, lambda: None, quick)
        self.mounted: set[str] = set()
        present = lambda ids: Presence(frozenset(ids) & self.mounted, others=True)  # noqa: E731
        lists = PodLists(self.cluster)
        self.preparation = ClaimPreparation(
            self.store,
            service,
            StartChecks(self.store, service, self.cluster),
            self.waiter,
            cluster=self.cluster,
            lists=lists,
            claims=self.claims,
            cdi=self.cdi,
            unit=SliceUnit(GIB, units.parse_bytes),
            rights=AnnotationRights.REFUSE,
            visible_devices=visible_devices,
            boot_id="boot-1",
            allocated=lambda: None,
            present=present,
        )
        self.now = 0.0
        self.release = ClaimRelease(
            self.store,
            service,
            self.cluster,
            self.claims,
            self.cdi,
            lists=lists,
            preparing=self.preparation.preparing,
            awaited=lambda: bool(self.waiter.waiting or self.preparation.refusals.waiting),
            present=present,
            clock=lambda: self.now,
        )
        self.service = Claims(self.preparation, self.release)
        self.following = ClaimFollowing(
            self.store,
            self.cluster,
            self.cdi,
            lambda allocation: edits_of(self.store, allocation, visible_devices),
        )
        self.waking = ClaimWaking(
            self.store,
            self.cluster,
            self.claims,
            refused=lambda: self.preparation.refusals.waiting,
            answered=lambda: self.preparation.answered,
            would_start=self.preparation.would_start,
            preparing=self.preparation.preparing,
            clock=lambda: self.now,
        )

    def close(self) -> None:
        self.store.close()

    async def prepare(self, *claims: ResourceClaim, remaining: float | None = 45.0) -> list[PrepareAnswer]:
        """Prepares claims in one call, as the kubelet names them."""
        answers = await self.service.prepare([name_of(one) for one in claims], remaining)
        return [answers[one.uid] for one in claims]

    async def unprepare(self, *claims: ResourceClaim) -> list[str]:
        answers = await self.service.unprepare([name_of(one) for one in claims])
        return [answers[one.uid] for one in claims]

    def reserve(self, one: ResourceClaim, *pods: Pod) -> ResourceClaim:
        """Puts pods into the cluster, and a claim that is reserved for them."""
        for pod in pods:
            self.cluster.put(pod)
        return self.claims.put(
            replace(one, reserved_for=tuple(PodReference(pod.name, pod.uid) for pod in pods))
        )


def name_of(one: ResourceClaim) -> ClaimName:
    return ClaimName(one.namespace, one.name, one.uid)
