# SPDX-License-Identifier: Apache-2.0
"""The container runtime: a program under the mounts and variables that the kubelet was answered.

Where the machine allows it, the program gets mount and PID namespaces of its own (root, or a user namespace);
nothing of the host's files is touched. Where it does not, the program runs without: the library is preloaded and
pointed to the allocation's directory by environment, and `Runtime.note` says so in one line.

It is no isolation: the program sees the host's other files and network.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SANDBOX = Path(__file__).with_name("sandbox.py")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class StartError(Exception):
    """The program could not be started; the text is one line."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of the host at a path of the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a container is started with."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Bind, ...] = ()
    interactive: bool = False  # the program gets a pipe as its standard input
    gpus: tuple[str, ...] = ()  # whose device nodes it has by CDI


class Process:
    """A started program. `pid` is its PID on the host; in a PID namespace of its own it is 1 inside."""

    def __init__(self, popen: subprocess.Popen[bytes], pid: int, logs: Path, lifeline: int | None) -> None:
        self.popen = popen
        self.pid = pid
        self.logs = logs
        self.lifeline = lifeline
        self.lock = threading.Lock()

    @property
    def returncode(self) -> int | None:
        """Exit code, 128 + signal; None while it runs."""
        code = self.popen.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(self, timeout_s: float) -> int:
        """The exit code; subprocess.TimeoutExpired when it still runs by then."""
        self.popen.wait(timeout_s)
        code = self.returncode
        assert code is not None
        return code

    def read(self, stream: str = "stdout") -> str:
        return (self.logs / stream).read_text(errors="replace")

    def write(self, text: str) -> None:
        """To the standard input of an interactive program."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(text.encode())
        self.popen.stdin.flush()

    def signal(self, number: int) -> None:
        """To the program; nothing happens when it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self, timeout_s: float = 60.0) -> None:
        """Ends it and, where it has a PID namespace, everything in it."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        self.close()

    def close(self) -> None:
        """Frees the descriptors; a program that still runs is killed by that."""
        with self.lock:
            if self.lifeline is not None:
                os.close(self.lifeline)
                self.lifeline = None
            if self.popen.stdin is not None:
                with contextlib.suppress(OSError):
                    self.popen.stdin.close()

    def host_pids(self) -> list[int]:
        """All processes of the container as the host numbers them, ascending."""
        own = _namespace(self.pid)
        if own is None or own == _namespace(os.getpid()):
            return [] if self.returncode is not None else [self.pid]
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return sorted(number for number in numbers if _namespace(number) == own)


class Pause(Process):
    """A container without a program: it only waits to be killed, and costs no process."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.pid = 0
        self.ended = threading.Event()
        self.code = 0

    @property
    def returncode(self) -> int | None:
        return self.code if self.ended.is_set() else None

    def wait(self, timeout_s: float) -> int:
        if not self.ended.wait(timeout_s):
            raise subprocess.TimeoutExpired("pause", timeout_s)
        return self.code

    def signal(self, number: int) -> None:
        if not self.ended.is_set():
            self.code = 128 + number
            self.ended.set()

    def finish(self, code: int) -> None:
        """Lets it end by itself with CODE."""
        self.code = code
        self.ended.set()

    def kill(self, timeout_s: float = 60.0) -> None:
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        pass

    def host_pids(self) -> list[int]:
        return []


