# SPDX-License-Identifier: Apache-2.0
"""What a pod asks for of GPUs, all of its containers together, as one value; or the sentence of what to write instead.

A container counts slices, whole GPUs or units of classes. Annotations say how the slices are to be had, with the
meaning that they have on a node (`gigaslice.core.model.options`). Two pods of one template have equal demands, so what
has been found out for one holds for the other. Selectors are not resolved here: a class is a name until a node is
looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gigaslice.core.classes.resource_class import ResourceClass
from gigaslice.core.cluster.names import CLASS_PREFIX, GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.cluster.refusal import Refusal, RefusalReason
from gigaslice.core.model import (
    CORES_PER_GPU,
    AnnotationRights,
    ContainerKind,
    Pod,
    PodContainer,
    RequestOptions,
    SliceUnit,
    annotations_by_container,
    parse_options,
)
from gigaslice.core.model.pod import is_of
from gigaslice.core.text import plain
from gigaslice.core.units import parse_bytes

__all__ = [
    "ClassUnits",
    "ClusterUnits",
    "ContainerDemand",
    "PodDemand",
    "asks_for_gpus",
    "demand_of",
    "names_class",
]

_DEFAULT = RequestOptions()


@dataclass(frozen=True, slots=True)
class ClusterUnits:
    """What pods count in, and which of their annotations count.

    Attributes:
        slice_bytes: Of one unit of memory, as set on the agents.
        memory_resource: Slices; with ".<type>" after it, slices of GPUs that a node offers by type.
        gpu_resource: Whole GPUs.
        rights: Which annotations of theirs count.
    """

    slice_bytes: int = 1 << 30
    memory_resource: str = MEMORY_RESOURCE
    gpu_resource: str = GPU_RESOURCE
    rights: AnnotationRights = AnnotationRights.REFUSE

    def is_memory(self, resource: str) -> bool:
        """Whether a resource counts slices."""
        return is_of(resource, self.memory_resource)

    def counts(self, resource: str) -> bool:
        """Whether a resource counts slices or whole GPUs."""
        return resource == self.gpu_resource or self.is_memory(resource)


@dataclass(frozen=True, slots=True)
class ClassUnits:
    """So many different GPUs of a class. slices: of each, 0 for whole GPUs. cores: per cent of each."""

    name: str
    count: int
    slices: int = 0
    cores: int = 0


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    """What one container asks for: slices, or whole GPUs, or units of classes.

    Attributes:
        name: The container's; not compared, so that templates that differ in names alone are alike.
        kind: When it runs.
        resource: The resource of its slices, empty where it has none.
        whole_resource: The resource of its whole GPUs, empty where it has none.
        slices: In all, where no class says it.
        gpus: Whole GPUs, where no class says it.
        classes: Units, by class; all on different GPUs.
        options: From annotations; what has no effect on the choice of GPUs is left out.
    """

    name: str = field(compare=False)
    kind: ContainerKind = ContainerKind.APP
    resource: str = ""
    whole_resource: str = ""
    slices: int = 0
    gpus: int = 0
    classes: tuple[ClassUnits, ...] = ()
    options: RequestOptions = _DEFAULT


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What a pod asks for. containers: those that ask for GPUs, in the order of admission."""

    containers: tuple[ContainerDemand, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.containers))

    def __hash__(self) -> int:
        return self._hash  # a key that is looked up once for every node

    @property
    def any(self) -> bool:
        """Whether it asks for GPUs at all."""
        return bool(self.containers)

    @property
    def classes(self) -> frozenset[str]:
        """The classes that it names."""
        return frozenset(units.name for container in self.containers for units in container.classes)

    @property
    def same_gpu(self) -> bool:
        """Whether all containers are to be on the same GPUs."""
        return any(container.options.same_gpu for container in self.containers)


_UNITS = ClusterUnits()


def asks_for_gpus(pod: Pod, units: ClusterUnits = _UNITS) -> bool:
    """Whether a pod asks for GPUs at all, rightly or not: only such pods count. An assignment alone is no request."""
    return any(_asked(container, units) for container in pod.containers)


def names_class(pod: Pod) -> bool:
    """Whether a container of a pod asks for GPUs of a class."""
    return any(name.startswith(CLASS_PREFIX) for container in pod.containers for name in container.requests)


def demand_of(
    pod: Pod, classes: Mapping[str, ResourceClass], units: ClusterUnits = _UNITS
) -> PodDemand | Refusal:
    """Returns what a pod asks for; a refusal where that cannot be meant on any node."""
    demands = []
    annotations = annotations_by_container(pod.annotations)
    for container in pod.containers:
        if not _asked(container, units):
            continue
        container_demand = _container(annotations(container.name), container, classes, units)
        if isinstance(container_demand, Refusal):
            return container_demand
        demands.append(container_demand)
    if any(container_demand.options.same_gpu for container_demand in demands):
        demands = [
            replace(container_demand, options=replace(container_demand.options, same_gpu=True))
            for container_demand in demands
        ]
    return PodDemand(tuple(demands))


def _asked(container: PodContainer, units: ClusterUnits) -> bool:
    return any(name.startswith(CLASS_PREFIX) or units.counts(name) for name in container.requests)


