# SPDX-License-Identifier: Apache-2.0
"""Jobs for the simulation, drawn with a seed from distributions like those that were published; no trace is copied.

What is known of real clusters is taken as it was published, in round numbers: most jobs are small and short, a few are
large or long, and durations spread over four powers of ten (log-normal).

* `philly`: whole GPUs, 1 to 8 to a job, after Jeon et al. (USENIX ATC 2019);
* `pai`: most jobs ask for a part of a GPU, after Weng et al. (NSDI 2022);
* `openb`: a half parts, a half single GPUs and few of several, after Weng et al. (USENIX ATC 2023);
* `gaia`: parts, single GPUs and groups in equal numbers on nodes of four, as the Gaia paper's experiments mix them;
* `6+6`: inference of 4, 6 and 8 GiB on pairs of GPUs of 12 GiB, where sums mislead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import log

from gigaslice.core.model import Gpu, LinkLevel, NodeState, Topology
from tests.fakes.gpus import make_gpu, node_state, pairs_topology


@dataclass(frozen=True, slots=True)
class Job:
    """One job. gpus: how many; slices: of each. seconds: how long it runs over the best links."""

    number: int
    arrival: float
    seconds: float
    gpus: int
    slices: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Machines and jobs. nodes: by name, all idle. sensitive: how much longer a job of several GPUs runs over the
    farthest links, as a part of its time.
    """

    name: str
    nodes: dict[str, NodeState]
    jobs: tuple[Job, ...]
    sensitive: float = 0.0

    @property
    def capacity(self) -> int:
        """Slices of all GPUs."""
        return sum(gpu.slices for state in self.nodes.values() for gpu in state.gpus)


@dataclass(frozen=True, slots=True)
class _Mix:
    sizes: tuple[tuple[int, float, float], ...]  # GPUs, part of each, weight
    median: float  # seconds
    spread: float  # of the logarithm
    longest: float = 12 * 3600


_MIXES = {
    "philly": _Mix(((1, 1, 0.70), (2, 1, 0.10), (4, 1, 0.11), (8, 1, 0.09)), 900, 1.7),
    "pai": _Mix(
        (
            (1, 0.1, 0.12),
            (1, 0.25, 0.25),
            (1, 0.3, 0.13),
            (1, 0.5, 0.20),
            (1, 0.6, 0.05),
            (1, 1, 0.15),
            (2, 1, 0.05),
            (4, 1, 0.03),
            (8, 1, 0.02),
        ),
        700,
        1.7,
    ),
    "openb": _Mix(
        (
            (1, 0.2, 0.10),
            (1, 0.35, 0.10),
            (1, 0.5, 0.15),
            (1, 0.7, 0.09),
            (1, 1, 0.52),
            (2, 1, 0.015),
            (4, 1, 0.01),
            (8, 1, 0.015),
        ),
        800,
        1.7,
    ),
    "gaia": _Mix(
        (
            (1, 0.1, 0.08),
            (1, 0.4, 0.12),
            (1, 0.5, 0.13),
            (1, 1, 0.33),
            (2, 1, 0.20),
            (3, 1, 0.07),
            (4, 1, 0.07),
        ),
        1200,
        1.0,
    ),
    "6+6": _Mix(((1, 1 / 3, 0.2), (1, 0.5, 0.4), (1, 2 / 3, 0.4)), 1800, 1.0),
}
TRACES = tuple(_MIXES)


def trace(name: str, seed: int = 1, jobs: int = 3000, load: float = 1.0, sensitive: float = 0.0) -> Trace:
    """Draws a trace. load: what the jobs ask for, as a part of what there is while they arrive."""
    mix, rng = _MIXES[name], random.Random(f"{name} {seed}")
    nodes = _nodes(name)
    whole = max(gpu.slices for state in nodes.values() for gpu in state.gpus)
    shapes, weights = [size[:2] for size in mix.sizes], [size[2] for size in mix.sizes]
    drawn = []
    for gpus, part in rng.choices(shapes, weights, k=jobs):
        seconds = min(mix.longest, max(30.0, rng.lognormvariate(log(mix.median), mix.spread)))
        drawn.append((gpus, max(1, round(part * whole)), seconds))
    work = sum(gpus * slices * seconds for gpus, slices, seconds in drawn)
    capacity = sum(gpu.slices for state in nodes.values() for gpu in state.gpus)
    arrivals = sorted(rng.uniform(0, work / (load * capacity)) for _ in drawn)
    found = tuple(
        Job(number, arrival, seconds, gpus, slices)
        for number, (arrival, (gpus, slices, seconds)) in enumerate(zip(arrivals, drawn, strict=True))
    )
    return Trace(name, nodes, found, sensitive)


def _nodes(name: str) -> dict[str, NodeState]:
    if name == "6+6":
        return {f"node-{number:02}": _node(f"node-{number:02}", 2, 12) for number in range(24)}
    if name == "gaia":
        return {f"node-{number:02}": _gaia(f"node-{number:02}") for number in range(16)}
    return {
        f"node-{number:02}": _node(f"node-{number:02}", 8, 80, bridged=number % 2 == 1)
        for number in range(12)
    }


def _node(name: str, size: int, slices: int, *, bridged: bool = False) -> NodeState:
    """Two sockets with pairs behind a switch each. bridged: NVLink joins the first GPUs of two pairs of a socket, and
    the second ones.
    """

    def links(one: int, other: int) -> int:
        return 4 if bridged and one != other and one // 4 == other // 4 and one % 2 == other % 2 else 0

    return node_state(_gpus(name, size, slices, size // 2), pairs_topology(size, nvlinks=links))


def _gaia(name: str) -> NodeState:
    """The tree of the paper's experiments: GPU2 and GPU3 nearest, GPU0 and GPU1 near, the pairs far from each other."""
    near, nearest, far = LinkLevel.MULTIPLE, LinkLevel.SINGLE, LinkLevel.HOSTBRIDGE
    levels = [
        [nearest if i > 1 and j > 1 else near if i < 2 and j < 2 else far for j in range(4)] for i in range(4)
    ]
    return node_state(_gpus(name, 4, 20, 2), Topology.build(levels))


def _gpus(name: str, size: int, slices: int, to_a_socket: int) -> list[Gpu]:
    return [
        make_gpu(index, slices, "NVIDIA A100", uuid=f"{name}-{index}", numa_node=index // max(1, to_a_socket))
        for index in range(size)
    ]
