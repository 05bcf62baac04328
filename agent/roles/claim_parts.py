# SPDX-License-Identifier: Apache-2.0
"""The parts of a node agent that serve claims to devices (DRA): built here, decided nowhere.

What is here, `agent.claims` and `gigaslice.core.claims` belong together, and nothing else of the agent knows of claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.allocation.service import AllocationService
from agent.allocation.start import StartChecks
from agent.allocation.start_wait import StartTimes, StartWaiter
from agent.apiserver import KubeCluster, PodLists
from agent.claims.cdi_files import CdiFiles
from agent.claims.claim_reader import KubeClaimReader
from agent.claims.following import ClaimFollowing
from agent.claims.preparation import ClaimPreparation, edits_of
from agent.claims.registration import ClaimRegistration, offer
from agent.claims.release import ClaimRelease
from agent.claims.service import Claims
from agent.claims.slice_source import SliceSource
from agent.claims.slices import SlicePublisher
from agent.claims.waking import ClaimWaking
from agent.config import Config
from agent.health.controller import BOOT_ID
from agent.link import Link
from agent.persistence.store import Store
from agent.telemetry.counters import Counters
from gigaslice.core import units
from gigaslice.core.claims.origin import claim_of
from gigaslice.core.model import SliceUnit
from gigaslice.kubeapi.client import KubeClient

__all__ = ["CLAIM_TIMES", "ClaimParts", "build_claims", "claims_are_served", "claims_may_come"]

CLAIM_TIMES = StartTimes(patience=40.0, unwatched_patience=20.0, margin=4.0)
"""The kubelet gives up after 45 seconds, and an error costs a pod 72."""


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """What serves claims."""

    service: Claims
    preparation: ClaimPreparation
    waiter: StartWaiter
    release: ClaimRelease
    following: ClaimFollowing
    waking: ClaimWaking
    slices: SlicePublisher
    registration: ClaimRegistration

    @property
    def unready(self) -> str | None:
        """Why claims cannot be served now; None where they are."""
        if self.registration.accepted is not True:
            return "the kubelet has not accepted the driver of claims"
        return self.slices.problem or None


def claims_may_come(config: Config) -> bool:
    """Whether claims are what new pods get GPUs by, or the kubelet may still ask about some.

    A driver that an earlier agent has left registered may have left slices too, by which pods are still sent here.
    """
    return config.api == "dra" or Path(offer(config.kubelet_root).registration).exists()


def claims_are_served(config: Config, store: Store) -> bool:
    """Whether claims are what new pods get GPUs by, or pods have some that they got so before."""
    return claims_may_come(config) or (
        any(claim_of(allocation) is not None for allocation in store.table.allocations)
    )


def build_claims(
    config: Config,
    store: Store,
    service: AllocationService,
    checks: StartChecks,
    *,
    cluster: KubeCluster,
    client: KubeClient,
    slices: SliceSource,
    link: Link,
    counters: Counters,
    allocated: Callable[[], None],
) -> ClaimParts:
    """Builds the parts.

    Args:
        config: The settings.
        store: The allocation table.
        service: Makes the allocations.
        checks: Tells what a start waits for.
        cluster: The pods of this node.
        client: Reads claims.
        slices: What is published.
        link: The way to the front.
        counters: Where calls are counted.
        allocated: Called when the allocation table may have changed.
    """
    reader, cdi = KubeClaimReader(client), CdiFiles(config.cdi_dir)
    waiter = StartWaiter(store, allocated, CLAIM_TIMES)
    lists = PodLists(cluster)
    preparation = ClaimPreparation(
        store,
        service,
        checks,
        waiter,
        cluster=cluster,
        lists=lists,
        claims=reader,
        cdi=cdi,
        unit=SliceUnit(config.slice_bytes, units.parse_bytes),
        rights=config.annotation_rights,
        visible_devices=config.visible_devices,
        boot_id=BOOT_ID.read_text().strip(),
        allocated=allocated,
    )
    release = ClaimRelease(
        store,
        service,
        cluster,
        reader,
        cdi,
        lists=lists,
        preparing=preparation.preparing,
        awaited=lambda: bool(waiter.waiting or preparation.refusals.waiting),
    )
    claims, publisher = Claims(preparation, release), SlicePublisher(client, config.node, slices)
    if config.api != "dra":
        publisher.withdraw()
    waking = ClaimWaking(
        store,
        cluster,
        reader,
        refused=lambda: preparation.refusals.waiting,
        answered=lambda: preparation.answered,
        would_start=preparation.would_start,
        preparing=preparation.preparing,
    )

    def registered() -> None:
        publisher.registered()
        waking.registered()

    return ClaimParts(
        claims,
        preparation,
        waiter,
        release,
        ClaimFollowing(
            store, cluster, cdi, lambda allocation: edits_of(store, allocation, config.visible_devices)
        ),
        waking,
        publisher,
        ClaimRegistration(claims, config.kubelet_root, link, counters, registered=registered),
    )
