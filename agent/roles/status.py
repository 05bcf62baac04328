"""Who holds what on this node and how its cards are, read from the state directory alone, with an agent or without.

Changes nothing and takes no lock. Which processes live is asked of the kernel, so PIDs are those of the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agent import units
from agent.errors import StateError
from agent.health.files import Card, read_report
from agent.state.ledgers import Reading
from agent.state.records import Grant, Hold
from agent.state.store import read_only

__all__ = ["Row", "as_json", "as_table", "cards", "cards_table", "collect"]


@dataclass(frozen=True, slots=True)
class Row:
    """One container on one card; sizes are bytes. state: "running", "idle", "waiting", "ended",
    "unreadable", or "whole": the card is given out as such (slices: 1), and nobody counts what runs on it.
    """

    allocation: str
    namespace: str | None
    pod: str | None
    container: str | None
    state: str
    gpu: str
    slices: int
    limit: int
    used: int
    unhooked: int
    peak: int
    pids: tuple[int, ...]


def collect(state_dir: Path) -> tuple[Row, ...]:
    """One row per container and card, in order of allocation. Raises StorageError or CheckpointError."""
    slices: dict[str, int] = {}
    with contextlib.suppress(StateError):  # whoever asks for the cards is told
        slices = {card.uuid: card.slices for card in cards(state_dir)}
    book, readings = read_only(state_dir, slices)
    return tuple(_row(grant, hold, readings[grant.id]) for grant in book.grants for hold in grant.holds)


def cards(state_dir: Path) -> tuple[Card, ...]:
    """The cards as the agent has last seen them; none before it did. Raises StateError."""
    report = read_report(state_dir)
    return report.cards if report else ()


def as_json(rows: tuple[Row, ...], gpus: tuple[Card, ...] = ()) -> dict[str, object]:
    """Rows and cards for programs."""
    return {
        "version": 1,
        "allocations": [asdict(row) for row in rows],
        "gpus": [asdict(card) for card in gpus],
    }


def cards_table(gpus: tuple[Card, ...]) -> str:
    """The cards for people."""
    lines = [("CARD", "GPU", "SLICES", "STATE", "WHY")]
    for card in gpus:
        state = "healthy" if card.healthy else "cordoned" if card.cordoned else "unhealthy"
        lines.append((str(card.index), card.uuid, str(card.slices), state, card.detail or "-"))
    return _aligned(lines)


def as_table(rows: tuple[Row, ...]) -> str:
    """The rows for people."""
    if not rows:
        return "no container holds a GPU slice"
    head = ("CONTAINER", "STATE", "GPU", "LIMIT", "USED", "PEAK", "PIDS")
    cells = [head, *(_cells(row) for row in rows)]
    return _aligned(cells)


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    name = f"{row.namespace}/{row.pod}/{row.container}" if row.pod else f"allocation {row.allocation[:8]}"
    pids = ",".join(str(pid) for pid in row.pids) or "-"
    sizes = (units.format_bytes(size) for size in (row.limit, row.used + row.unhooked, row.peak))
    return (name, row.state, row.gpu, *sizes, pids)


def _row(grant: Grant, hold: Hold, reading: Reading) -> Row:
    owner = grant.ref
    pids = tuple(process.pid for process in reading.processes if process.pid and process.used.get(hold.gpu))
    return Row(
        allocation=grant.id,
        namespace=owner.namespace if owner else None,
        pod=owner.pod if owner else None,
        container=owner.container if owner else None,
        state=_state(grant, reading),
        gpu=hold.gpu,
        slices=len(hold.tokens),
        limit=reading.limits.get(hold.gpu, grant.quota()[hold.gpu]),
        used=reading.used.get(hold.gpu, 0),
        unhooked=reading.unhooked.get(hold.gpu, 0),  # of processes without the library too
        peak=reading.peak.get(hold.gpu, 0),
        pids=pids or reading.pids,
    )


def _state(grant: Grant, reading: Reading) -> str:
    if reading.problem:
        return "unreadable"
    if grant.gone:
        return "ended"
    if grant.waiting:
        return "waiting"
    if grant.whole:
        return "whole"
    return "running" if reading.alive else "idle"