class Runtime:
    """Starts programs; mode is "root", "user" (user namespace) or "plain" (no namespaces), "auto" finds out."""

    def __init__(
        self, mode: str = "auto", env: Mapping[str, str] | None = None, select_gpus: bool = False
    ) -> None:
        self.injected = dict(env or {})  # what a GPU container runtime would add, such as the driver's path
        self.select_gpus = select_gpus  # CUDA shows the GPUs that the plugin named, and no others
        found, reason = probe() if mode == "auto" else (mode, "")
        self.mode = found
        self.note = ""
        if found == "plain":
            self.note = (
                f"containers run without namespaces ({reason or 'asked for'}): "
                "the library comes by LD_PRELOAD and VCUDA_DIR instead of the four mounts"
            )

    def _environment(self, launch: Launch) -> dict[str, str]:
        env = {"PATH": PATH, "HOME": "/", **self.injected, **launch.env}
        if self.select_gpus and launch.gpus:
            env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(launch.gpus))
        elif self.select_gpus and "NVIDIA_VISIBLE_DEVICES" in env:
            env.setdefault("CUDA_VISIBLE_DEVICES", env["NVIDIA_VISIBLE_DEVICES"])
        return env

    def start(self, launch: Launch, logs: Path) -> Process:
        """Runs the program, its output going to files "stdout" and "stderr" in LOGS. StartError with the cause."""
        logs.mkdir(parents=True, exist_ok=True)
        if not launch.command:
            for stream in ("stdout", "stderr"):
                (logs / stream).touch()
            return Pause(logs)
        for bind in launch.mounts:  # a missing source becomes a directory, as with containerd
            if not Path(bind.source).exists():
                Path(bind.source).mkdir(parents=True)
        env = self._environment(launch)
        if self.mode == "plain":
            return self._plain(launch, {**env, **preload_environment(launch.mounts)}, logs)
        job = {
            "mode": "create",
            "user": self.mode == "user",
            "mounts": [
                {"source": b.source, "target": b.target, "read_only": b.read_only} for b in launch.mounts
            ],
        }
        return _sandboxed({**job, "command": launch.command, "env": env}, launch.interactive, logs)

    def exec(self, process: Process, launch: Launch, logs: Path) -> Process:
        """Runs another program in the container of PROCESS; LAUNCH.mounts are the container's, for plain mode."""
        logs.mkdir(parents=True, exist_ok=True)
        env = self._environment(launch)
        if self.mode == "plain":
            return self._plain(launch, {**env, **preload_environment(launch.mounts)}, logs)
        job = {"mode": "join", "join": process.pid, "command": launch.command, "env": env}
        return _sandboxed(job, launch.interactive, logs)

    def _plain(self, launch: Launch, env: Mapping[str, str], logs: Path) -> Process:
        with (logs / "stdout").open("wb") as out, (logs / "stderr").open("wb") as err:
            try:
                popen = subprocess.Popen(
                    launch.command,
                    stdin=subprocess.PIPE if launch.interactive else subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=dict(env),
                    start_new_session=True,
                    cwd="/",
                )
            except OSError as error:
                raise StartError(f"{launch.command[0]}: {error.strerror}") from error
        return Process(popen, popen.pid, logs, None)


def preload_environment(mounts: Sequence[Bind]) -> dict[str, str]:
    """What stands for the four mounts when there can be no mounts: the same files, named on the host."""
    by_target = {bind.target.rstrip("/"): bind.source for bind in mounts}
    env = {}
    limits, preload = by_target.get("/etc/vcuda/limits"), by_target.get("/etc/ld.so.preload")
    if limits is not None:
        env["VCUDA_DIR"] = str(Path(limits).parent)
    if preload is not None:
        library = Path(preload).read_text().strip()
        for target, source in by_target.items():
            if library.startswith(f"{target}/"):
                library = source + library[len(target) :]
        env["LD_PRELOAD"] = library
    return env


def _sandboxed(job: Mapping[str, object], interactive: bool, logs: Path) -> Process:
    report, report_in = os.pipe()
    lifeline, lifeline_in = os.pipe()
    document = {**job, "report": report_in, "lifeline": lifeline, "cwd": "/"}
    description = logs / "job.json"
    description.write_text(json.dumps(document))
    with (logs / "stdout").open("wb") as out, (logs / "stderr").open("wb") as err:
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SANDBOX), str(description)],
            stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=(report_in, lifeline),
            start_new_session=True,
        )
    os.close(report_in)
    os.close(lifeline)
    with os.fdopen(report) as answers:
        word, _, rest = answers.readline().strip().partition(" ")
    process = Process(popen, int(rest) if word == "pid" else popen.pid, logs, lifeline_in)
    if word != "pid":
        process.close()
        popen.wait(60)
        raise StartError(rest or f"the sandbox ended: {(logs / 'stderr').read_text().strip()[-200:]}")
    return process


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


@functools.lru_cache(maxsize=1)
def probe() -> tuple[str, str]:
    """The best mode of this machine, tried with a real mount at a path that does not exist; else why not."""
    reason = ""
    modes = ("root", "user") if os.geteuid() == 0 else ("user",)
    with tempfile.TemporaryDirectory() as scratch:
        note = Path(scratch) / "note"
        note.write_text("seen\n")
        launch = Launch(
            ("cat", "/etc/gigaslice-probe/note"), mounts=(Bind(str(note), "/etc/gigaslice-probe/note", True),)
        )
        for mode in modes:
            try:
                process = Runtime(mode).start(launch, Path(scratch) / mode)
            except StartError as error:
                reason = str(error)
                continue
            code = process.wait(60)
            process.close()
            if code == 0 and process.read() == "seen\n":
                return mode, ""
            reason = f"a probe in a {mode} namespace ended with {code}"
    return "plain", reason
