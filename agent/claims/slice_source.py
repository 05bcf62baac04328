# SPDX-License-Identifier: Apache-2.0
"""What of this node's GPUs claims can have now, as it is to be published.

Claims are counted by the API server, which has allocated them, and device plugins by this node: so what the latter have
given out is no capacity of a slice, while what claims have is. The order is that of placement, in which everything
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.inventory.holder import GpusNow
from agent.persistence.store import Store
from gigaslice.core.allocation import host_memory
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.claims.origin import claim_of
from gigaslice.core.claims.slices import PublishedGpu
from gigaslice.core.model import Gpu, NodeState, Topology
from gigaslice.core.placement import Policy
from gigaslice.core.placement.first_fit import first_fit_order

__all__ = ["SliceContent", "SliceSource"]


@dataclass(frozen=True, slots=True)
class SliceContent:
    """What is published.

    Attributes:
        gpus: The GPUs.
        topology: How they are linked, row by row.
        order: Their UUIDs in the order of placement.
        free: Slices of each that nothing has, by UUID; none where the GPU gets no containers.
    """

    gpus: tuple[PublishedGpu, ...]
    topology: Topology
    order: tuple[str, ...]
    free: Mapping[str, int]


class SliceSource:
    """Makes the content from the GPUs and the allocation table."""

    def __init__(
        self,
        store: Store,
        gpus: GpusNow,
        policy: Policy,
        *,
        fault: Callable[[str], str],
        labels: Mapping[str, Mapping[str, str]],
        watch: Callable[[Callable[[], None]], Callable[[], None]],
        driver_limits: Callable[[], str] = lambda: "",
    ) -> None:
        """Initializes it.

        Args:
            store: The allocation table.
            gpus: The GPUs.
            policy: How GPUs are chosen.
            fault: Returns a word for why a GPU gets no containers, by UUID.
            labels: Properties from the settings by UUID, of all GPUs under the empty name.
            watch: Has a function called when the GPUs may have changed, and returns a function that ends this.
            driver_limits: Returns what keeps the driver's own limits of pods; empty: none.
        """
        self._store = store
        self._gpus = gpus
        self._policy = policy
        self._fault = fault
        self._labels = labels
        self._watch = watch
        self._driver_limits = driver_limits

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Has a function called when the content may have changed. Returns a function that ends this."""
        unwatch = self._watch(changed)
        self._store.watchers.append(changed)

        def end() -> None:
            self._store.watchers.remove(changed)
            unwatch()

        return end

    def now(self) -> SliceContent:
        """Returns what is to be published now."""
        inventory, table = self._gpus.now, self._store.table
        gpus, taken = host_memory.view(table, inventory.gpus, "", host=False, memory_bytes=0)
        state = NodeState.build(gpus, inventory.topology, taken)
        others = _by_other_apis(table, inventory.gpus)
        backend = self._driver_limits()
        everywhere = {**self._labels.get("", {}), **({"driverLimits": backend} if backend else {})}
        return SliceContent(
            tuple(
                PublishedGpu(
                    gpu,
                    "" if gpu.healthy else self._fault(gpu.uuid) or "unhealthy",
                    inventory.properties.get(gpu.uuid, {}),
                    {**everywhere, **self._labels.get(gpu.uuid.lower().replace("gpu", "GPU", 1), {})},
                    *others.get(gpu.uuid, (0, 0)),
                )
                for gpu in inventory.gpus
            ),
            inventory.topology,
            first_fit_order(state, self._policy),
            {gpu.uuid: state.free(gpu.uuid) for gpu in state.gpus},
        )


def _by_other_apis(table: AllocationTable, gpus: tuple[Gpu, ...]) -> dict[str, tuple[int, int]]:
    """Returns bytes and per cent of the compute of each GPU that no claim has."""
    others = table.only(lambda allocation: claim_of(allocation) is None)
    visible, taken = host_memory.view(others, gpus, "", host=False, memory_bytes=0)
    unit = {gpu.uuid: gpu.slice_bytes for gpu in visible}
    counts: dict[str, tuple[int, int]] = {}
    for occupant in taken:
        for share in occupant.shares:
            if share.gpu in unit:
                size, cores = counts.get(share.gpu, (0, 0))
                counts[share.gpu] = size + share.slices * unit[share.gpu], cores + share.cores
    return counts
