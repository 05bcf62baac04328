# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node are joined: one link level and one NVLink count for every pair.

Built from what NVML answers pair by pair. Drivers answer with errors and contradictions, so `Topology.build`
repairs towards "far apart" and keeps a warning per repair in `degraded`; a node must never be lost to a bad
cable. Costs, trees and scores are decisions and live in `gigaslice.core.placement`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from gigaslice.core.errors import TopologyError


class LinkLevel(IntEnum):
    """Common ancestor of two GPUs on PCIe, with the values of nvmlGpuTopologyLevel_t: larger is farther.

    SYSTEM is also what old drivers print as SOC. The Gaia Scheduler paper (III-B) prints PXB as farther than
    PHB; NVML orders them as here.
    """

    INTERNAL = 0
    SINGLE = 10
    MULTIPLE = 20
    HOSTBRIDGE = 30
    NODE = 40
    SYSTEM = 50

    @property
    def word(self) -> str:
        """The abbreviation `nvidia-smi topo -m` prints."""
        return _WORDS[self]

    @classmethod
    def from_word(cls, word: str) -> "LinkLevel":
        """Return the level an abbreviation stands for, SOC included; TopologyError for any other word."""
        level = _LEVELS.get(word)
        if level is None:
            raise TopologyError(f"{word!r} is no link level; use one of {', '.join(_LEVELS)}")
        return level


_WORDS = {
    LinkLevel.INTERNAL: "PSB",
    LinkLevel.SINGLE: "PIX",
    LinkLevel.MULTIPLE: "PXB",
    LinkLevel.HOSTBRIDGE: "PHB",
    LinkLevel.NODE: "NODE",
    LinkLevel.SYSTEM: "SYS",
}
_LEVELS = {word: level for level, word in _WORDS.items()} | {"SOC": LinkLevel.SYSTEM}

Levels = Sequence[Sequence[int | None]]
"""A raw matrix, row by row; None where the driver gave no answer. The diagonal is ignored."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A checked pair matrix: symmetric, one row per GPU, in the order of `NodeState.gpus`.

    levels: LinkLevel of each pair (INTERNAL on the diagonal). nvlinks: active NVLinks joining each pair.
    degraded: one sentence per answer that had to be replaced, for the log and the node's event.
    """

    levels: tuple[tuple[LinkLevel, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    degraded: tuple[str, ...] = ()

    @classmethod
    def build(cls, levels: Levels, nvlinks: Levels | None = None) -> "Topology":
        """Check and repair raw matrices.

        A missing or asymmetric level becomes the farthest level that was answered for the pair (SYSTEM if
        none); a missing or asymmetric link count becomes 0. TopologyError for a matrix that is not square, a
        level NVML does not have or a negative count, which no driver answers.
        """
        size = len(levels)
        links = [[0] * size for _ in range(size)] if nvlinks is None else nvlinks
        _check_square("link level", levels, size)
        _check_square("NVLink", links, size)
        level_rows = [[LinkLevel.INTERNAL] * size for _ in range(size)]
        link_rows = [[0] * size for _ in range(size)]
        degraded: list[str] = []
        for i in range(size):
            for j in range(i + 1, size):
                level, level_warning = _merge_level(i, j, levels[i][j], levels[j][i])
                count, count_warning = _merge_links(i, j, links[i][j], links[j][i])
                level_rows[i][j] = level_rows[j][i] = level
                link_rows[i][j] = link_rows[j][i] = count
                degraded += [warning for warning in (level_warning, count_warning) if warning]
        return cls(
            levels=tuple(tuple(row) for row in level_rows),
            nvlinks=tuple(tuple(row) for row in link_rows),
            degraded=tuple(degraded),
        )

    @classmethod
    def flat(cls, size: int, level: LinkLevel = LinkLevel.SYSTEM) -> "Topology":
        """Return `size` GPUs that are all equally far apart: what to assume when nothing is known."""
        return cls.build([[level] * size for _ in range(size)])

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.levels)

    def reordered(self, order: Sequence[int]) -> "Topology":
        """Return the topology whose row r is this one's row `order[r]`; warnings keep the old numbers."""
        return Topology(
            levels=tuple(tuple(self.levels[i][j] for j in order) for i in order),
            nvlinks=tuple(tuple(self.nvlinks[i][j] for j in order) for i in order),
            degraded=self.degraded,
        )


def _check_square(name: str, rows: Levels, size: int) -> None:
    if len(rows) != size:
        raise TopologyError(f"{name} matrix has {len(rows)} rows for {size} GPUs; give one row per GPU")
    for number, row in enumerate(rows):
        if len(row) != size:
            raise TopologyError(
                f"{name} matrix: GPU{number} has {len(row)} of {size} entries; give one per GPU"
            )


def _merge_level(i: int, j: int, forward: int | None, backward: int | None) -> tuple[LinkLevel, str | None]:
    answers = [_as_level(i, j, value) for value in (forward, backward) if value is not None]
    level = max(answers, default=LinkLevel.SYSTEM)
    if len(answers) == 2 and answers[0] == answers[1]:
        return level, None
    cause = "the two directions differ" if len(answers) == 2 else "the driver did not answer"
    return level, f"GPU{i}-GPU{j}: link level taken as {level.word}: {cause}"


def _as_level(i: int, j: int, value: int) -> LinkLevel:
    try:
        return LinkLevel(value)
    except ValueError:
        numbers = ", ".join(str(int(level)) for level in LinkLevel)
        raise TopologyError(
            f"GPU{i}-GPU{j}: link level {value} does not exist; levels are {numbers}"
        ) from None


def _merge_links(i: int, j: int, forward: int | None, backward: int | None) -> tuple[int, str | None]:
    for count in (forward, backward):
        if count is not None and count < 0:
            raise TopologyError(f"GPU{i}-GPU{j}: {count} NVLinks; a count is 0 or more")
    if forward is None or backward is None:
        return 0, f"GPU{i}-GPU{j}: NVLinks ignored: the driver did not answer"
    if forward != backward:
        return 0, f"GPU{i}-GPU{j}: NVLinks ignored: {forward} links one way and {backward} the other"
    return forward, None
