# SPDX-License-Identifier: Apache-2.0
"""The names by which other projects' pods ask for GPUs, and what each becomes. One table; the pages have it, too.

The names and what they mean were read in the projects' sources and documentation: HAMi 4707fb02 (pkg/device/nvidia,
pkg/util/types.go, examples/nvidia), HAMi-core (multiprocess_memory_limit.c), vgpu-manager 3d7f66d (README.md,
pkg/util/consts.go), gpu-manager 088928cb (README.md), and of NVIDIA's device plugin its README.md. A cluster's operator
can give most of them other names; these are the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gigaslice.core.cluster.names import GPU_RESOURCE, MEMORY_RESOURCE
from gigaslice.core.model.annotations import ANNOTATIONS
from gigaslice.core.model.options import PREFIX

__all__ = [
    "ANNOTATION_NAMES",
    "DIALECTS",
    "MPS_PERCENTAGE",
    "NAMES",
    "RECORDS",
    "SCHEDULERS",
    "TAKEN_OUT",
    "VARIABLES",
    "Dialect",
    "ForeignName",
    "ForeignPlace",
]

MIB = 1 << 20
HAMI, VGPU_MANAGER, GPU_MANAGER = "HAMi", "vgpu-manager", "gpu-manager"
SHARING, MPS = "time-slicing", "MPS"


class ForeignPlace(Enum):
    """Where in a manifest a name stands."""

    RESOURCE = "resource"
    ANNOTATION = "annotation"
    VARIABLE = "variable"
    FIELD = "field"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The resources by which one project's pods ask for GPUs. Empty: it has no such name.

    Attributes:
        owner: The project.
        count: How many GPUs.
        memory: How much memory of each GPU.
        memory_unit: Bytes of one unit of `memory`, which the operator may multiply (memoryFactor).
        percentage: Per cent of each GPU's memory, where `memory` is not written.
        cores: Per cent of each GPU's compute.
        priority: 0 for high, 1 for low.
        hundred_is_exclusive: Whether all of the compute means that nobody else gets the GPU.
        cores_count_gpus: Whether `cores` counts GPUs, too: below 100 it is a share of one, else so many hundreds.
        elastic: Whether idle compute may be used beyond `cores` where nothing is said about it.
        alone_is_whole: Whether a count without memory is a whole GPU.
    """

    owner: str
    count: str = ""
    memory: str = ""
    memory_unit: int = MIB
    percentage: str = ""
    cores: str = ""
    priority: str = ""
    hundred_is_exclusive: bool = False
    cores_count_gpus: bool = False
    elastic: bool = False
    alone_is_whole: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All of its names; of those that a container has, the first becomes the line of ours."""
        return tuple(filter(None, (self.memory, self.percentage, self.count, self.cores, self.priority)))


DIALECTS = (
    Dialect(HAMI, "nvidia.com/gpu", "nvidia.com/gpumem", percentage="nvidia.com/gpumem-percentage",
            cores="nvidia.com/gpucores", priority="nvidia.com/priority",
            hundred_is_exclusive=True, elastic=True, alone_is_whole=True),
    Dialect(VGPU_MANAGER, "nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", cores="nvidia.com/vgpu-cores"),
    Dialect(GPU_MANAGER, memory="tencent.com/vcuda-memory", memory_unit=256 * MIB, cores="tencent.com/vcuda-core",
            cores_count_gpus=True),
    Dialect(SHARING, "nvidia.com/gpu.shared"),
)  # fmt: skip
"""In the order in which a container's names are looked for."""

TAKEN_OUT = {
    "hami.io/node-scheduler-policy": (HAMI, "the agents' --placement chooses for all pods"),
    "hami.io/gpu-scheduler-policy": (HAMI, "the agents' --placement chooses for all pods"),
    "hami.io/device-scoring-weights": (HAMI, "the agents' --placement chooses for all pods"),
    "nvidia.com/numa-bind": (HAMI, "the kubelet's topology manager and the agents' --bind-cpus see to NUMA nodes"),
    "nvidia.com/node-scheduler-policy": (VGPU_MANAGER, "the agents' --placement chooses for all pods"),
    "nvidia.com/device-scheduler-policy": (VGPU_MANAGER, "the agents' --placement chooses for all pods"),
    "nvidia.com/memory-scheduler-policy": (
        VGPU_MANAGER,
        f"memory of the host is asked for by {PREFIX}oversubscribe",
    ),
    "nvidia.com/device-topology-mode": (
        VGPU_MANAGER,
        "the agents' --placement looks at links and NUMA nodes for all pods",
    ),
}  # fmt: skip
"""Annotations of pods without a counterpart in the pod, by name: whose, and what does it here."""

RECORDS = {
    "hami.io/vgpu-time": HAMI,
    "hami.io/vgpu-node": HAMI,
    "hami.io/bind-time": HAMI,
    "hami.io/bind-phase": HAMI,
    "hami.io/vgpu-devices-to-allocate": HAMI,
    "hami.io/vgpu-devices-allocated": HAMI,
    "nvidia.com/predicate-node": VGPU_MANAGER,
    "nvidia.com/predicate-time": VGPU_MANAGER,
    "nvidia.com/pre-allocated": VGPU_MANAGER,
    "nvidia.com/real-allocated": VGPU_MANAGER,
    "tencent.com/predicate-time": GPU_MANAGER,
    "tencent.com/gpu-assigned": GPU_MANAGER,
}
"""Annotations that the project itself writes on pods that were placed; `kubectl get -o yaml` prints them."""

ANNOTATION_NAMES = {alias: PREFIX + row.name for row in ANNOTATIONS for alias in row.aliases}
"""Annotations that become one of ours with the same value."""

