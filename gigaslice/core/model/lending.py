# SPDX-License-Identifier: Apache-2.0
"""Host memory that a node lends to its GPUs, so that they have more slices than fit their own memory.

Which GPU gets how much is decided once per GPU, by a rule that makes the most slices of it: what completes a slice
with the fewest bytes comes first. A GPU keeps what it was given, as containers count on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gigaslice.core.model.gpu import Gpu, count_slices


@dataclass(frozen=True, slots=True)
class Lending:
    """Bytes that the node lends to its GPUs together, and bytes for single GPUs (by UUID), which come on top."""

    node_bytes: int = 0
    by_gpu: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.node_bytes or self.by_gpu)


def lend(gpus: Iterable[Gpu], lending: Lending, given: Mapping[str, int]) -> tuple[Gpu, ...]:
    """GPUS with what LENDING lends them. given: what GPUs have been lent before, by UUID; they keep it.

    Bytes that complete no slice are not lent.
    """
    all_gpus = tuple(gpus)
    lent = {gpu.uuid: given.get(gpu.uuid, _own(gpu, lending)) for gpu in all_gpus}
    left = lending.node_bytes - sum(
        max(0, count - lending.by_gpu.get(uuid, 0)) for uuid, count in given.items()
    )
    new = [gpu for gpu in all_gpus if gpu.uuid not in given]
    while new:
        gpu = min(new, key=lambda gpu: (_missing(gpu, lent), lent[gpu.uuid], gpu.index))
        if _missing(gpu, lent) > left:
            break
        left -= _missing(gpu, lent)
        lent[gpu.uuid] += _missing(gpu, lent)
    return tuple(
        replace(
            gpu,
            host_bytes=lent[gpu.uuid],
            slices=count_slices(gpu.memory_bytes, gpu.slice_bytes, lent[gpu.uuid]),
        )
        if lent[gpu.uuid]
        else gpu
        for gpu in all_gpus
    )


def _own(gpu: Gpu, lending: Lending) -> int:
    """What is lent to this GPU alone, as far as it makes slices."""
    whole = count_slices(gpu.memory_bytes, gpu.slice_bytes, lending.by_gpu.get(gpu.uuid, 0))
    return max(0, whole * gpu.slice_bytes - gpu.memory_bytes)


def _missing(gpu: Gpu, lent: Mapping[str, int]) -> int:
    """Bytes to the GPU's next slice."""
    have = gpu.memory_bytes + lent[gpu.uuid]
    return gpu.slice_bytes - have % gpu.slice_bytes
