# SPDX-License-Identifier: Apache-2.0
"""Where a dataset of a volume is on its way into the cache: kept by its task, and read by those who show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gigaslice.core.units import format_bytes
from gigaslice.roles.dataset_node.fetching.progress import Progress
from gigaslice.roles.dataset_node.fetching.single_flight import Flight
from gigaslice.roles.dataset_node.store import DatasetMetadata

__all__ = ["DatasetStatus", "Stage"]


class Stage(Enum):
    """The steps of the way, in their order. The value is what people read; nothing is decided by it."""

    WAITING = "waiting"
    LISTING = "listing its source"
    PLANNING = "planning its image"
    FETCHING = "fetching"
    MOUNTING = "mounting its storage"
    """In local mode, in place of the three before."""
    READY = "ready"

    @property
    def reports_no_progress(self) -> bool:
        """Whether it may take long without a sign of how far it is."""
        return self in (Stage.LISTING, Stage.PLANNING, Stage.MOUNTING)


@dataclass(slots=True)
class DatasetStatus:
    """One dataset of a volume. metadata: of the version that it gets, once that has been listed."""

    name: str
    stage: Stage = Stage.WAITING
    metadata: DatasetMetadata | None = None
    flight: Flight[DatasetMetadata] | None = field(default=None, repr=False)

    @property
    def progress(self) -> Progress | None:
        """Of the fetch; None where nothing is fetched for it."""
        return self.flight.progress if self.flight is not None else None

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        if self.stage is Stage.READY:
            return 1.0
        progress = self.progress
        return progress.fraction if progress is not None else 0.0

    def text(self) -> str:
        """One clause for people."""
        if self.stage is not Stage.FETCHING:
            return f"dataset {self.name}: {self.stage.value}"
        progress = self.progress
        if progress is None:
            return f"dataset {self.name}: waiting for a place among the fetches of this node"
        eta = progress.eta
        left = f", {_duration(eta)} left" if eta is not None and progress.rate > 0 else ""
        return (
            f"dataset {self.name}: fetching {int(progress.fraction * 100)} % of "
            f"{format_bytes(progress.total_bytes)} ({format_bytes(int(progress.rate))}/s{left})"
        )


def _duration(seconds: float) -> str:
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
