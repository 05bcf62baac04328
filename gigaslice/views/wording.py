"""What a pod asks for, in words: "8 GiB of GPU memory", "2 GPUs of class nvidia.h100". Pure."""

from __future__ import annotations

from gigaslice.cluster.demand import ClusterUnits, ContainerDemand, PodDemand
from gigaslice.model import ContainerKind
from gigaslice.text import plain, plural
from gigaslice.units import format_bytes

__all__ = ["asks_for", "largest_part"]


def asks_for(demand: PodDemand, units: ClusterUnits) -> str:
    """What a pod asks for, one part for each container that asks for any."""
    parts = [_container(one, units) for one in demand.containers]
    if len(parts) == 1:
        return parts[0]
    named = [f"{one.name}: {part}" for one, part in zip(demand.containers, parts, strict=True)]
    return plain("; ".join(named) + (" (all on the same GPUs)" if demand.same_gpu else ""))


def largest_part(demand: PodDemand) -> int:
    """The most slices that any one GPU must give; 0 where whole GPUs are asked for, or where it depends on the GPUs."""
    most = 0
    for one in demand.containers:
        if one.gpus or any(not units.slices for units in one.classes):
            return 0
        most = max([most, *(units.slices for units in one.classes)])
        if one.slices:
            parts = one.options.parts
            most = max(most, max(parts) if parts else -(-one.slices // (one.options.gpus or 1)))
    return most


def _container(one: ContainerDemand, units: ClusterUnits) -> str:
    words = [_amount(one, units)]
    options = one.options
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
    if one.kind is ContainerKind.INIT:
        words.append("(init container)")
    return plain(" ".join(words))


def _amount(one: ContainerDemand, units: ClusterUnits) -> str:
    if one.classes:
        return " and ".join(
            (f"{format_bytes(each.slices * units.slice_bytes)} of each of " if each.slices else "")
            + f"{plural(each.count, 'GPU')} of class {each.name}"
            for each in one.classes
        )
    if one.gpus:
        return plural(one.gpus, "whole GPU")
    if one.options.parts:
        sizes = " and ".join(format_bytes(part * units.slice_bytes) for part in one.options.parts)
        return f"{sizes} on different GPUs"
    size = format_bytes(one.slices * units.slice_bytes)
    if (one.options.gpus or 1) > 1:
        return f"{size} spread over {one.options.gpus} GPUs"
    if one.options.whole_first:
        return f"{size}, whole GPUs first"
    return f"{size} of GPU memory"
