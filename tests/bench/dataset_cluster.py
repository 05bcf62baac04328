# SPDX-License-Identifier: Apache-2.0
"""Nodes with GPUs and dataset caches, and the choice between them: the model of `dataset_simulation`.

What is deleted and what a node's datasets are worth is the product's own code (`gigaslice.core.dataset`). A GPU is
whole, a job runs on one node, and the oldest waiting job holds back the others. A node fetches one dataset after
another at one rate. A job holds its GPUs while it waits for its datasets. One that finds no room in the cache, as all
else there is in use, is read past the cache: its bytes are fetched and not kept.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gigaslice.core.dataset.affinity import (
    HeldDataset,
    NodeDatasets,
    RequestedDataset,
    bytes_share,
    normalised,
    paper_score,
    weighed,
)
from gigaslice.core.dataset.eviction import EvictionCandidate, to_evict
from tests.bench.dataset_workload import Job, Workload

__all__ = ["Cluster", "Copy", "Node", "Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a node is chosen: the share of its GPUs that is in use (pack) or free, from 0 to 1, and the datasets' score,
    from 0 to 1, times its weight.

    rule: "paper", "bytes", or empty where datasets do not count.
    """

    pack: bool = True
    rule: str = ""
    weight: float = 0.0


@dataclass(slots=True)
class Copy:
    """A dataset in a node's cache. ready: when it is complete. users: jobs that read it or wait for it."""

    number: int
    size: int
    ready: float
    users: int = 0
    last_used: float = 0.0


@dataclass(slots=True)
class Node:
    """A node. idle: its GPUs without a job. fetched_until: when the last fetch that it has begun ends."""

    name: str
    idle: list[int]
    cache: int
    copies: dict[int, Copy] = field(default_factory=dict)
    fetched_until: float = 0.0

    @property
    def free(self) -> int:
        """Bytes of the cache that nothing has."""
        return self.cache - sum(copy.size for copy in self.copies.values())

    def seen(self, now: float) -> NodeDatasets:
        """What the scheduler knows of the cache."""
        held = (
            HeldDataset(str(copy.number), "", copy.size, copy.users > 0, fetching=copy.ready > now)
            for copy in self.copies.values()
        )
        return NodeDatasets(tuple(held), self.free)

    def make_room(self, size: int, now: float) -> bool:
        """Deletes what the eviction rule chooses for a dataset of so many bytes; False where there can be no room."""
        cached = [
            EvictionCandidate(str(copy.number), copy.size, copy.last_used, copy.users > 0 or copy.ready > now)
            for copy in self.copies.values()
        ]
        chosen = to_evict(self.free, cached, size)
        for name in chosen or ():
            del self.copies[int(name)]
        return chosen is not None


@dataclass(frozen=True, slots=True)
class Running:
    """A job on GPUs of a node. data: when its datasets are all there. fetched: bytes whose fetch it began.
    past_cache: its datasets that found no room.
    """

    job: Job
    node: Node
    gpus: tuple[int, ...]
    start: float
    data: float
    fetched: int
    past_cache: tuple[int, ...]


class Cluster:
    """All nodes, the jobs that wait, and those that run.

    Args:
        workload: What runs, on what.
        policy: How a node is chosen.
        observe: Called after every event.
    """

    def __init__(
        self, workload: Workload, policy: Policy, observe: Callable[[Cluster], None] | None = None
    ) -> None:
        self.workload, self.policy, self._observe = workload, policy, observe
        shape = workload.shape
        self.nodes = [Node(f"n{i:03}", list(range(shape.gpus)), workload.cache) for i in range(shape.nodes)]
        self.waiting: deque[Job] = deque()
        self.running: list[tuple[float, int, Running]] = []  # a heap by the end
        self.done: list[Running] = []
        self.now = 0.0

    def run(self) -> list[Running]:
        """Runs all jobs; returns them in the order of their ends."""
        for job in self.workload.jobs:
            self._end(job.arrival)
            self.now = job.arrival
            self.waiting.append(job)
            self._start_waiting()
        self._end(float("inf"))
        return self.done

    def _end(self, until: float) -> None:
        while self.running and self.running[0][0] <= until:
            self.now, _, one = heapq.heappop(self.running)
            one.node.idle.extend(one.gpus)
            for number in one.job.datasets:
                if number not in one.past_cache:
                    copy = one.node.copies[number]
                    copy.users -= 1
                    copy.last_used = self.now
            self.done.append(one)
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self.waiting:
            node = self._choose(self.waiting[0])
            if node is None:
                break
            self._start(self.waiting.popleft(), node)
        if self._observe is not None:
            self._observe(self)

    def _choose(self, job: Job) -> Node | None:
        fitting = [node for node in self.nodes if len(node.idle) >= job.gpus]
        shares = self._shares(job, fitting) if self.policy.rule else {}
        best, most = None, -1.0
        for node in fitting:
            idle = len(node.idle) / self.workload.shape.gpus
            score = (1 - idle if self.policy.pack else idle) + self.policy.weight * shares.get(node.name, 0.0)
            if score > most + 1e-9:
                best, most = node, score
        return best

    def _shares(self, job: Job, fitting: list[Node]) -> dict[str, float]:
        requested = [
            RequestedDataset(str(number), bytes=self.workload.sizes[number]) for number in job.datasets
        ]
        known = {
            node.name: node.seen(self.now)
            for node in fitting
            if any(number in node.copies for number in job.datasets)
        }
        if self.policy.rule == "bytes":
            unused = {node.name for node in fitting if len(node.idle) == self.workload.shape.gpus}
            return {
                name: weighed(bytes_share(requested, datasets), unused=name in unused)
                for name, datasets in known.items()
            }
        raw = normalised({name: paper_score(requested, datasets) for name, datasets in known.items()})
        return {name: score / 100 for name, score in raw.items()}

    def _start(self, job: Job, node: Node) -> None:
        gpus = tuple(node.idle.pop() for _ in range(job.gpus))
        data, fetched = self.now, 0
        past_cache: list[int] = []
        present = [node.copies[number] for number in job.datasets if number in node.copies]
        for copy in present:  # before any room is made, as what the job itself reads must stay
            copy.users += 1
            data = max(data, copy.ready)
        for number in job.datasets:
            if number in node.copies:
                continue
            size = self.workload.sizes[number]
            ready = max(self.now, node.fetched_until) + size / self.workload.shape.rate
            if node.make_room(size, self.now):
                node.copies[number] = Copy(number, size, ready, users=1)
            else:
                past_cache.append(number)
            node.fetched_until = ready
            fetched += size
            data = max(data, ready)
        one = Running(job, node, gpus, self.now, data, fetched, tuple(past_cache))
        heapq.heappush(self.running, (data + job.seconds, job.number, one))
