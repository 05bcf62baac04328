"""Memory that no allocation call declares: contexts, module code, static arrays, graphics.

NVML says how many bytes each process holds of a GPU, the ledger what the process has declared. The difference
belongs to the container all the same and is published in its limits page. Pure: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

__all__ = ["Declared", "undeclared_bytes"]


class Declared(Protocol):
    """A living process of a ledger: its PID where NVML counts PIDs, and bytes by GPU UUID."""

    @property
    def pid(self) -> int:
        """PID in the node's namespace; 0 when nobody holds the slot."""
        ...

    @property
    def used(self) -> Mapping[str, int]:
        """Bytes it has declared."""
        ...


def undeclared_bytes(
    before: Iterable[Declared],
    after: Iterable[Declared],
    measured: Mapping[str, Mapping[int, int]],
    gpus: Iterable[str],
) -> dict[str, int]:
    """Bytes beyond what is declared, for each of GPUS that was measured.

    BEFORE and AFTER are the ledger's processes on both sides of the measurement; the larger declaration counts. Memory
    that a process frees meanwhile was still measured but is no longer declared, and would be held against its container
    until the next round.
    Process by process, never less than zero: a process that has declared more than NVML sees (memory reserved but not
    backed yet) must not hide what another one holds undeclared.
    """
    earlier = {process.pid: process.used for process in before}
    living = [process for process in after if process.pid > 0]

    def declared(process: Declared, gpu: str) -> int:
        return max(process.used.get(gpu, 0), earlier.get(process.pid, {}).get(gpu, 0))

    return {
        gpu: sum(max(0, measured[gpu].get(process.pid, 0) - declared(process, gpu)) for process in living)
        for gpu in gpus
        if gpu in measured
    }
