# SPDX-License-Identifier: Apache-2.0
"""A pod's demand on one kind of node: which GPUs each of its containers may have, and how much of each. Pure.

Every way of asking comes out as blocks of units. A block is one container; a unit is an amount of one GPU, and all
units of a block are on different GPUs. Slices and whole GPUs come from one pool, whose size says how they are divided,
so such a block has one alternative per pool. Units of classes may come from any pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from gigaslice.core.cluster.demand import ContainerDemand, PodDemand
from gigaslice.core.cluster.hardware import Hardware
from gigaslice.core.cluster.refusal import RefusalReason
from gigaslice.core.model import ContainerKind, Infeasible, Reason, Request
from gigaslice.core.placement.decide import find_plans
from gigaslice.core.placement.tree import bits

__all__ = ["ContainerBlock", "GpuAmount", "NodeProblem", "PlacementRequest", "build_problem"]


class GpuAmount(NamedTuple):
    """An amount of one GPU of a set. slices: 0 for all of them."""

    gpus: int
    slices: int
    cores: int


class PlacementRequest(NamedTuple):
    """What placement is asked for a block, or for one class of it: a request, and the GPUs that it may have."""

    request: Request
    gpus: int


@dataclass(frozen=True, slots=True)
class ContainerBlock:
    """One container on one kind of node.

    Attributes:
        lends: It ends before later containers start, which then have its GPUs.
        alternatives: Its units, largest first, once per pool that could serve it.
        asks: The same as requests for placement, to be served in order on different GPUs.
        exclusive: Its GPUs have no holders of other pods.
        cores: Per cent of each GPU.
        host: It may use lent host memory.
        memory_bytes: In all, for a rule of lent host memory.
        never: Why this kind of node never serves it; None where it could.
    """

    lends: bool
    alternatives: tuple[tuple[GpuAmount, ...], ...]
    asks: tuple[PlacementRequest, ...]
    exclusive: bool = False
    cores: int = 0
    host: bool = False
    memory_bytes: int = 0
    never: RefusalReason | None = None


_REASONS = {
    Reason.INVALID: RefusalReason.INVALID,
    Reason.NO_MATCHING_MODEL: RefusalReason.NO_MATCH,
    Reason.NO_MATCHING_GPU: RefusalReason.NO_MATCH,
    Reason.EXCEEDS_GPU: RefusalReason.TOO_SMALL,
    Reason.EXCEEDS_NODE: RefusalReason.TOO_FEW,
}


@dataclass(frozen=True, eq=False)
class NodeProblem:
    """A pod on one kind of node.

    Attributes:
        hardware: The node's GPUs.
        blocks: Per container, in the order of admission.
        together: On how many GPUs all containers are; 0 where each may be on its own.
        most: Slices that the containers have at a time, for the choice of those GPUs.
    """

    hardware: Hardware
    blocks: tuple[ContainerBlock, ...]
    together: int = 0
    most: int = 0

    @cached_property
    def alone(self) -> tuple[NodeProblem, ...]:
        """Each container as a pod of its own."""
        return tuple(NodeProblem(self.hardware, (block,)) for block in self.blocks)

    @property
    def never(self) -> RefusalReason | None:
        """Why this kind of node never serves the first container that it does not."""
        return next((block.never for block in self.blocks if block.never), None)


Masks = tuple[tuple[int, tuple[int, ...]], ...]
"""Per container the GPUs that its annotations allow, and the GPUs of each of its classes."""


def build_problem(hardware: Hardware, demand: PodDemand, masks: Masks) -> NodeProblem:
    """Returns a pod's demand on a kind of node."""
    blocks = tuple(
        _block(hardware, container, allowed, of_class)
        for container, (allowed, of_class) in zip(demand.containers, masks, strict=True)
    )
    if not demand.same_gpu:
        return NodeProblem(hardware, blocks)
    gpus = max((len(units) for block in blocks for units in block.alternatives[:1]), default=1)
    beside = peak = 0
    for container in demand.containers:
        slices = container.slices or sum(units.count * units.slices for units in container.classes)
        peak = max(peak, beside + slices)
        beside += 0 if container.kind is ContainerKind.INIT else slices
    return NodeProblem(hardware, blocks, gpus, peak)


