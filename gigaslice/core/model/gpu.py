# SPDX-License-Identifier: Apache-2.0
"""One GPU, and the size of its slices.

A value: what a scan of the node found, fixed until the next scan. Which container holds how many slices is
`gigaslice.core.model.node`; how GPUs are linked is `gigaslice.core.model.topology`. A GPU is named by UUID wherever a
name crosses a module or the network, because indices change with reboots and with `CUDA_VISIBLE_DEVICES`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

CORES_PER_GPU = 100
"""Compute share of one GPU, in per cent."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU.

    index: NVML index, which is PCI bus order. memory_bytes: as the driver reports it, which is less than the
    label. slices, slice_bytes: how many equal parts it is shared out in, and the size of one. host_bytes:
    host memory lent to the GPU by unified memory, included in `slices`. numa_node: None where the machine
    has none or does not tell. healthy: False from an Xid or ECC event, or a cordon, until it is over.
    """

    uuid: str
    index: int
    model: str
    memory_bytes: int
    slices: int
    slice_bytes: int
    host_bytes: int = 0
    numa_node: int | None = None
    pci_bus_id: str = ""
    healthy: bool = True

    @property
    def own_slices(self) -> int:
        """How many of its slices fit its own memory."""
        return min(self.slices, self.memory_bytes // self.slice_bytes) if self.host_bytes else self.slices

    def bytes_of(self, slices: int) -> int:
        """Return the bytes in `slices` slices of this GPU."""
        return slices * self.slice_bytes


def count_slices(memory_bytes: int, slice_bytes: int, host_bytes: int = 0) -> int:
    """Return how many slices a GPU has: the whole slices in its own memory and the host memory lent to it.

    The rule of the Inspur scheduler paper (16 GB + 8 GB of host memory = three slices of 8 GB). With coarse
    slices a real GPU reports less than its label and loses a slice; then set the count and divide instead.
    """
    return (memory_bytes + host_bytes) // slice_bytes


def matches_model(model: str, pattern: str) -> bool:
    """Tell whether `pattern` names `model`: its words, in order and side by side, in any case.

    Words rather than letters, so "A10" does not select an "NVIDIA A100-SXM4-80GB".
    """
    words, named = _words(model), _words(pattern)
    starts = range(len(words) - len(named) + 1)
    return bool(named) and any(words[start : start + len(named)] == named for start in starts)


@lru_cache(maxsize=1024)  # every word of a pod is compared with every model
def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))
