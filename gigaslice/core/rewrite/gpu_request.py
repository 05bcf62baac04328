# SPDX-License-Identifier: Apache-2.0
"""What one container asks for by another project's names, and the request of ours that comes nearest. Pure.

A number that is not sure to mean the same is said in a note; one that depends on what only the cluster's operator knows
is left to the author, and says which option would settle it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.kube.pod_fields import count_of
from gigaslice.core.model import AnnotationRights
from gigaslice.core.model.options import OPTIONS, PREFIX
from gigaslice.core.rewrite.edits import Note, Path, value_at
from gigaslice.core.rewrite.names import DIALECTS, MIB, Dialect
from gigaslice.core.text import plural
from gigaslice.core.units import format_bytes

__all__ = ["ContainerPlan", "RewriteSettings", "needs_label", "plan_request"]

_MIG = "nvidia.com/mig-"
_MOST_MIB = (1 << 31) - 1  # HAMi refuses more, which is a size in bytes that was meant to be one in MiB
_HUNDRED = 100
PRIORITIES = {0: "guaranteed", 1: "burstable"}


@dataclass(frozen=True, slots=True)
class RewriteSettings:
    """What the cluster is like, as far as a manifest does not say it.

    Attributes:
        units: The resources' names, and bytes of a slice.
        gpu_bytes: Memory of a GPU, for percentages; 0 where nobody has said.
        alone_bytes: Memory of each GPU for containers that name none; 0: a whole GPU.
        memory_factor: By how much the operator multiplies sizes (HAMi's memoryFactor, vgpu-manager's
            deviceMemoryFactor).
    """

    units: ClusterUnits = field(default_factory=lambda: ClusterUnits(rights=AnnotationRights.CHECKED))
    gpu_bytes: int = 0
    alone_bytes: int = 0
    memory_factor: int = 1


@dataclass(slots=True)
class ContainerPlan:
    """What a container is to ask for.

    Attributes:
        name: The container's.
        path: Where it stands.
        dialect: By whose names it asks now; None where by none.
        resource: What it asks for; empty where it asks for no GPU.
        count: How many of it.
        options: Annotations by their name after the prefix.
        notes: What its author must see.
    """

    name: str
    path: Path
    dialect: Dialect | None = None
    resource: str = ""
    count: int = 0
    options: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def leave(self, text: str, *path: str | int) -> None:
        """Notes something that is left to the author, about what stands at PATH of the container."""
        self.notes.append(Note((*self.path, *path), f"container {self.name}: {text}", left=True))

    def say(self, text: str, *path: str | int) -> None:
        """Notes what is different now, about what stands at PATH of the container."""
        self.notes.append(Note((*self.path, *path), f"container {self.name}: {text}"))


def plan_request(container: Mapping[str, Any], path: Path, settings: RewriteSettings) -> ContainerPlan:
    """Plans the request of the container that stands at PATH of its document."""
    plan = ContainerPlan(str(container.get("name")), path)
    limits, requests = (_map(container, "resources", section) for section in ("limits", "requests"))
    for section, names in (("limits", limits), ("requests", requests)):
        for name in names:
            if str(name).startswith(_MIG):
                plan.leave(
                    f"{name}: MIG devices have no counterpart; ask for memory", "resources", section, name
                )
    dialects = [dialect for dialect in DIALECTS if not {*limits, *requests}.isdisjoint(dialect.names)]
    if not dialects:
        return plan
    plan.dialect = dialect = dialects[0]
    if len(dialects) > 1:
        plan.leave(
            f"it asks by the names of {dialect.owner} and of {dialects[1].owner}; write those of one",
            "resources",
        )
        return plan
    alone = [name for name in dialect.names if name in requests and name not in limits]
    for name in alone:
        plan.leave(
            f"{name} stands under requests alone; write it under limits", "resources", "requests", name
        )
    numbers = dict(_numbers(plan, dialect, limits))
    if not any(note.left for note in plan.notes):
        _ask(plan, dialect, numbers, settings)
    return plan


def needs_label(option: str, text: str) -> str:
    """The end of a sentence about an annotation that not everybody may write."""
    return f'{PREFIX}{option}: "{text}" needs the label {OPTIONS[option].namespace_label}: "true" of the Namespace'


def _map(container: Mapping[str, Any], *path: str) -> dict[str, Any]:
    value = value_at(container, path)
    return value if isinstance(value, dict) else {}


def _numbers(plan: ContainerPlan, dialect: Dialect, limits: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name in dialect.names:
        if name not in limits:
            continue
        number = count_of(limits[name])
        if number is None or number < 0:
            plan.leave(f"{name}: {str(limits[name])[:40]} is no whole number", "resources", "limits", name)
        else:
            yield name, number


def _ask(
    plan: ContainerPlan, dialect: Dialect, numbers: Mapping[str, int], settings: RewriteSettings
) -> None:
    cores = numbers.get(dialect.cores, 0)
    gpus = numbers.get(dialect.count, 1)
    if dialect.cores_count_gpus:
        if not cores or (cores > _HUNDRED and cores % _HUNDRED):
            plan.leave(f"{dialect.cores} must be below 100 or a multiple of it", "resources", "limits")
            return
        gpus = max(1, cores // _HUNDRED)
    if not gpus:
        return
    whole = _is_whole(dialect, numbers, settings)
    slices = 0 if whole else _slices_of_each(plan, dialect, numbers, settings)
    if whole:
        plan.resource, plan.count = settings.units.gpu_resource, gpus
        _say_whole(plan, dialect, numbers, gpus)
        return
    if not slices:
        return
    plan.resource, plan.count = settings.units.memory_resource, gpus * slices
    if gpus > 1:
        plan.options["gpus"] = str(gpus)
    _compute(plan, dialect, min(cores, _HUNDRED))
    _priority(plan, dialect, numbers)


def _is_whole(dialect: Dialect, numbers: Mapping[str, int], settings: RewriteSettings) -> bool:
    """Whether a container gets all of its GPUs' memory."""
    if dialect.cores_count_gpus:
        return numbers[dialect.cores] >= _HUNDRED
    if numbers.get(dialect.memory):
        return False
    if percentage := numbers.get(dialect.percentage):
        return percentage == _HUNDRED
    return dialect.alone_is_whole and not settings.alone_bytes


