# SPDX-License-Identifier: Apache-2.0
"""The program clients/work.c, which makes every call that may have to wait, and the list of these calls."""

from __future__ import annotations

import re
import select
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.native.running import CLIENTS, SUCCESS

LIST = Path(__file__).parent / "clients" / "work.def"
NOT_SUPPORTED = 801
UNSUPPORTED = ("NO_ENGINE", "NO_CAPTURE")
"""Kinds of calls that the simulated driver refuses, as a real one does without the hardware or the graphics context."""
WAITS_FOR_NOTHING = ("CAPTURE", "NO_CAPTURE", "END", "QUERY")


@dataclass(frozen=True)
class Work:
    """A line of work.def. streamed: it goes into a stream that the caller names."""

    name: str
    kind: str
    streamed: bool

    @property
    def code(self) -> int:
        """What the driver answers."""
        return NOT_SUPPORTED if self.kind in UNSUPPORTED else SUCCESS


def listed() -> list[Work]:
    """The lines of work.def."""
    text = LIST.read_text(encoding="utf-8")
    lines = re.findall(r"^WORK\((\w+), (\w+), (.*)\)$", text, re.MULTILINE)
    return [
        Work(name, kind, re.search(r"\bstream\b", arguments) is not None) for name, kind, arguments in lines
    ]


ALL = listed()
WAITING = [work for work in ALL if work.kind not in WAITS_FOR_NOTHING]
"""What waits for a time slice."""


class Worker:
    """The running program."""

    def __init__(self, env: dict[str, str], *, linked: bool = False) -> None:
        """LINKED: it calls the functions that the loader has found, and looks none up."""
        self.process = subprocess.Popen(
            [str(CLIENTS / ("work-linked" if linked else "work"))],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def has_answered(self, seconds: float = 0.0) -> bool:
        """Whether it does within so many seconds."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program ended"
        return line.rstrip("\n")

    def do(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def started(self, kernel: str) -> Worker:
        assert self.do(f"start {kernel}") == "0"
        return self

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
