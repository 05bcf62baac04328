# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile's instructions, as BuildKit's parser reads them; nothing is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

parser = pytest.importorskip("dockerfile", reason="the parser has wheels for x86-64 alone")

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its flags, such as --from=build, and its words; those of RUN are one text.

    stage counts from 0; -1 is before the first FROM.
    """

    stage: int
    name: str
    flags: tuple[str, ...]
    words: tuple[str, ...]


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile with the text TEXT."""
    stage, read = -1, []
    for command in parser.parse_string(text):
        stage += command.cmd == "FROM"
        read.append(Instruction(stage, command.cmd, command.flags, command.value))
    return read


INSTRUCTIONS = instructions((ROOT / "Dockerfile").read_text())
COPIED = [
    source
    for instruction in INSTRUCTIONS
    if instruction.name == "COPY" and not instruction.flags
    for source in instruction.words[:-1]
]
