# SPDX-License-Identifier: Apache-2.0
"""What quotas promise of each GPU, all together: a sum, which may be more than the GPU has. Pure.

A promise counts with what may lie in the GPU's own memory. A quota that nobody uses promises nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gigaslice.core.units import format_bytes
from vcuda.limits import GpuLimit

__all__ = ["GpuPromises", "overcommitted", "promised_of", "summed"]

_NAMES = 3  # quotas that a warning names


@dataclass(frozen=True, slots=True)
class GpuPromises:
    """One GPU: what is promised of it and to whom, largest first, and what of that is used."""

    uuid: str
    promises: tuple[tuple[int, str], ...]
    used_bytes: int

    @property
    def promised_bytes(self) -> int:
        """The sum."""
        return sum(size for size, _ in self.promises)


def promised_of(gpu: GpuLimit) -> int:
    """Bytes of the GPU's own memory that a quota may take."""
    return gpu.physical_bytes or gpu.memory_bytes


def summed(quotas: Iterable[tuple[str, Sequence[GpuLimit], Mapping[str, int]]]) -> list[GpuPromises]:
    """Adds up quotas in use: a name, the limits and the used bytes of each. By UUID."""
    promises: dict[str, list[tuple[int, str]]] = {}
    used: dict[str, int] = {}
    for name, gpus, used_bytes in quotas:
        for gpu in gpus:
            promises.setdefault(gpu.uuid, []).append((promised_of(gpu), name))
            used[gpu.uuid] = used.get(gpu.uuid, 0) + used_bytes.get(gpu.uuid, 0)
    return [
        GpuPromises(uuid, tuple(sorted(promises[uuid], reverse=True)), used[uuid])
        for uuid in sorted(promises)
    ]


def overcommitted(gpu: str, memory_bytes: int, own_bytes: int, others: GpuPromises | None) -> str:
    """A sentence where OWN_BYTES and what OTHERS were promised are more than a GPU has; else nothing."""
    if others is None or own_bytes + others.promised_bytes <= memory_bytes:
        return ""
    names = [f"{format_bytes(size)} to {name}" for size, name in others.promises[:_NAMES]]
    rest = len(others.promises) - len(names)
    more = f" and {rest} more" if rest else ""
    total = format_bytes(own_bytes + others.promised_bytes)
    return (
        f"{gpu} has {format_bytes(memory_bytes)}, and {total} of it are promised now ({', '.join(names)}{more}): "
        "programs may find it full although their quotas have room"
    )
