"""Which allocation a start is for: the one whose mounts the kubelet is about to replay.

The kubelet names only the devices, and two living pods can have the same ones after it has lost its record. What it was
answered is in its checkpoint. Where that can be read it decides, and an allocation that the allocation table has lost
is restored where those mounts point. A runtime makes a directory of each mount source that is missing, and the
container would run without limits: so nothing starts from files that its mounts do not name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent.allocation.service import AllocationService
from agent.apiserver import Cluster
from agent.persistence.store import Store
from agent.providers.provider import RefusedError
from gigaslice.allocation.reconcile import Answered
from gigaslice.allocation.table import Allocation

__all__ = ["ReplayResolver"]


class ReplayResolver:
    """Finds the allocations of starts."""

    def __init__(
        self,
        store: Store,
        service: AllocationService,
        cluster: Cluster,
        kept_answers: Callable[[], Sequence[Answered] | None],
    ) -> None:
        """Initializes the resolver.

        Args:
            store: The allocation table and the directories.
            service: Finds and restores allocations.
            cluster: The pods of this node.
            kept_answers: Reads the answers that the kubelet keeps; None where they cannot be read. Blocks.
        """
        self._store = store
        self._service = service
        self._cluster = cluster
        self._kept_answers = kept_answers

    async def allocations(self, devices: Sequence[str]) -> tuple[Allocation, ...]:
        """Returns the allocations that a start with these devices can be for, newest first.

        Raises:
            RefusedError: There is none, or its files are not where the mounts of the container point.
        """
        kept = await asyncio.to_thread(self._kept_answers)
        named = [one for one in kept or () if one.device_ids == frozenset(devices)]
        for one in named:
            self._restore(one, len(devices))
        found = self._service.find(devices)
        if named:
            ids = {one.allocation for one in named}
            found = tuple(allocation for allocation in found if allocation.id in ids)
        found = tuple(allocation for allocation in found if not allocation.foreign)
        if not found:
            raise RefusedError(
                f"no record of this container's {len(devices)} devices in {self._store.state_dir}, so nothing is "
                "where its mounts point; delete the pod, so that it is allocated again"
            )
        return found

    def _restore(self, answer: Answered, devices: int) -> None:
        """Restores the allocation of an answer if the allocation table has lost it."""
        known = self._store.table.find(answer.allocation)
        if known is not None and not known.foreign:
            return
        if not self._store.is_place_of(answer):
            raise RefusedError(
                f"the mounts of this container point to {answer.directory}, which is not in {self._store.state_dir}; "
                "delete the pod, or start the agent with the state directory of before"
            )
        if not self._service.restore(answer, self._cluster.pods):
            raise RefusedError(
                f"no record of this container's {devices} devices, and which GPU has how many of them cannot be told; "
                "delete the pod, so that it is allocated again"
            )
