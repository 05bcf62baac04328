# SPDX-License-Identifier: Apache-2.0
"""What a check of ``vcuda doctor`` answers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from gigaslice.runtime.terminal import painted, terminal

__all__ = ["Finding", "Level", "coloured"]

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. remedy: empty when level is "ok"."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


_STYLES = {"ok": "good", "warn": "doubtful", "fail": "bad"}


def coloured(finding: Finding, line: str) -> str:
    """LINE, which begins with the level of FINDING; that has a colour where standard output has colours."""
    if not terminal(sys.stdout).colour:
        return line
    return painted(finding.level, _STYLES[finding.level]) + line[len(finding.level) :]
