# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: one JSON object a line, safe on the disk before the next case begins.

A disk that is full or not writable loses nothing: what cannot be written goes to standard output whole, and
`python -m tests.gpu.report` reads a saved output as well as a file of lines. Knows no case and no GPU.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

LINES, LOG = "lines.jsonl", "library.log"
# pass: all that was declared was measured, and holds. fail: something does not, or nothing was measured.
# missing: the machine lacks what the case needs. not run: the budget was over, or the run was ended.
VERDICTS = ("pass", "fail", "missing", "timeout", "killed", "garbage", "not run")
LOG_BYTES, CASE_LOG_BYTES = 8 << 20, 64 << 10


@dataclass(frozen=True)
class Line:
    """The result of one case. checks: name -> (holds, what was seen). numbers: what was measured, as it came."""

    case: str
    group: str
    verdict: str
    evidence: str
    seconds: float = 0.0
    checks: dict[str, tuple[bool, str]] = field(default_factory=dict)
    numbers: dict[str, object] = field(default_factory=dict)
    said: str = ""  # the end of what library and program wrote to standard error

    def text(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), default=str, separators=(",", ":"))


def parse(text: str) -> Line | None:
    """The line that TEXT is, None for anything else; a line that was cut off in the middle is something else."""
    try:
        value = json.loads(text)
        known = {name: value[name] for name in Line.__dataclass_fields__ if name in value}
        known["checks"] = {name: (bool(holds), str(saw)) for name, (holds, saw) in known["checks"].items()}
        line = Line(**known)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return line if line.verdict in VERDICTS and isinstance(line.case, str) else None


def read(path: Path) -> list[Line]:
    """Lines of a folder, a file of lines, or a saved standard output; the last one of each case counts."""
    path = path / LINES if path.is_dir() else path
    found = [parse(text) for text in path.read_text(errors="replace").splitlines() if text.startswith("{")]
    return list({line.case: line for line in found if line is not None}.values())


class Output:
    """The folder of one run. Its troubles are told at the end, and never stop a case."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.troubles: list[str] = []
        self.lines: list[Line] = []
        self._logged = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._trouble(f"{directory} cannot be made: {error.strerror}")
        if self._ends_within_a_line():
            self._append(LINES, "\n")

    def _ends_within_a_line(self) -> bool:
        """Whether an earlier run into this folder was killed while it wrote."""
        path = self.directory / LINES
        try:
            return path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        except OSError:
            return False

    def _trouble(self, what: str) -> None:
        if what not in self.troubles:
            self.troubles.append(what)
            print(f"test-gpu: {what}", file=sys.stderr, flush=True)

    def _append(self, name: str, text: str) -> bool:
        """Whether it is on the disk, whole."""
        path = self.directory / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                data = text.encode(errors="replace")
                written = os.write(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._trouble(f"{path} cannot be written: {error.strerror}; the lines are in the output instead")
            return False
        if written != len(data):
            self._trouble(f"{path} takes no more; the lines are in the output instead")
        return written == len(data)

    def line(self, line: Line) -> None:
        """Keeps it, on the disk or in the output."""
        self.lines.append(line)
        if not self._append(LINES, line.text() + "\n"):
            self._append(LINES, "\n")  # what was cut off must not swallow the next one
            print(line.text(), flush=True)

    def log(self, title: str, text: str) -> None:
        """What a program and the library in it wrote to standard error; only so much of it is kept."""
        text = text[-CASE_LOG_BYTES:]
        if text.strip() and self._logged + len(text) < LOG_BYTES:
            self._logged += len(text)
            self._append(LOG, f"--- {title}\n{text.rstrip()}\n")

    def page(self, name: str, text: str) -> None:
        """A whole file, as far as that is possible."""
        try:
            (self.directory / name).write_text(text)
        except OSError as error:
            self._trouble(f"{self.directory / name} cannot be written: {error.strerror}")