MODE = "nvidia.com/vgpu-mode"
COMPUTE_POLICY = "nvidia.com/vgpu-compute-policy"
CORE_LIMIT = "tencent.com/vcuda-core-limit"

SCHEDULERS = {"hami-scheduler": HAMI, "vgpu-scheduler": VGPU_MANAGER}
"""schedulerName of pods, by name."""

MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
CORE_POLICY, TASK_PRIORITY = "GPU_CORE_UTILIZATION_POLICY", "CUDA_TASK_PRIORITY"
OVERSUBSCRIBE, DISABLE = "CUDA_OVERSUBSCRIBE", "CUDA_DISABLE_CONTROL"
MPS_MEMORY, MPS_PERCENTAGE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

VARIABLES = {
    MEMORY_LIMIT: (HAMI, f"taken out: the limit is {MEMORY_RESOURCE} alone; so is `{MEMORY_LIMIT}_0` and so on"),
    "CUDA_DEVICE_SM_LIMIT": (HAMI, f"taken out: the limit is `{PREFIX}cores` alone"),
    CORE_POLICY: (HAMI, f"`{PREFIX}cores-policy`: `force` is `hard`, `default` is `elastic`; `disable` leaves "
                        f"`{PREFIX}cores` out"),
    TASK_PRIORITY: (HAMI, f"`{PREFIX}priority`, as `nvidia.com/priority`"),
    OVERSUBSCRIBE: (HAMI, f"`{PREFIX}oversubscribe`"),
    DISABLE: (HAMI, "`false` is taken out; any other value is left to you: no container is without its limit"),
    "LIBCUDA_LOG_LEVEL": (HAMI, "taken out"),
    "ACTIVE_OOM_KILLER": (HAMI, "taken out: an allocation beyond the limit is refused, and nothing is killed"),
    MPS_MEMORY: (MPS, "taken out, where the container asks for memory; it counts for each process there"),
    MPS_PERCENTAGE: (MPS, f"`{PREFIX}cores`"),
}  # fmt: skip
"""Variables of containers, by name: whose, and what becomes of them, as the page says it."""


@dataclass(frozen=True, slots=True)
class ForeignName:
    """One row of the table. becomes: what is written in its place, as the page says it."""

    name: str
    owner: str
    place: ForeignPlace
    becomes: str


def _resource_rows(dialect: Dialect) -> list[tuple[str, str]]:
    each = f"`{PREFIX}gpus` where it is more than 1; without memory " + (
        f"`{GPU_RESOURCE}` (`--memory`: slices)"
        if dialect.alone_is_whole
        else "`--memory` must say how much it is"
    )
    unit = f"{dialect.memory_unit // MIB} MiB" if dialect.memory_unit > MIB else "MiB"
    cores = f"`{PREFIX}cores`"
    if dialect.hundred_is_exclusive:
        cores += f"; 100 is `{PREFIX}exclusive`"
    if dialect.cores_count_gpus:
        cores += f"; from 100 on `{GPU_RESOURCE}`"
    if dialect.elastic:
        cores += f"; and `{PREFIX}cores-policy: elastic`, where no policy is written"
    rows = [
        (dialect.count, each),
        (dialect.memory, f"`{MEMORY_RESOURCE}`: the sum over the GPUs, {unit} of each rounded up to slices"),
        (dialect.percentage, f"`{MEMORY_RESOURCE}`, of the GPUs' size that `--gpu-size` says, rounded down"),
        (dialect.cores, cores),
        (dialect.priority, f"`{PREFIX}priority`: 0 is `guaranteed`, 1 is `burstable`"),
    ]
    return [row for row in rows if row[0]]


def _rows() -> tuple[ForeignName, ...]:
    rows = [
        ForeignName(name, dialect.owner, ForeignPlace.RESOURCE, becomes)
        for dialect in DIALECTS
        for name, becomes in _resource_rows(dialect)
    ]
    owners = {alias: VGPU_MANAGER if "clude-" in alias else HAMI for alias in ANNOTATION_NAMES}
    rows += [
        ForeignName(alias, owners[alias], ForeignPlace.ANNOTATION, f"`{ours}`")
        for alias, ours in ANNOTATION_NAMES.items()
    ]
    rows += [
        ForeignName(MODE, HAMI, ForeignPlace.ANNOTATION, "`hami-core` is taken out; `mig` and `mps` are left to you"),
        ForeignName(COMPUTE_POLICY, VGPU_MANAGER, ForeignPlace.ANNOTATION,
                    f"`{PREFIX}cores-policy`: `fixed` is `hard`, `balance` is `elastic`; `none` leaves "
                    f"`{PREFIX}cores` out"),
        ForeignName(CORE_LIMIT, GPU_MANAGER, ForeignPlace.ANNOTATION,
                    f"`{PREFIX}cores-policy: elastic`, where it is more than the cores"),
    ]  # fmt: skip
    rows += [
        ForeignName(name, owner, ForeignPlace.ANNOTATION, f"taken out: {why}")
        for name, (owner, why) in TAKEN_OUT.items()
    ]
    rows += [
        ForeignName(name, owner, ForeignPlace.ANNOTATION, "taken out") for name, owner in RECORDS.items()
    ]
    rows += [
        ForeignName(name, owner, ForeignPlace.VARIABLE, becomes)
        for name, (owner, becomes) in VARIABLES.items()
    ]
    rows += [
        ForeignName(f"schedulerName: {name}", owner, ForeignPlace.FIELD, "taken out")
        for name, owner in SCHEDULERS.items()
    ]
    return tuple(rows)


NAMES = _rows()
"""Every name that is understood."""
