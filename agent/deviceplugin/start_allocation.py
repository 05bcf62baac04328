# SPDX-License-Identifier: Apache-2.0
"""Which allocation a start is for: the one whose mounts the kubelet is about to replay.

The kubelet names only the devices, and two living pods can have the same ones after it has lost its record. What it was
answered is in its checkpoint. Where that can be read it decides, and an allocation that the allocation table has lost
is restored where those mounts point. A runtime makes a directory of each mount source that is missing, and the
container would run without limits: so nothing starts from files that its mounts do not name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent.apiserver import Cluster
from agent.deviceplugin.device_allocator import DeviceAllocator
from agent.persistence.store import Store
from agent.providers.resource import RefusedError
from gigaslice.core.allocation.table import Allocation
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.deviceplugin.reconcile import KeptAllocateResponse

__all__ = ["StartAllocationResolver", "is_place_of"]


class StartAllocationResolver:
    """Finds the allocations of starts."""

    def __init__(
        self,
        store: Store,
        allocator: DeviceAllocator,
        cluster: Cluster,
        kept_responses: Callable[[], Sequence[KeptAllocateResponse] | None],
    ) -> None:
        """Initializes the resolver.

        Args:
            store: The allocation table and the directories.
            allocator: Finds and restores allocations.
            cluster: The pods of this node.
            kept_responses: Reads the answers that the kubelet keeps; None where they cannot be read. Blocks.
        """
        self._store = store
        self._allocator = allocator
        self._cluster = cluster
        self._kept_responses = kept_responses

    async def allocations(self, devices: Sequence[str]) -> tuple[Allocation, ...]:
        """Returns the allocations that a start with these devices can be for, newest first.

        Raises:
            RefusedError: There is none, or its files are not where the mounts of the container point.
        """
        responses = await asyncio.to_thread(self._kept_responses)
        matching = [response for response in responses or () if response.device_ids == frozenset(devices)]
        for response in matching:
            self._restore(response, len(devices))
        allocations = self._allocator.find(devices)
        if matching:
            ids = {response.allocation for response in matching}
            allocations = tuple(allocation for allocation in allocations if allocation.id in ids)
        allocations = tuple(allocation for allocation in allocations if not plugin(allocation).foreign)
        if not allocations:
            raise RefusedError(
                f"no record of this container's {len(devices)} devices in {self._store.state_dir}, so nothing is "
                "where its mounts point; delete the pod, so that it is allocated again"
            )
        return allocations

    def _restore(self, response: KeptAllocateResponse, devices: int) -> None:
        """Restores the allocation of an answer if the allocation table has lost it."""
        allocation = self._store.table.find(response.allocation)
        if allocation is not None and not plugin(allocation).foreign:
            return
        if not is_place_of(self._store, response):
            raise RefusedError(
                f"the mounts of this container point to {response.directory}, which is not in {self._store.state_dir}; "
                "delete the pod, or start the agent with the state directory of before"
            )
        if not self._allocator.restore(response, self._cluster.pods):
            raise RefusedError(
                f"no record of this container's {devices} devices, and which GPU has how many of them cannot be told; "
                "delete the pod, so that it is allocated again"
            )


def is_place_of(store: Store, response: KeptAllocateResponse) -> bool:
    """Returns whether the mounts of an answer name the directory that its allocation has in a store, or none at all."""
    return response.directory in ("", str(store.dirs.path(response.allocation)))
