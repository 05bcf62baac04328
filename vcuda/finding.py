"""What a check of ``vcuda doctor`` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Level"]

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. remedy: empty when level is "ok"."""

    level: Level
    subject: str
    text: str
    remedy: str = ""
