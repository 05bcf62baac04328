# SPDX-License-Identifier: Apache-2.0
"""The command below ``vcuda run``: exit codes, streams, signals, and what outlives whom."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.terminal import Terminal
from tests.integration.vcuda.programs import (
    CLIENT,
    FORWARDED,
    GIB,
    OUT_OF_MEMORY,
    VCUDA,
    Run,
    left_in,
    line,
    until,
)
from vcuda import quotas


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("kill -PIPE $$", 141),
    ],
)
def test_the_exit_code_is_passed_on(run: Run, base: Path, command: str, code: int) -> None:
    result = run("run", "--memory", "1GiB", "--", "sh", "-c", command)
    assert (result.returncode, result.stderr) == (code, "")
    assert left_in(base) == []


def test_words_streams_and_environment_are_passed_on(environment: dict[str, str]) -> None:
    words = ["-c", "a b", "--", "*", "--memory", ""]
    script = 'cat; printf "%s|" "$@"; echo "$LD_PRELOAD" "$VCUDA_MEMORY_LIMIT" >&2'
    result = subprocess.run(
        [*VCUDA, "run", "--memory", "1GiB", "--", "sh", "-c", script, "sh", *words],
        env={**environment, "LD_PRELOAD": "libc.so.6", "VCUDA_MEMORY_LIMIT": "nonsense"},
        input="text\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.stdout == "text\n" + "|".join(words) + "|"
    assert result.stderr.startswith("libc.so.6:") and result.stderr.endswith("libvcuda.so \n")


def test_becoming_the_command(
    run: Run, start: Callable[..., subprocess.Popen[str]], base: Path, tmp_path: Path
) -> None:
    """The process is the command's own, so is its exit code; the quota is removed by who comes later."""
    client = [sys.executable, "-c", f"import os; print(os.getpid())\n{CLIENT}"]
    process = start(
        "run", "--exec", "--memory", "8GiB", "--gpu", "0", "--", *client, str(4 * GIB), str(5 * GIB)
    )
    assert line(process) == str(process.pid)
    assert line(process).split() == [str(8 * GIB), "0", str(OUT_OF_MEMORY)]
    (left,) = base.iterdir()
    assert json.loads((left / "command.json").read_text())["pid"] == process.pid
    run("run", "--memory", "1GiB", "--", "true")
    assert left_in(base) == [left], "it lives"
    process.kill()
    process.communicate()
    assert (
        run("run", "--exec", "--memory", "1GiB", "--", "sh", "-c", "kill -PIPE $$; exit 1").returncode == -13
    )
    assert len(left_in(base)) == 1, "the one before is gone"
    (tmp_path / "broken").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "broken").chmod(0o755)
    broken = run("run", "--exec", "--memory", "1GiB", "--", tmp_path / "broken")
    assert broken.returncode == 126 and broken.stderr.count("\n") == 2
    assert left_in(base) == []


@pytest.mark.parametrize("name", [number.name for number in FORWARDED])
def test_signals_are_forwarded(start: Callable[..., subprocess.Popen[str]], base: Path, name: str) -> None:
    script = f"trap 'exit 77' {name[3:]}; echo ready; while :; do sleep 0.05; done"
    process = start("run", "--memory", "1GiB", "--", "sh", "-c", script)
    assert line(process) == "ready"
    process.send_signal(getattr(signal, name))
    assert process.wait() == 77
    assert left_in(base) == []


def test_control_c_arrives_once(environment: dict[str, str]) -> None:
    """The terminal signals the whole foreground group, so the command has it already."""
    script = """
import os, signal, sys
seen, (woken, wake) = [], os.pipe()
def interrupted(*_): seen.append(1); print("interrupted", flush=True)
def asked(*_): print("count", len(seen), flush=True); sys.exit(5)
os.set_blocking(wake, False); signal.set_wakeup_fd(wake)
signal.signal(signal.SIGINT, interrupted); signal.signal(signal.SIGUSR1, asked)
print("ready", flush=True)
while True: os.read(woken, 1)  # signal.pause() would not end for a signal that comes right before it
"""
    words = [*VCUDA, "run", "--memory", "1GiB", "--", sys.executable, "-c", script]
    with Terminal(words, env=environment) as terminal:
        terminal.read_until("ready")
        terminal.type("\x03")
        terminal.read_until("interrupted")
        terminal.process.send_signal(signal.SIGUSR1)
        assert terminal.read_until(r"count (\d+)\r")[1] == "1"
        assert terminal.wait() == 5


def test_a_child_that_outlives_the_command_keeps_its_limit(run: Run, base: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    late = f"exec <'{fifo}'; '{sys.executable}' -c '{CLIENT}' {9 * GIB} >'{tmp_path}/late'"
    script = 'sh -c "$0" >/dev/null 2>&1 & exit 4'
    result = run("run", "--memory", "8GiB", "--gpu", "0", "--", "sh", "-c", script, late)
    assert result.returncode == 4
    (left,) = base.iterdir()
    assert run("ps", "--json").returncode == 0
    run("run", "--memory", "1GiB", "--", "true")  # sweeps, and must not sweep this one
    assert left_in(base) == [left]
    with fifo.open("w"):
        until(lambda: (tmp_path / "late").exists() and (tmp_path / "late").read_text().endswith("\n"))
        assert (tmp_path / "late").read_text().split() == [str(8 * GIB), str(OUT_OF_MEMORY)]
    until(lambda: run("run", "--memory", "1GiB", "--", "true").returncode == 0 and not left_in(base))


def test_a_launcher_that_is_killed_leaves_no_directory_for_good(
    run: Run, start: Callable[..., subprocess.Popen[str]], base: Path
) -> None:
    process = start("run", "--memory", "8GiB", "--gpu", "0", "--", sys.executable, "-c", CLIENT, str(GIB))
    assert line(process).split()[1] == "0"
    process.kill()
    process.wait()
    (left,) = base.iterdir()
    assert quotas.read_quota(left).usage.processes[0].pid  # the command lives on under its limit
    run("run", "--memory", "1GiB", "--", "true")
    assert left_in(base) == [left]
    process.communicate()  # closes its input, so the command ends
    until(lambda: run("run", "--memory", "1GiB", "--", "true").returncode == 0 and not left_in(base))
