# SPDX-License-Identifier: Apache-2.0
"""Undeclared bytes: memory that no allocation call declares, such as contexts, module code, static arrays, graphics.

NVML shows how many bytes each process holds of a GPU, the ledger what the process has declared or measured on itself.
The difference counts for the container too, and the agent publishes it in the limits page. Pure: numbers in, numbers
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vcuda import ProcessUsage

__all__ = ["undeclared_bytes"]


def undeclared_bytes(
    before: Iterable[ProcessUsage],
    after: Iterable[ProcessUsage],
    measured: Mapping[str, Mapping[int, int]],
    gpus: Iterable[str],
) -> dict[str, int]:
    """Returns the bytes beyond the ledger for each of GPUS that was measured.

    BEFORE and AFTER are the ledger's processes before and after the measurement; the larger number counts. Memory that
    a process frees meanwhile was still measured but is no longer declared, and would count as undeclared until the next
    round. No process counts less than zero: one that has declared more than NVML shows (memory reserved but not backed
    yet) must not hide what another one holds undeclared.
    """
    earlier = {process.pid: process.used for process in before}
    living = [process for process in after if process.pid > 0]

    def declared(process: ProcessUsage, gpu: str) -> int:
        return max(process.used.get(gpu, 0), earlier.get(process.pid, {}).get(gpu, 0))

    return {
        gpu: sum(max(0, measured[gpu].get(process.pid, 0) - declared(process, gpu)) for process in living)
        for gpu in gpus
        if gpu in measured
    }
