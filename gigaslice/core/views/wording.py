# SPDX-License-Identifier: Apache-2.0
"""What a pod asks for, in words: "8 GiB of GPU memory", "2 GPUs of class nvidia.h100". Pure."""

from __future__ import annotations

from gigaslice.core.cluster.demand import ClusterUnits, ContainerDemand, PodDemand
from gigaslice.core.model import ContainerKind
from gigaslice.core.text import plain, plural
from gigaslice.core.units import format_bytes

__all__ = ["asks_for", "largest_part"]


def asks_for(demand: PodDemand, units: ClusterUnits) -> str:
    """What a pod asks for, one part for each container that asks for any."""
    parts = [_container(container, units) for container in demand.containers]
    if len(parts) == 1:
        return parts[0]
    named = [f"{container.name}: {part}" for container, part in zip(demand.containers, parts, strict=True)]
    return plain("; ".join(named) + (" (all on the same GPUs)" if demand.same_gpu else ""))


def largest_part(demand: PodDemand) -> int:
    """The most slices that any one GPU must give; 0 where whole GPUs are asked for, or where it depends on the GPUs."""
    most = 0
    for container in demand.containers:
        if container.gpus or any(not units.slices for units in container.classes):
            return 0
        most = max([most, *(units.slices for units in container.classes)])
        if container.slices:
            parts = container.options.parts
            most = max(most, max(parts) if parts else -(-container.slices // (container.options.gpus or 1)))
    return most


def _container(demand: ContainerDemand, units: ClusterUnits) -> str:
    words = [_amount(demand, units)]
    options = demand.options
    if options.types:
        words.append(f"of type {' or '.join(options.types)}")
    if options.not_types:
        words.append(f"not of type {' or '.join(options.not_types)}")
    if options.uuids:
        words.append(f"of {plural(len(options.uuids), 'named GPU')}")
    if options.exclusive:
        words.append("that no other pod uses")
    if options.cores:
        words.append(f"with {options.cores}% of its compute")
    if demand.kind is ContainerKind.INIT:
        words.append("(init container)")
    return plain(" ".join(words))


def _amount(demand: ContainerDemand, units: ClusterUnits) -> str:
    if demand.classes:
        return " and ".join(
            (
                f"{format_bytes(units_of_class.slices * units.slice_bytes)} of each of "
                if units_of_class.slices
                else ""
            )
            + f"{plural(units_of_class.count, 'GPU')} of class {units_of_class.name}"
            for units_of_class in demand.classes
        )
    if demand.gpus:
        return plural(demand.gpus, "whole GPU")
    if demand.options.parts:
        sizes = " and ".join(format_bytes(part * units.slice_bytes) for part in demand.options.parts)
        return f"{sizes} on different GPUs"
    size = format_bytes(demand.slices * units.slice_bytes)
    if (demand.options.gpus or 1) > 1:
        return f"{size} spread over {demand.options.gpus} GPUs"
    if demand.options.whole_first:
        return f"{size}, whole GPUs first"
    return f"{size} of GPU memory"
