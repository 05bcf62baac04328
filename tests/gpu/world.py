# SPDX-License-Identifier: Apache-2.0
"""What a case function works with: programs with and without the library, and a place for what it finds.

A case measures (`Found.note`) and judges (`Found.check`). Both are kept when it fails half-way, and a check that was
declared and never judged is a failure: a case that measured nothing never passes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.running import Done, Program

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
MIB = 1 << 20
BLOCK = 2 * MIB  # the driver hands out memory in multiples of this
OUT_OF_MEMORY = 2


class CaseError(Exception):
    """Why a case did not pass; the verdict beside the sentence."""

    def __init__(self, sentence: str, verdict: str = "fail") -> None:
        super().__init__(sentence)
        self.verdict = verdict


@dataclass
class Found:
    """What a case has found so far."""

    checks: dict[str, tuple[bool, str]] = field(default_factory=dict)
    numbers: dict[str, object] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def note(self, numbers: dict[str, object], prefix: str = "") -> None:
        """Keeps measured numbers."""
        self.numbers |= {prefix + name: value for name, value in numbers.items() if name != "done"}

    def check(self, name: str, holds: bool, saw: object) -> None:
        """Judges one thing; judged twice, it must hold both times."""
        before = self.checks.get(name, (True, ""))
        text = " ".join(str(saw).split())[:400]
        self.checks[name] = (before[0] and bool(holds), f"{before[1]}; {text}" if before[1] else text)


@dataclass(frozen=True)
class Options:
    """What is the same for all cases of a run. limit: bytes of a quota; short: a rehearsal; pack: what was
    brought along.
    """

    library: Path
    scratch: Path
    limit: int
    pack: Path
    short: bool = False
    uuid: str = ""  # of the GPU, for programs that ask NVML alone


@dataclass
class World:
    """One case's own view of the machine: its deadline and its quotas' directories."""

    options: Options
    case: str
    deadline: float
    found: Found
    log: Callable[[str, str], None]

    @property
    def limit(self) -> int:
        """Bytes of a quota."""
        return self.options.limit

    def left(self) -> float:
        """Seconds until the case must end."""
        return self.deadline - time.monotonic()

    def seconds(self, usual: float, short: float) -> float:
        """How long to measure something."""
        return short if self.options.short else usual

    def count(self, usual: int, short: int) -> int:
        """How often to do something."""
        return short if self.options.short else usual

    def plain(self, **extra: str) -> dict[str, str]:
        """Environment of a program without the library."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VCUDA_")}
        if self.options.uuid:
            kept["GPU_UUID"] = self.options.uuid
        return kept | extra

    def limited(self, quota: str = "", **extra: str) -> dict[str, str]:
        """Environment of a program under a quota; programs that name the same one share it."""
        preload = " ".join(filter(None, (str(self.options.library), os.environ.get("LD_PRELOAD", ""))))
        own = {
            "LD_PRELOAD": preload,
            "VCUDA_DIR": str(self.options.scratch / f"{self.case}-{quota}"),
            "VCUDA_MEMORY_LIMIT": str(self.limit),
            "VCUDA_LOG": "info",
        }
        return self.plain() | own | extra

    def brought(self, name: str) -> Path:
        """A file of the folder that was brought along; the case says so when it is not there."""
        path = self.options.pack / name
        if not path.exists():
            raise CaseError(f"{path} was not brought along", "missing")
        return path

    def command(self, program: str, *words: object) -> list[str]:
        """The command line of one of programs/, or of something else by its path."""
        argv = [str(word) for word in words]
        return (
            [sys.executable, str(PROGRAMS / program), *argv] if program.endswith(".py") else [program, *argv]
        )

    def start(self, env: dict[str, str], program: str, *words: object) -> Program:
        """Starts a program; use it as a context manager."""
        return Program(self.command(program, *words), env, self.options.scratch)

    def finish(self, program: Program, seconds: float | None = None) -> Done:
        """Waits for a program at most that long, and never beyond the case's deadline."""
        done = program.finish(min(self.left(), self.left() if seconds is None else seconds))
        self.log(f"{self.case}: {program.name}", done.err)
        self.found.said.append(done.err[-2000:])
        return done

    def run(
        self,
        env: dict[str, str],
        program: str,
        *words: object,
        prefix: str = "",
        seconds: float | None = None,
    ) -> dict:
        """The numbers that a program prints. What it printed before it failed is noted all the same."""
        with self.start(env, program, *words) as running:
            done = self.finish(running, seconds)
        numbers = done.numbers()
        self.found.note(numbers, prefix)
        judge(program, done, numbers)
        return numbers


def judge(program: str, done: Done, numbers: dict[str, object]) -> None:
    """Raises unless the program came to its end and said so."""
    if done.timed_out:
        raise CaseError(f"{program} was not done after {done.seconds:.0f} s: {done.last_words()}", "timeout")
    if "ModuleNotFoundError" in done.err and done.code != 0:
        lines = [line for line in done.err.splitlines() if line.startswith("ModuleNotFoundError")]
        raise CaseError(f"{program}: {lines[-1] if lines else done.last_words()}", "missing")
    if "missing" in numbers:
        raise CaseError(f"{program}: {numbers['missing']}", "missing")
    if done.code < 0:
        name = signal.Signals(-done.code).name if -done.code in set(signal.Signals) else str(-done.code)
        raise CaseError(f"{program} was killed by {name}: {done.last_words()}", "killed")
    if done.code != 0:
        raise CaseError(f"{program} ended with {done.code}: {done.last_words()}")
    if numbers.get("done") is not True:
        raise CaseError(f"{program} printed no result: {done.out.strip()[-200:]!r}", "garbage")


def number(numbers: dict[str, object], key: str) -> float:
    """A number of a program's answer."""
    value = numbers.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CaseError(f"{key} is {value!r}, which is no number", "garbage")
    return value


def whole(numbers: dict[str, object], key: str) -> int:
    """An integer of a program's answer."""
    return int(number(numbers, key))


def gib(value: float) -> str:
    """Bytes for people."""
    return f"{value / 2**30:.3f} GiB"


@dataclass(frozen=True)
class Case:
    """One case. seconds: what it may take at most; checks: what it must judge to pass."""

    id: str
    group: str
    seconds: int
    checks: tuple[str, ...]
    body: Callable[[World, Found], str]

    @property
    def title(self) -> str:
        """What it shows."""
        return (self.body.__doc__ or "").strip().splitlines()[0]


REGISTRY: dict[str, Case] = {}


def case(
    group: str, seconds: int, *checks: str
) -> Callable[[Callable[[World, Found], str]], Callable[[World, Found], str]]:
    """Registers a case function, which returns its evidence in one line."""

    def register(body: Callable[[World, Found], str]) -> Callable[[World, Found], str]:
        REGISTRY[body.__name__] = Case(body.__name__, group, seconds, checks, body)
        return body

    return register


def missing_checks(one: Case, found: Found) -> Iterable[str]:
    """What the case declared and did not judge."""
    return [name for name in one.checks if name not in found.checks]
