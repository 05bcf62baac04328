# SPDX-License-Identifier: Apache-2.0
"""What is true at any instant of a node that serves claims, and what is left of it at the end.

The API server counts what claims have: a claim has consumed a part of a GPU there before this node promises it, and
until this node has taken the promise back. A pod that is deleted by force is the exception: the API server gives
its part away at once, while its container lives. What holds then, too, is that no more than a GPU is promised to what
may run.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import vcuda
from agent.persistence.store import read_only
from agent.roles.records import CODEC
from gigaslice.core.allocation.table import Allocation, AllocationTable
from gigaslice.core.claims.origin import claim_of
from gigaslice.core.kube.quantity import parse_quantity
from tests.fakes.kubeapi import ApiServer
from tests.fakes.kubeapi.device_documents import DRIVER
from tests.fakes.kubelet import FakeKubelet, Pod
from tests.integration.agent.conftest import PATIENCE, allocation_dir, wait_until
from vcuda import contract
from vcuda.errors import NotFoundError

RELEASED_WITHIN = 60.0 + PATIENCE
"""Seconds until nobody waits for a release any more. A claim that ended without a call while its agent lived is found
by comparing, after a minute.
"""


def recorded(state: Path) -> AllocationTable:
    """The allocation table on the disk; an empty one where no agent has begun."""
    if not (state / "allocations").is_dir():
        return AllocationTable()
    return read_only(state, CODEC)[0]


class Books:
    """What allocated claims have of this driver's devices, and until when those had it that have it no more.

    forced: claims whose pods were deleted by force. moved: the names of claims that lost their devices and got others.
    """

    def __init__(self, api: ApiServer) -> None:
        self.forced: set[str] = set()
        self.moved: set[str] = set()
        self._consumed: dict[str, dict[str, int]] = {}  # bytes by the claim's UID and the device's name
        self._until: dict[str, float] = {}
        for claim in api.all("resourceclaims"):
            self._note("resourceclaims", "ADDED", claim)
        api.store.listeners.append(self._note)

    def consumed(self, uid: str, since: float) -> Mapping[str, int]:
        """What a claim had at any time SINCE then, by the name of the device."""
        return self._consumed.get(uid, {}) if self._until.get(uid, math.inf) >= since else {}

    def _note(self, resource: str, kind: str, claim: Mapping[str, Any]) -> None:
        if resource != "resourceclaims":
            return
        uid, allocation = claim["metadata"]["uid"], (claim.get("status") or {}).get("allocation")
        if kind == "DELETED" or not allocation:
            if uid in self._consumed:
                self._until.setdefault(uid, time.monotonic())
            return
        amounts: Counter[str] = Counter()
        for result in allocation["devices"].get("results") or []:
            if result["driver"] == DRIVER:
                amounts[result["device"]] += parse_quantity(result["consumedCapacity"]["memory"])
        if self._consumed.get(uid, amounts) != amounts:
            self.moved.add(claim["metadata"]["name"])
        self._consumed[uid] = amounts
        self._until.pop(uid, None)


def device(gpu: str) -> str:
    """The name of a GPU's device."""
    return f"gpu-{gpu.removeprefix('GPU-')}".lower()


def compare(books: Books, state: Path, size: int) -> None:
    """Compares what the API server has allocated with what this node has promised of GPUs of so many bytes.

    A reader beside the agent may be shown the table before the last change. So what does not agree is read once more.
    """
    since = time.monotonic()
    try:
        _compare_table(books, recorded(state), size, since)
    except AssertionError:
        time.sleep(0.1)
        _compare_table(books, recorded(state), size, since)


def _compare_table(books: Books, table: AllocationTable, size: int, since: float) -> None:
    promised: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    for allocation in table.allocations:
        if allocation.ended:
            continue
        keys[allocation.origin.key] += 1
        if not allocation.waiting:
            promised.update(allocation.quota())
        _compare_claim(allocation, books, since)
    assert max(keys.values(), default=0) <= 1, f"a claim has two allocations: {keys}"
    assert max(promised.values(), default=0) <= size, f"more is promised than a GPU has: {promised}"


def _compare_claim(allocation: Allocation, books: Books, since: float) -> None:
    origin = claim_of(allocation)
    if origin is None or origin.uid in books.forced:
        return
    have = books.consumed(origin.uid, since)
    for gpu, quota in allocation.quota().items():
        assert quota <= have.get(device(gpu), 0), (
            f"claim {origin} {origin.uid} has {quota} bytes of {gpu} here, by the API server {dict(have)}"
        )


def compare_containers(books: Books, pods: Collection[Pod], size: int) -> None:
    """What running containers may use together is no more than a GPU has; pods of one claim use one page. None of
    them was restarted or has failed.

    A pod that is started while a pod of its claim that was deleted by force still ends gets the kubelet's answer of
    before, though the claim has other devices by now. The agent finds out when it is asked again, and leaves what
    processes use. These containers have none, so there the page may be gone.
    """
    pages: dict[Path, Any] = {}
    for pod in pods:
        assert pod.phase != "Failed", f"{pod}: {pod.message}"
        for container in pod.containers:
            assert container.restarts == 0, f"{pod}: {container.state}"
            if container.running and container.launch is not None:
                directory = allocation_dir(container)
                try:
                    pages[directory] = vcuda.read_limits(directory / contract.LIMITS_FILE)
                except NotFoundError:
                    if not any(own.claim in books.moved for own in pod.spec.claims):
                        raise
    promised: Counter[str] = Counter()
    for page in pages.values():
        promised.update({gpu.uuid: gpu.memory_bytes for gpu in page.gpus})
    assert max(promised.values(), default=0) <= size, f"containers may use more than a GPU has: {promised}"


def left(kubelet: FakeKubelet, state: Path) -> list[str]:
    """What a node still has of claims: allocations, their directories and ledgers, files of the runtime."""
    allocations, ledgers = state / "allocations", state.parent / "ledgers"
    names = [f"allocation of {allocation.name}" for allocation in recorded(state).allocations]
    for directory, own in ((allocations, ".new-spare-"), (kubelet.cdi_directory, "nvidia.json")):
        names += [str(path) for path in directory.iterdir() if not path.name.startswith(own)]
    spares = len([path for path in allocations.iterdir() if path.name.startswith(".new-spare-")])
    kept = list(ledgers.iterdir()) if ledgers.is_dir() else []
    return names + [str(path) for path in kept[spares:]]


def wait_nothing_left(kubelet: FakeKubelet, state: Path) -> None:
    """Returns when there is nothing left."""
    names: list[str] = []

    def none() -> bool:
        names[:] = left(kubelet, state)
        return not names

    try:
        wait_until(none, "nothing left", RELEASED_WITHIN)
    except TimeoutError:
        raise AssertionError(f"left behind: {names}") from None
