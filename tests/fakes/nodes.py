"""Inventories, tokens and grants for tests of the agent: small, named, and without any file."""

from __future__ import annotations

from agent.discovery.source import Inventory, Vitals
from agent.model import Gpu, Topology, gpu_tokens
from agent.state.reconcile import Listed, Listing
from agent.state.records import Grant, Hold

GIB = 1 << 30
LIBRARY = "libvcuda-0.1.0.so"


def uuid(number: int) -> str:
    return f"GPU-6e1b5c1e-0000-4000-8000-{number:012d}"


def inventory(
    cards: int = 2, slices: int = 24, numa: tuple[int, ...] = (0, 1), sick: tuple[int, ...] = ()
) -> Inventory:
    """CARDS equal cards of SLICES GiB, dealt to NUMA nodes in turn."""
    gpus = tuple(
        Gpu(
            uuid(n),
            n,
            "NVIDIA L4",
            slices * GIB,
            slices,
            GIB,
            numa_node=numa[n % len(numa)],
            healthy=n not in sick,
        )
        for n in range(cards)
    )
    return Inventory(gpus, Topology.flat(cards))


def tokens(card: int, *numbers: int) -> frozenset[str]:
    return frozenset(f"{uuid(card)}/{number}" for number in numbers)


def all_tokens(found: Inventory) -> list[str]:
    return [token for gpu in found.gpus for token in gpu_tokens(gpu)]


def grant(number: int, *held: tuple[int, range], **more: object) -> Grant:
    """A grant of so many tokens of each card, all named after it: grant(1, (0, range(8)))."""
    holds = tuple(
        Hold(uuid(card), GIB, tuple(f"{uuid(card)}/{n}" for n in numbers)) for card, numbers in held
    )
    fields: dict[str, object] = {"id": f"{number:032x}", "created": 1700000000.5, "library": LIBRARY, **more}
    return Grant(number=number, holds=holds, **fields)  # type: ignore[arg-type]


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
        return Listing(self.listed, self.pods | named, self.settled)


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
