# SPDX-License-Identifier: Apache-2.0
"""Programs in pods that do what they are told and answer, one line each way (client.c)."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.demo.machine import FAKEDRIVER, ROOT
from tests.fakes.kubelet import Process

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class DemoError(Exception):
    """The demo cannot go on; one line."""


@dataclass(frozen=True, slots=True)
class View:
    """What NVML shows a program of its GPU."""

    total: int
    used: int
    pids: tuple[int, ...]


def build(directory: Path) -> Path:
    """Compiles the client; it is linked with driver libraries by name only, and so runs with any."""
    target = directory / "client"
    libraries = ["-L", str(FAKEDRIVER), "-l:libcuda.so.1", "-l:libnvidia-ml.so.1"]
    command = ["gcc", "-std=c17", "-O2", "-I", str(ROOT / "build" / "include"), "-o", str(target)]
    source = str(Path(__file__).with_name("client.c"))
    result = subprocess.run([*command, source, *libraries], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise DemoError(f"the client does not compile, run `make` first: {result.stderr.strip()[-300:]}")
    return target


class Client:
    """One running client."""

    def __init__(self, process: Process, timeout_s: float = 20.0) -> None:
        self.process = process
        self.timeout_s = timeout_s
        self.lines = 0
        word, *numbers = self._next()
        if word != "ok":
            raise DemoError(
                f"a program could not start: {word} {' '.join(numbers)} {process.read('stderr').strip()}"
            )
        self.pid_inside = int(numbers[0])

    def _next(self) -> list[str]:
        deadline = time.monotonic() + self.timeout_s
        while True:
            complete = self.process.read().split("\n")[:-1]
            if len(complete) > self.lines:
                self.lines += 1
                return complete[self.lines - 1].split()
            if (
                self.process.returncode is not None
                and len(self.process.read().split("\n")[:-1]) <= self.lines
            ):
                error = self.process.read("stderr").strip()[-300:]
                raise DemoError(
                    f"a program ended with {self.process.returncode} and without an answer: {error}"
                )
            if time.monotonic() > deadline:
                raise DemoError(f"a program did not answer within {self.timeout_s:.0f} s")
            time.sleep(0.002)

    def ask(self, line: str) -> list[str]:
        """The words of its answer."""
        self.process.write(line + "\n")
        return self._next()

    def numbers(self, line: str) -> list[int]:
        """The numbers of an answer that has to be good."""
        word, *rest = self.ask(line)
        if word != "ok":
            raise DemoError(f"{line}: {word} {' '.join(rest)}")
        return [int(text) for text in rest]

    def alloc(self, count: int) -> int:
        """0, or the code of the refusal."""
        word, *rest = self.ask(f"alloc {count}")
        return 0 if word == "ok" else int(rest[-1])

    def free_all(self) -> None:
        self.numbers("free")

    def total(self) -> int:
        return self.numbers("total")[0]

    def info(self) -> tuple[int, int]:
        """(free, total)"""
        free, total = self.numbers("info")
        return free, total

    def view(self) -> View:
        total, used, *pids = self.numbers("nvml")
        return View(total, used, tuple(sorted(pids)))