def _say_whole(plan: ContainerPlan, dialect: Dialect, numbers: Mapping[str, int], gpus: int) -> None:
    where = ("resources", "limits", next(name for name in dialect.names if name in numbers))
    text = f"it gets {plural(gpus, 'whole GPU')}, which agents offer with --whole-gpus {plan.resource}"
    if dialect.alone_is_whole and not numbers.get(dialect.percentage):
        text += "; where it was a share, as with time-slicing or HAMi's defaultMem, say how much by --memory"
    plan.say(text, *where)
    cores = numbers.get(dialect.cores, 0)
    if 0 < cores < _HUNDRED:
        plan.say(
            f"{dialect.cores}: {cores} goes; a whole GPU has no limit of compute, and nobody else is on it",
            "resources", "limits", dialect.cores,
        )  # fmt: skip
    if dialect.priority in numbers:
        plan.say(
            f"{dialect.priority} goes; nobody else is on a whole GPU", "resources", "limits", dialect.priority
        )


def _slices_of_each(
    plan: ContainerPlan, dialect: Dialect, numbers: Mapping[str, int], settings: RewriteSettings
) -> int:
    """Slices of each GPU; 0 where they are left to the author."""
    size = settings.units.slice_bytes
    if amount := numbers.get(dialect.memory, 0):
        where = ("resources", "limits", dialect.memory)
        if amount > _MOST_MIB:
            plan.leave(f"{dialect.memory}: {amount} is counted in MiB there; write the number of MiB", *where)
            return 0
        each = amount * dialect.memory_unit * settings.memory_factor
        slices = -(-each // size)
        if more := slices * size - each:
            plan.say(
                f"{dialect.memory}: {amount} is {format_bytes(slices * size)} of each GPU here, "
                f"{more // MIB} MiB more than there: slices are {format_bytes(size)}, and sizes are rounded up",
                *where,
            )
        return slices
    if percentage := numbers.get(dialect.percentage, 0):
        where = ("resources", "limits", dialect.percentage)
        if percentage > _HUNDRED:
            plan.leave(f"{dialect.percentage}: {percentage} is more than 100", *where)
            return 0
        if not settings.gpu_bytes:
            plan.leave(
                f"{dialect.percentage}: {percentage} depends on the GPU; say how much memory it has by --gpu-size",
                *where,
            )
            return 0
        slices = max(1, settings.gpu_bytes // size * percentage // _HUNDRED)
        plan.say(
            f"{dialect.percentage}: {percentage} is {format_bytes(slices * size)} of each GPU here, whatever its size: "
            f"of {format_bytes(settings.gpu_bytes)}, rounded down to slices",
            *where,
        )
        return slices
    if not settings.alone_bytes:
        plan.leave(
            "it does not say how much memory it needs, and gets no limit there; say how much by --memory",
            "resources", "limits",
        )  # fmt: skip
        return 0
    slices = -(-settings.alone_bytes // size)
    plan.say(
        f"it names no memory, and gets {format_bytes(slices * size)} of each GPU, as --memory says",
        "resources", "limits",
    )  # fmt: skip
    return slices


def _compute(plan: ContainerPlan, dialect: Dialect, cores: int) -> None:
    if not cores:
        return
    if cores == _HUNDRED and dialect.hundred_is_exclusive:
        plan.options["exclusive"] = "true"
        plan.say(
            f"{dialect.cores}: 100 keeps others off its GPUs; {needs_label('exclusive', 'true')}",
            "resources", "limits", dialect.cores,
        )  # fmt: skip
        return
    plan.options["cores"] = str(cores)
    if dialect.elastic:
        plan.options["cores-policy"] = "elastic"


def _priority(plan: ContainerPlan, dialect: Dialect, numbers: Mapping[str, int]) -> None:
    if dialect.priority not in numbers:
        return
    set_priority(plan, dialect.priority, numbers[dialect.priority], "resources", "limits", dialect.priority)


def set_priority(plan: ContainerPlan, name: str, number: int | None, *where: str | int) -> None:
    """Has a plan say the priority that NAME at WHERE gives: 0 is high, 1 is low."""
    priority = PRIORITIES.get(-1 if number is None else number)
    if priority is None:
        plan.leave(f"{name} must be 0 or 1", *where)
        return
    plan.options["priority"] = priority
    if OPTIONS["priority"].needs_label(priority):
        plan.say(f"{name}: {number} is high; {needs_label('priority', priority)}", *where)