def _container(
    annotations: Mapping[str, str],
    container: PodContainer,
    classes: Mapping[str, ResourceClass],
    units: ClusterUnits,
) -> ContainerDemand | Refusal:
    memory = sorted(name for name in container.requests if units.is_memory(name))
    if len(memory) > 1:
        return _invalid(container, f"{memory[0]} and {memory[1]} are both asked for; write one of the two")
    resource = memory[0] if memory else ""
    slices = container.requests[resource] if resource else 0
    gpus = container.requests.get(units.gpu_resource, 0)
    options = parse_options(
        annotations, container.name, SliceUnit(units.slice_bytes, parse_bytes), units.rights
    )
    if options.mistakes:
        return _invalid(container, "; ".join(options.mistakes))
    counts = {
        name.removeprefix(CLASS_PREFIX): count
        for name, count in sorted(container.requests.items())
        if name.startswith(CLASS_PREFIX)
    }
    container_demand = ContainerDemand(
        container.name,
        container.kind,
        resource,
        units.gpu_resource if gpus else "",
        slices,
        gpus,
        options=replace(_relevant(options), gpus=None) if gpus and not counts else _relevant(options),
    )
    if counts:
        return _of_classes(container_demand, container, counts, classes, units)
    if slices and gpus:
        return _invalid(
            container,
            f"{resource} and {units.gpu_resource} are both asked for; write {resource} for memory of shared GPUs, or "
            f"{units.gpu_resource} for whole ones",
        )
    if gpus and (odd := _divided(options, gpus)):
        return _invalid(container, f"{odd} of {gpus} whole GPUs has no meaning; leave it out")
    odd_slices = options.contradictions(slices) if slices else ()
    return _invalid(container, "; ".join(odd_slices)) if odd_slices else container_demand


def _unknown(
    container: PodContainer, counts: Mapping[str, int], classes: Mapping[str, ResourceClass]
) -> Refusal | None:
    for name in counts:
        if name not in classes:
            near = difflib.get_close_matches(name, sorted(classes), n=1)
            hint = f'did you mean "{near[0]}"?' if near else "kubectl get resourceclasses lists what there is"
            return Refusal(
                RefusalReason.UNKNOWN_CLASS,
                plain(f'container {container.name}: there is no GPU class "{name}"; {hint}'),
            )
    return None


def _of_classes(
    base: ContainerDemand,
    container: PodContainer,
    counts: Mapping[str, int],
    classes: Mapping[str, ResourceClass],
    units: ClusterUnits,
) -> ContainerDemand | Refusal:
    if unknown := _unknown(container, counts, classes):
        return unknown
    total = sum(counts.values())
    if odd := _divided(base.options, total):
        return _invalid(container, f"{odd} and GPU classes both say how many GPUs; leave {odd} out")
    shares = {name: share for name in counts if (share := classes[name].share) is not None}
    shared = {name: -(-share.memory_bytes // units.slice_bytes) for name, share in shares.items()}
    memory = sum(slices * counts[name] for name, slices in shared.items())
    rest = total - sum(counts[name] for name in shared)  # units that are no share by themselves
    resource = base.resource or units.memory_resource
    if (
        shared and rest
    ):  # two answers of the agent would each name the container's GPUs, and one of them be lost
        part = next(iter(shared))
        whole = next(name for name in counts if name not in shared)
        return _invalid(
            container,
            f"class {part} is a share of a GPU and class {whole} a whole one; ask for one kind in a container, and for "
            "the other in another container of the pod",
        )
    if shared and base.slices and base.slices != memory:
        return _invalid(
            container, f"its classes are {memory} of {resource} altogether; write {memory}, or leave it out"
        )
    if base.gpus and base.gpus != rest:
        remedy = f"write {rest}, or leave it out" if rest else f"write {memory} of {resource} in place of it"
        return _invalid(container, f"its classes are {rest} of {units.gpu_resource} altogether; {remedy}")
    spread = base.slices if base.slices and not shared and not base.gpus else 0
    if base.slices and base.gpus and not shared:
        return _invalid(
            container,
            f"{resource} and {units.gpu_resource} are both asked for; write one of the two beside the class",
        )
    if spread and (spread < total or (len(counts) > 1 and spread % total)):
        return _invalid(
            container,
            f"{spread} of {resource} cannot be spread over {total} GPUs; write {total} or a multiple",
        )
    class_units: list[ClassUnits] = []
    for name, count in counts.items():
        cores = shares[name].cores if name in shares else 0
        if cores and base.options.cores not in (0, cores):
            return _invalid(
                container,
                f"gigaslice.io/cores: class {name} says {cores}; leave the annotation out, or write {cores}",
            )
        cores = cores or base.options.cores
        if name in shared:
            class_units.append(ClassUnits(name, count, shared[name], cores))
        elif spread:
            each, larger = divmod(spread, total)
            larger = min(larger, count)
            class_units += [
                ClassUnits(name, number, slices, cores)
                for number, slices in ((larger, each + 1), (count - larger, each))
                if number
            ]
        else:
            class_units.append(ClassUnits(name, count, 0, CORES_PER_GPU))
    return replace(
        base,
        resource=resource if shared or spread else "",
        whole_resource=units.gpu_resource if rest and not spread else "",
        slices=0,
        gpus=0,
        classes=tuple(class_units),
        options=replace(base.options, gpus=None),
    )


def _divided(options: RequestOptions, gpus: int) -> str:
    """Returns the annotation that divides slices over GPUs where so many GPUs are asked for; empty where none does."""
    if options.parts:
        return "gigaslice.io/memory"
    if options.whole_first:
        return "gigaslice.io/split"
    return "gigaslice.io/gpus" if options.gpus not in (None, gpus) else ""


def _relevant(options: RequestOptions) -> RequestOptions:
    return RequestOptions(
        gpus=options.gpus,
        whole_first=options.whole_first,
        parts=options.parts,
        types=options.types,
        not_types=options.not_types,
        uuids=options.uuids,
        not_uuids=options.not_uuids,
        exclusive=options.exclusive,
        same_gpu=options.same_gpu,
        cores=options.cores,
        oversubscribe=options.oversubscribe,
    )


def _invalid(container: PodContainer, text: str) -> Refusal:
    return Refusal(RefusalReason.INVALID, plain(f"container {container.name}: {text}"))
