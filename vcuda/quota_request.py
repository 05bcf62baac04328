# SPDX-License-Identifier: Apache-2.0
"""The quota that the options of ``vcuda run`` request on each GPU: memory, split between GPU and host, and compute.

Of --memory, --physical and --host any two give the third. This module checks that the options agree and that the host
has the memory now. It reads /proc/meminfo and nothing else. The library checks the host's memory again before it uses
some, because other programs use it meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gigaslice.core.units import exact_size, format_bytes
from vcuda import errors, sizes

__all__ = [
    "ComputeRequest",
    "MemoryRequest",
    "check_host_memory",
    "memory_available",
    "parse_compute",
    "parse_memory",
]

_WHOLE = 100
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """A memory quota on one GPU. physical_bytes: the most of it in the GPU's own memory; 0: all of it."""

    memory_bytes: int
    physical_bytes: int = 0

    @property
    def on_gpu(self) -> int:
        """Bytes that the GPU itself must have."""
        return self.physical_bytes or self.memory_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes that may lie in host memory."""
        return self.memory_bytes - self.on_gpu


def parse_memory(memory: str | None, physical: str | None, host: str | None) -> MemoryRequest:
    """Reads the options --memory, --physical and --host.

    Raises:
        UsageError: the three contradict each other, or do not give a quota.
    """
    if physical is None and host is None:
        if memory is None:
            raise errors.UsageError("no quota was given", "", "write --memory 8GiB")
        return MemoryRequest(sizes.parse_size(memory))
    total = None if memory is None else sizes.parse_size(memory)
    own = None if physical is None else sizes.parse_size(physical)
    away = None if host is None else sizes.parse_size(host)
    if total is None:
        if own is None or away is None:
            raise errors.UsageError(
                "--physical or --host alone gives no quota", "", "give --memory too, or both of them"
            )
        return MemoryRequest(own + away, own)
    own = total - away if own is None and away is not None else own
    assert own is not None
    if away is not None and own + away != total:
        raise errors.UsageError(
            "--memory is not the sum of --physical and --host",
            f"{exact_size(own)} and {exact_size(away)} are {exact_size(own + away)}, not {exact_size(total)}",
            "leave one of the three out",
        )
    if own <= 0 or own > total:
        raise errors.UsageError(
            "the part in the GPU's own memory must be more than 0 and at most --memory",
            f"of {exact_size(total)}",
            "a program needs some of it for its context: a few hundred MiB at least",
        )
    return MemoryRequest(total, own)


@dataclass(frozen=True, slots=True)
class ComputeRequest:
    """A share of a GPU's time in percent (0: no limit), and the compute policy in the encoding of limits pages."""

    cores: int = 0
    policy: int = 0


def parse_compute(cores: str | None, *, elastic: bool = False) -> ComputeRequest:
    """Reads the options --cores and --elastic. Raises UsageError when they make no sense."""
    if cores is None:
        if elastic:
            raise errors.UsageError(
                "--elastic has no effect without --cores", "", "write --cores 30 --elastic"
            )
        return ComputeRequest()
    if not cores.isascii() or not cores.isdigit() or not 1 <= int(cores[:9]) <= _WHOLE:
        raise errors.UsageError(
            f"--cores {errors.printable(cores)} is not a percentage", "", "write a number from 1 to 100"
        )
    return ComputeRequest(int(cores), int(elastic))


def memory_available(path: Path = _MEMINFO) -> int:
    """Bytes that programs can use without swapping, as /proc/meminfo estimates. Raises SystemError_ without it."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    raise errors.SystemError_(f"{path} does not say how much memory is available", "", "mount /proc")


def check_host_memory(request: MemoryRequest, gpus: int, path: Path = _MEMINFO) -> None:
    """Raises UsageError when the host lacks the memory that REQUEST may use, GPUS times."""
    needed = request.host_bytes * gpus
    if not needed:
        return
    available = memory_available(path)
    if needed > available:
        raise errors.UsageError(
            f"the host does not have {format_bytes(needed)} of free memory",
            f"{format_bytes(available)} are available",
            "lower --host, name fewer GPUs with --gpu, or end something",
        )
