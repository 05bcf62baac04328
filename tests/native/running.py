# SPDX-License-Identifier: Apache-2.0
"""Programs under the built library, on the simulated driver.

A `Place` is one test's machine and settings; `Place.client` starts a program that does what the test tells it, line by
line. Everything is what a user would do: environment variables, LD_PRELOAD, separate processes.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakedriver.env import driver_env

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "libvcuda.so"
CLIENTS = ROOT / "build" / "native" / "clients"

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CONTEXT = 100 * MIB  # device memory of a context on the simulated machine two-24g

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, NOT_READY = 100, 101, 201, 802

MODES = ("linked", "dlsym", "default", "libc", "dlvsym", "proc1", "proc2")


@dataclass(frozen=True)
class Answer:
    """One line of a client: CUresult and two values."""

    code: int
    first: int
    second: int


class Client:
    """A running client; `client.do("alloc a", 4096)` sends one command and returns its answer."""

    def __init__(
        self, env: dict[str, str], mode: str = "dlsym", command: tuple[str, ...] | None = None
    ) -> None:
        """COMMAND: how to start the client, when it is not the one that make native-clients builds."""
        binary = CLIENTS / ("client-linked" if mode == "linked" else "client")
        if not binary.exists():
            raise FileNotFoundError(f"{binary} is missing: run make native-clients")
        self.process = subprocess.Popen(
            [*(command or (str(binary),)), mode],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str, *values: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join([command, *map(str, values)]) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Answer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the client ended: {self.close()!r}")
        code, first, second = map(int, line.split())
        return Answer(code, first, second)

    def do(self, command: str, *values: int) -> Answer:
        self.tell(command, *values)
        return self.hear()

    def ready(self, device: int = 0) -> Client:
        """Initialises and makes the device's primary context current."""
        for command, values in (("init", ()), ("retain z", (device,)), ("current z", ())):
            assert self.do(command, *values).code == SUCCESS, command
        return self

    def free(self) -> int:
        answer = self.do("info")
        assert answer.code == SUCCESS
        return answer.first

    def close(self) -> str:
        """Lets the program end by itself; returns what it wrote to stderr."""
        try:
            _, errors = self.process.communicate(timeout=60)
        except BrokenPipeError:
            errors = ""
        return errors

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Program:
    """A running Python program that evaluates expressions (tests/native/programs/serve.py): `program("d.used()")`."""

    def __init__(self, env: dict[str, str], devices: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.native.programs.serve", devices],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __call__(self, expression: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(expression.replace("\n", " ") + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.communicate()[1]}"
        answer = json.loads(line)
        assert "value" in answer, answer["error"]
        return answer["value"]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Program:
        assert self("None") is None, (
            "its contexts are there: what others see of it no longer depends on its speed"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass
class Place:
    """A simulated machine and a quota directory below DIRECTORY."""

    directory: Path
    machine: str | Path = "two-24g"
    library: Path = LIBRARY
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def quota(self) -> Path:
        return self.directory / "quota"

    def env(self, limit: str | None = None, **extra: str) -> dict[str, str]:
        """Environment under the library; LIMIT is VCUDA_MEMORY_LIMIT. Programs here are refused memory on purpose."""
        env = self.plain_env() | {"LD_PRELOAD": str(self.library), "VCUDA_REFUSALS": "off"} | self.settings
        if limit is not None:
            env |= {"VCUDA_DIR": str(self.quota), "VCUDA_MEMORY_LIMIT": limit}
        return env | extra

    def python_env(self) -> dict[str, str]:
        """What a Python program of tests/native/programs needs besides."""
        return {"PYTHONPATH": str(ROOT)}

    def plain_env(self) -> dict[str, str]:
        return driver_env(self.machine, self.directory / "machine")

    def client(self, limit: str | None = None, mode: str = "dlsym", **extra: str) -> Client:
        return Client(self.env(limit, **extra), mode)

    def program(self, limit: str | None = None, devices: str = "0", **extra: str) -> Program:
        return Program(self.env(limit, **extra) | self.python_env(), devices)

    def fakectl(self, *order: str | int) -> str:
        """An order to the simulated driver of this machine; returns what it prints."""
        command = [str(ROOT / "build" / "fakedriver" / "fakectl"), *map(str, order)]
        done = subprocess.run(command, env=self.plain_env(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(
        self, *command: str | Path, limit: str | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        return run(command, self.env(limit, **extra))


def run(command: tuple[str | Path, ...], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], env=env, capture_output=True, text=True, timeout=100, check=False
    )


def eventually(condition: object, seconds: float = 20.0) -> bool:
    """Waits until CONDITION() is true, for things that another process or the kernel does."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


@contextlib.contextmanager
def rooted_library() -> Iterator[tuple[Path, Path]]:
    """The library with another directory in the place of /etc/vcuda, as a container sees its mounts.

    It is the built library itself: a name of the same length is written over the three that it looks for. Compiling and
    linking it for another directory takes twelve seconds of CPU, which on a busy machine is more than a test may take.

    Yields:
        The library, and the directory, which is empty.
    """
    content = LIBRARY.read_bytes()
    with _short_directory(len("/etc/vcuda")) as directory, tempfile.TemporaryDirectory() as place:
        for text in (b"\0/etc/vcuda\0", b"\0/etc/vcuda/limits\0", b"\0/etc/vcuda/allocations\0"):
            assert content.count(text) == 1, f"{LIBRARY} has {text!r} {content.count(text)} times"
            content = content.replace(text, text.replace(b"/etc/vcuda", bytes(directory)))
        Path(place).chmod(0o755)  # programs of other users have it too
        library = Path(place) / LIBRARY.name
        library.write_bytes(content)
        yield library, directory


@contextlib.contextmanager
def _short_directory(length: int) -> Iterator[Path]:
    """A directory below /tmp whose path has LENGTH characters; tempfile chooses longer names."""
    while True:
        directory = Path("/tmp/" + secrets.token_hex(length)[: length - len("/tmp/")])
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            break
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
