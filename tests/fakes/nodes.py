"""Inventories, device IDs and allocations for tests of the agent: small, named, and without any file."""

from __future__ import annotations

from agent.inventory.source import Inventory, Vitals
from gigaslice.allocation.reconcile import Listed, PodListing
from gigaslice.allocation.table import Allocation, Hold
from gigaslice.model import Gpu, Topology, gpu_device_ids

GIB = 1 << 30
LIBRARY = "libvcuda-0.1.0.so"


def uuid(number: int) -> str:
    return f"GPU-6e1b5c1e-0000-4000-8000-{number:012d}"


def inventory(
    gpus: int = 2, slices: int = 24, numa: tuple[int, ...] = (0, 1), unhealthy: tuple[int, ...] = ()
) -> Inventory:
    """CARDS equal GPUs of SLICES GiB, dealt to NUMA nodes in turn."""
    found = tuple(
        Gpu(
            uuid(n),
            n,
            "NVIDIA L4",
            slices * GIB,
            slices,
            GIB,
            numa_node=numa[n % len(numa)],
            healthy=n not in unhealthy,
        )
        for n in range(gpus)
    )
    return Inventory(found, Topology.flat(gpus))


def device_ids(gpu: int, *numbers: int) -> frozenset[str]:
    return frozenset(f"{uuid(gpu)}/{number}" for number in numbers)


def all_device_ids(found: Inventory) -> list[str]:
    return [device_id for gpu in found.gpus for device_id in gpu_device_ids(gpu)]


def allocation(number: int, *held: tuple[int, range], **more: object) -> Allocation:
    """An allocation of so many device IDs of each GPU, all named after it: allocation(1, (0, range(8)))."""
    holds = tuple(Hold(uuid(gpu), GIB, tuple(f"{uuid(gpu)}/{n}" for n in numbers)) for gpu, numbers in held)
    fields: dict[str, object] = {"id": f"{number:032x}", "created": 1700000000.5, "library": LIBRARY, **more}
    return Allocation(number=number, holds=holds, **fields)  # type: ignore[arg-type]


class ListedKubelet:
    """Answers what the test says; `failure` is raised instead when it is set."""

    def __init__(self) -> None:
        self.listed: tuple[Listed, ...] = ()
        self.pods: frozenset[str] = frozenset()  # besides those of `listed`
        self.failure: Exception | None = None
        self.asked = 0
        self.settled = self.informed = True

    async def list(self):
        self.asked += 1
        if self.failure:
            raise self.failure
        named = {f"{one.container.namespace}/{one.container.pod}" for one in self.listed}
        return PodListing(self.listed, self.pods | named, self.settled)


class FixedSource:
    """A source whose answers the test sets; an exception in place of an answer is raised."""

    def __init__(self, found: Inventory) -> None:
        self.found: Inventory | Exception = found
        self.memory: dict[str, dict[int, int]] | None = None
        self.closed = False
        self.health: dict[str, Vitals] | None = None

    def scan(self) -> Inventory:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def process_memory(self):
        return self.memory

    def process_busy(self, gpu):
        return None

    def events(self, seconds):
        return None

    def vitals(self):
        return self.health

    def close(self) -> None:
        self.closed = True
