"""What ``vcuda run`` was asked of a GPU, and whether it can be: memory, split between GPU and host, and time.

Three sizes of which two say the third. Reads /proc/meminfo and nothing else; the library looks again before it takes
host memory, because others take some meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vcuda import errors, sizes

__all__ = ["Compute", "Share", "check_host", "compute", "memory_available", "split"]

_WHOLE = 100
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Share:
    """A quota on one GPU, and how much of it may be in the GPU's own memory; 0: all of it."""

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


def split(memory: str | None, physical: str | None, host: str | None) -> Share:
    """The share that the options MEMORY, PHYSICAL and HOST ask for. Raises UsageError where they contradict."""
    if physical is None and host is None:
        if memory is None:
            raise errors.UsageError("no quota was given", "", "write --memory 8GiB")
        return Share(sizes.parse_size(memory))
    total = None if memory is None else sizes.parse_size(memory)
    own = None if physical is None else sizes.parse_size(physical)
    away = None if host is None else sizes.parse_size(host)
    if total is None:
        if own is None or away is None:
            raise errors.UsageError(
                "one of --physical and --host alone says no quota", "", "give --memory too, or both of them"
            )
        return Share(own + away, own)
    own = total - away if own is None and away is not None else own
    assert own is not None
    if away is not None and own + away != total:
        raise errors.UsageError(
            "--memory is not --physical and --host together",
            f"{sizes.format_size(own)} and {sizes.format_size(away)} are {sizes.format_size(own + away)}, "
            f"not {sizes.format_size(total)}",
            "leave one of the three out",
        )
    if own <= 0 or own > total:
        raise errors.UsageError(
            "the part in the GPU's own memory must be between nothing and --memory",
            f"of {sizes.format_size(total)}",
            "a program needs some of it for its context: a few hundred MiB at least",
        )
    return Share(total, own)


@dataclass(frozen=True, slots=True)
class Compute:
    """A share of a GPU's time in percent (0: no limit), and how it is meant: a policy as limits pages have it."""

    cores: int = 0
    policy: int = 0


def compute(cores: str | None, *, elastic: bool = False) -> Compute:
    """What the options CORES and ELASTIC ask for. Raises UsageError when it makes no sense."""
    if cores is None:
        if elastic:
            raise errors.UsageError(
                "--elastic says nothing without --cores", "", "write --cores 30 --elastic"
            )
        return Compute()
    if not cores.isascii() or not cores.isdigit() or not 1 <= int(cores[:9]) <= _WHOLE:
        raise errors.UsageError(
            f"--cores {errors.printable(cores)} is not a percentage", "", "write a number from 1 to 100"
        )
    return Compute(int(cores), int(elastic))


def memory_available(path: Path = _MEMINFO) -> int:
    """Bytes that the kernel thinks can be taken without swapping. Raises SystemError_ when it does not say."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    raise errors.SystemError_(f"{path} does not say how much memory is available", "", "mount /proc")


def check_host(share: Share, gpus: int, path: Path = _MEMINFO) -> None:
    """Raises UsageError when the host has not what SHARE may take on each of GPUS GPUs."""
    needed = share.host_bytes * gpus
    if not needed:
        return
    available = memory_available(path)
    if needed > available:
        raise errors.UsageError(
            f"the host has not {sizes.about_size(needed)} of memory to give",
            f"{sizes.about_size(available)} are available",
            "lower --host, name fewer GPUs with --gpu, or end something",
        )
