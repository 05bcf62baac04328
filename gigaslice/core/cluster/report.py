# SPDX-License-Identifier: Apache-2.0
"""Why a pod does not fit on a node, GPU by GPU, and what would help: for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gigaslice.core.cluster.demand import ContainerDemand, PodDemand
from gigaslice.core.cluster.hardware import Hardware
from gigaslice.core.cluster.holding import HeldShare
from gigaslice.core.cluster.node_record import NodeRecord
from gigaslice.core.cluster.problem import ContainerBlock, NodeProblem
from gigaslice.core.cluster.refusal import GpuReport, NodeReport, Refusal, RefusalReason
from gigaslice.core.model import CORES_PER_GPU
from gigaslice.core.text import plural

__all__ = ["node_report"]


def node_report(
    record: NodeRecord, demand: PodDemand, refusal: Refusal | None, problem: NodeProblem | None
) -> NodeReport:
    """Returns a node as a pod sees it. problem: the pod on this kind of node; None where its GPUs are not known."""
    facts = record.facts
    gpus: tuple[GpuReport, ...] = ()
    if problem is not None:
        on: list[list[tuple[str, HeldShare]]] = [[] for _ in record.gpus]
        for holding in record.holdings():
            for share in holding.shares:
                if share.gpu in record.positions:
                    on[record.positions[share.gpu]].append((holding.id, share))
        gpus = tuple(_gpu(record, demand, problem, number, held) for number, held in enumerate(on))
    return NodeReport(
        facts.name,
        refusal,
        _would_help(record, refusal),
        facts.schedulable,
        facts.ready,
        gpus,
        _wanted(problem) if problem is not None else (),
    )


def _wanted(problem: NodeProblem) -> tuple[tuple[int, int], ...]:
    if len(problem.blocks) != 1:
        return ()
    amounts = {(len(units), units[0].slices): None for units in problem.blocks[0].alternatives}
    return tuple(amounts) if len({gpus for gpus, _ in amounts}) > 1 else ()


def _gpu(
    record: NodeRecord,
    demand: PodDemand,
    problem: NodeProblem,
    number: int,
    holders: Sequence[tuple[str, HeldShare]],
) -> GpuReport:
    inventory_gpu = record.gpus[number]
    whys = [
        _why(record, container, block, problem.hardware, number)
        for container, block in zip(demand.containers, problem.blocks, strict=True)
    ]
    return GpuReport(
        inventory_gpu.gpu.uuid,
        inventory_gpu.gpu.index,
        inventory_gpu.gpu.model,
        inventory_gpu.gpu.slices,
        max(0, inventory_gpu.gpu.slices - sum(share.slices for _, share in holders)),
        max(0, CORES_PER_GPU - sum(share.cores for _, share in holders)),
        "" if not all(whys) else whys[0],
        tuple(sorted(name for name, _ in holders)),
    )


def _why(
    record: NodeRecord, container: ContainerDemand, block: ContainerBlock, hardware: Hardware, number: int
) -> str:
    """Returns why a GPU serves no part of a container; empty where it does."""
    inventory_gpu, room = record.gpus[number], record.current_room()[number]
    if inventory_gpu.unhealthy:
        return inventory_gpu.unhealthy
    units = [unit for units in block.alternatives for unit in units if unit.gpus >> number & 1]
    if not units:
        if container.resource and inventory_gpu.resource != container.resource:
            return f"offered as {inventory_gpu.resource}, and {container.resource} is asked for"
        classes = [units.name for units in container.classes]
        return f"not of class {' or '.join(classes)}" if classes else "not allowed by the pod's annotations"
    size = hardware.view(block.host)[number].slices
    least = min(unit.slices or size for unit in units)
    if least > size:
        return f"has {plural(size, 'slice')}, and {least} {'is' if least == 1 else 'are'} asked for"
    if (least == size or block.exclusive) and room.foreign:
        return "in use by other pods, and asked for whole" if least == size else "in use by other pods"
    free = hardware.free(room, number, block.host, block.memory_bytes)
    if free < least:
        return f"{free} of {plural(size, 'slice')} free, {least} asked for on one GPU"
    cores = min(unit.cores for unit in units)
    return f"{room.cores}% of its compute free, {cores}% asked for" if cores > room.cores else ""


_HELP = {
    RefusalReason.NO_INVENTORY: "an agent on the node that may annotate it; its log says why it does not",
    RefusalReason.UNREADABLE_INVENTORY: "upgrade gigaslice on the node or in the cluster",
    RefusalReason.UNREADABLE_POD: "the end of that pod; the scheduler's log names it, and what is wrong with it",
    RefusalReason.NO_RESOURCE: "ask for a resource that the node offers",
    RefusalReason.NO_CLASS: "another class, or a selector that matches these GPUs",
    RefusalReason.NO_MATCH: "annotations that allow one of these GPUs",
    RefusalReason.TOO_SMALL: "less memory per GPU, or gigaslice.io/gpus to spread it",
    RefusalReason.TOO_FEW: "fewer GPUs",
    RefusalReason.TOGETHER_NEVER: "smaller containers, or separate pods",
    RefusalReason.UNHEALTHY: "GPUs that recover, or gigaslice uncordon",
    RefusalReason.NO_ROOM: "pods that end on one of these GPUs",
    RefusalReason.NO_GPU: "pods that end, until so many whole GPUs are free",
    RefusalReason.NO_COMPUTE: "a smaller gigaslice.io/cores, or pods with a compute share that end",
    RefusalReason.TOGETHER: "pods that end here, or the containers in separate pods",
}


def _would_help(record: NodeRecord, refusal: Refusal | None) -> str:
    if refusal is not None:
        return _HELP.get(refusal.reason, "")
    if not record.facts.schedulable:
        return "kubectl uncordon"
    return "" if record.facts.ready else "a kubelet that is ready"
