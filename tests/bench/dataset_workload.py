# SPDX-License-Identifier: Apache-2.0
"""Datasets and jobs for the simulation of dataset affinity, drawn with a seed; no trace is copied.

Sizes are log-normal, popularity follows Zipf's law and has nothing to do with size. GPUs and durations are those of
`simulation_traces`' philly: whole GPUs, 1 to 8 to a job (Jeon et al., USENIX ATC 2019).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from math import log

__all__ = ["Job", "Shape", "Workload", "workload"]

GB = 10**9


@dataclass(frozen=True, slots=True)
class Shape:
    """What is drawn.

    load: GPU time asked for, as a share of what there is while jobs arrive. cache: bytes of each node, as a share of
    all datasets' bytes. zipf: exponent of the popularity. two: share of jobs that want two datasets. rate: bytes a
    second that a node fetches with.
    """

    nodes: int = 50
    gpus: int = 8
    datasets: int = 200
    jobs: int = 6000
    load: float = 0.85
    cache: float = 0.10
    zipf: float = 0.9
    two: float = 0.3
    median: float = 37 * GB
    spread: float = 1.0  # of the sizes' logarithm
    rate: float = 1 * GB
    sizes: tuple[tuple[int, float], ...] = (
        (1, 0.70),
        (2, 0.10),
        (4, 0.11),
        (8, 0.09),
    )  # GPUs of a job, weight
    seconds: float = 900  # median
    seconds_spread: float = 1.7
    longest: float = 12 * 3600


@dataclass(frozen=True, slots=True)
class Job:
    """One job. datasets: numbers of the ones that it reads."""

    number: int
    arrival: float
    seconds: float
    gpus: int
    datasets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of arrival. sizes: bytes of each dataset. cache: bytes of each node's."""

    shape: Shape
    sizes: tuple[int, ...]
    cache: int
    jobs: tuple[Job, ...]

    @property
    def asked(self) -> int:
        """Bytes that the jobs read, a dataset counted once for each job."""
        return sum(self.sizes[one] for job in self.jobs for one in job.datasets)


def workload(seed: int, shape: Shape | None = None) -> Workload:
    """Draws datasets and jobs; equal seeds give equal ones."""
    shape = shape or Shape()
    draw = random.Random(seed)
    sizes = tuple(int(draw.lognormvariate(log(shape.median), shape.spread)) for _ in range(shape.datasets))
    popular = list(accumulate(1 / rank**shape.zipf for rank in range(1, shape.datasets + 1)))
    gpus, weights = zip(*shape.sizes, strict=True)
    drawn: list[tuple[float, int, tuple[int, ...]]] = []
    for _ in range(shape.jobs):
        seconds = min(shape.longest, draw.lognormvariate(log(shape.seconds), shape.seconds_spread))
        count = 2 if shape.datasets > 1 and draw.random() < shape.two else 1
        chosen: list[int] = []
        while len(chosen) < count:
            one = draw.choices(range(shape.datasets), cum_weights=popular)[0]
            if one not in chosen:
                chosen.append(one)
        drawn.append((seconds, draw.choices(gpus, weights)[0], tuple(chosen)))
    wanted = sum(seconds * count for seconds, count, _ in drawn)
    gap = wanted / (shape.load * shape.nodes * shape.gpus * shape.jobs)
    arrival, jobs = 0.0, []
    for number, (seconds, count, datasets) in enumerate(drawn):
        arrival += draw.expovariate(1 / gap)
        jobs.append(Job(number, arrival, seconds, count, datasets))
    return Workload(shape, sizes, int(shape.cache * sum(sizes)), tuple(jobs))
