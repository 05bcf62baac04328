# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile's instructions, read instead of carried out."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction with its words; stage counts from 0, -1 is before the first FROM."""

    stage: int
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def instructions() -> list[Line]:
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()))
    found: list[Line] = []
    stage = -1
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Line(stage, name, rest))
    return found


LINES = instructions()
COPIED = [
    source
    for line in LINES
    if line.name == "COPY" and not line.text.startswith("--from=")
    for source in line.words[:-1]
]
