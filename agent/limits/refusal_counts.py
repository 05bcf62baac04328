# SPDX-License-Identifier: Apache-2.0
"""By how much numbers in the ledgers have risen since they were last looked at.

What was counted before this agent was started is not counted a second time. A ledger that cannot be read for a while
goes on where it was, and a number that is no longer there, as that of a process that has ended, begins at 0 when it
comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from agent.ledgers.usage import Reading
from gigaslice.core.allocation.table import Allocation, AllocationTable

__all__ = ["RefusalCounts"]

K = TypeVar("K", bound=Hashable)


class RefusalCounts(Generic[K]):
    """The numbers of all ledgers.

    Args:
        table: The allocation table of now.
        readings: The ledgers of the last measuring round, by allocation.
        numbers: The numbers of a ledger, by what they are of.
    """

    def __init__(
        self,
        table: Callable[[], AllocationTable],
        readings: Callable[[], Mapping[str, Reading]],
        numbers: Callable[[Reading], Mapping[K, int]],
    ) -> None:
        self._table = table
        self._readings = readings
        self._numbers = numbers
        self._last: dict[str, Mapping[K, int]] = {}
        self._earlier = {allocation.id for allocation in table().allocations}

    def rises(self) -> Iterator[tuple[Allocation, Reading, dict[K, int]]]:
        """Each allocation whose ledger can be read, and by how much its numbers have risen since the last call.

        Those that have not risen are left out. To be read to its end.
        """
        readings, allocations = self._readings(), self._table().allocations
        for allocation in allocations:
            reading = readings.get(allocation.id)
            if reading is None or reading.problem is not None:
                continue
            numbers = self._numbers(reading)
            before = numbers if allocation.id in self._earlier else self._last.get(allocation.id, {})
            self._earlier.discard(allocation.id)
            self._last[allocation.id] = numbers
            risen = {key: number - before.get(key, 0) for key, number in numbers.items()}
            yield allocation, reading, {key: more for key, more in risen.items() if more > 0}
        for gone in self._last.keys() - {allocation.id for allocation in allocations}:
            del self._last[gone]