def _block(
    hardware: Hardware, demand: ContainerDemand, allowed: int, of_class: Sequence[int]
) -> ContainerBlock:
    """Returns a container's demand on a kind of node.

    Args:
        hardware: The node's GPUs.
        demand: What the container asks for.
        allowed: The GPUs that its annotations allow.
        of_class: The GPUs of each of its classes, in their order.
    """
    host = demand.options.oversubscribe and hardware.lends
    lends = demand.kind is ContainerKind.INIT
    offered = sum(1 << gpu for gpu, name in enumerate(hardware.resources) if name == demand.resource)
    whole = hardware.all_gpus if demand.whole_resource == hardware.whole_resource else 0
    base = ContainerBlock(lends, (), (), demand.options.exclusive, host=host)
    if (demand.resource and not offered) or (demand.whole_resource and not whole):
        return replace(base, never=RefusalReason.NO_RESOURCE)
    if not demand.classes:
        return _of_pool(hardware, demand, allowed & (offered if demand.slices else whole), base)
    units, asks, counts = [], [], 0
    for class_units, members in zip(demand.classes, of_class, strict=True):
        if not members:
            return replace(base, never=RefusalReason.NO_CLASS)
        gpus = members & allowed & (offered if class_units.slices else whole)
        if not gpus:
            return replace(base, never=RefusalReason.NO_MATCH)
        if class_units.slices > max(gpu.slices for n, gpu in enumerate(hardware.view(host)) if gpus >> n & 1):
            return replace(base, never=RefusalReason.TOO_SMALL)
        if class_units.count > gpus.bit_count():
            return replace(base, never=RefusalReason.TOO_FEW)
        cores = class_units.cores if class_units.slices else 0
        units += [GpuAmount(gpus, class_units.slices, cores)] * class_units.count
        request = Request(
            gpus=class_units.count, slices=class_units.slices or None, cores=cores, exclusive=base.exclusive
        )
        asks.append(PlacementRequest(request, gpus))
        counts += class_units.slices * class_units.count
    # whole GPUs and the rarest first: what can only be somewhere is not taken by what can be anywhere
    units.sort(key=lambda unit: (unit.slices != 0, unit.gpus.bit_count(), -unit.slices, unit.gpus))
    asks.sort(key=lambda ask: (ask.request.slices is not None, ask.gpus.bit_count(), ask.gpus))
    return replace(
        base,
        alternatives=(tuple(units),),
        asks=tuple(asks),
        cores=max((unit.cores for unit in units), default=0),
        memory_bytes=counts * hardware.gpus[0].slice_bytes,
    )


def _of_pool(hardware: Hardware, demand: ContainerDemand, gpus: int, base: ContainerBlock) -> ContainerBlock:
    if not gpus:
        return replace(base, never=RefusalReason.NO_MATCH)
    options = demand.options
    if demand.slices:
        request = options.request(demand.slices)
        if options.same_gpu and not options.parts:
            request = replace(request, gpus=request.gpus or 1)
    else:
        request = Request(gpus=demand.gpus, exclusive=options.exclusive)
    memory_bytes = demand.slices * hardware.gpus[0].slice_bytes
    only = frozenset(str(gpu) for gpu in bits(gpus))
    plans = find_plans(hardware.state(hardware.idle(), base.host), replace(request, only=only))
    if isinstance(plans, Infeasible):
        return replace(base, never=_REASONS[plans.reason])
    alternatives = tuple(
        tuple(
            GpuAmount(sum(1 << int(uuid) for uuid in plan.only), size, request.cores) for size in plan.sizes
        )
        for plan in plans
    )
    return replace(
        base,
        alternatives=alternatives,
        asks=(PlacementRequest(request, gpus),),
        cores=request.cores,
        memory_bytes=memory_bytes,
    )
