# SPDX-License-Identifier: Apache-2.0
"""The time slices of a container's first GPU, given and withheld as an agent does it."""

from __future__ import annotations

from tests.native.running import Place
from vcuda import (
    TimeSliceUsage,
    end_time_slices,
    give_time_slice,
    read_limits,
    read_time_slices,
    shorten_queues,
    time_slice_clock,
    withhold_time_slice,
)

LONG, SOON = 50_000, 400
"""Milliseconds."""


class Page:
    """The limits page and the ledger of PLACE; all times in milliseconds from now."""

    def __init__(self, place: Place) -> None:
        self.limits, self.ledger = place.quota / "limits", place.quota / "ledger"
        self.uuids = [gpu.uuid for gpu in read_limits(self.limits).gpus]

    def hold(self, ms: int) -> None:
        withhold_time_slice(self.limits, self.uuids[0], time_slice_clock() + ms)

    def give(self, ms: int) -> None:
        give_time_slice(self.limits, self.uuids[0], time_slice_clock() + ms)

    def shorten(self, ms: int) -> None:
        shorten_queues(self.limits, self.uuids[0], time_slice_clock() + ms)

    def free(self) -> None:
        end_time_slices(self.limits, self.uuids[0])

    def usage(self) -> TimeSliceUsage:
        return read_time_slices(self.ledger, self.uuids)[self.uuids[0]]
