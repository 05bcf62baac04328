# SPDX-License-Identifier: Apache-2.0
"""The virtual environment of `make`, ended at every step and made again; with an interpreter that only counts steps."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fakes.terminal import Terminal

ROOT = Path(__file__).parents[2]
PACKAGES = ("first", "second", "third")
INTERPRETER = """#!/bin/sh
# python3 as far as make needs it. Each step is counted; number END_AT ends everything that make has started.
step() {
  count=$(($(cat "$STEPS" 2>/dev/null || echo 0) + 1))
  echo "$count" >"$STEPS"
  if [ "$count" = "${END_AT:-0}" ]; then
    kill -"$SIGNAL" 0
    sleep 60
  fi
}
case "$1 $2" in
"-m venv")
  step
  mkdir -p "$3/bin"
  step
  cp "$0" "$3/bin/python"
  step
  touch "$3/pip"
  step
  ;;
"-m pip")
  venv=$(dirname "$(dirname "$0")")
  [ -e "$venv/pip" ] || { echo "No module named pip" >&2; exit 1; }
  [ "$3" = install ] || exit 0
  for package in first second third; do
    [ -e "$venv/$package.metadata" ] && continue # which counts as installed
    echo "Collecting $package (from gigaslice)"
    touch "$venv/$package.metadata"
    step
    echo "$package" >"$venv/$package"
    step
  done
  echo "Installing collected packages: first, second, third"
  ;;
esac
"""
STEPS = 4 + 2 * len(PACKAGES)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    interpreter = tmp_path / "python3"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    return tmp_path / "build"


def test_it_says_how_far_it_is_without_a_terminal_and_with_one(build: Path) -> None:
    interpreter = build.parent / "python3"
    seen = 'until grep -q "^venv: package 1, first" "$SAID"; do sleep 0.1; done'
    slow = INTERPRETER.replace('echo "Collecting', f'[ $package = first ] || {seen}; echo "Collecting')
    interpreter.write_text(slow.replace("Collecting $package (from", "Collecting $package<3,>=1.18 (from"))
    code, said = make(build)
    assert code == 0
    lines = [line for line in said.splitlines() if re.match("venv: package", line)]
    assert re.fullmatch(r"venv: package 1, first, \d+ s", lines[0])
    assert len(lines) < 3, "the next one would come after ten seconds"
    assert "\r" not in said and "\x1b" not in said
    shutil.rmtree(build)
    (build.parent / "steps").unlink()
    code, said = on_a_terminal(build, COLUMNS="22")
    assert code == 0 and "\r\x1b[Kvenv: ready\r\n" in said, "the line is taken away"
    drawn = [
        line
        for line in re.split(r"\r\n?", said)
        if line.startswith("venv: package") and line.endswith("\x1b[K")
    ]
    assert "venv: package 1, firs\x1b[K" in drawn, "no line wraps"
    assert all(len(line.removesuffix("\x1b[K")) < 22 for line in drawn)


def on_a_terminal(build: Path, **environment: str) -> tuple[int, str]:
    """Makes the environment by itself in a terminal; the exit code and what was shown."""
    given = {
        "STEPS": str(build.parent / "steps"),
        "SAID": str(build.parent / "said"),
        "TERM": "xterm",
        "PYTHON": str(build.parent / "python3"),
    }
    words = ["bash", ".ci/venv", str(build / "venv")]
    with Terminal(words, env=os.environ | given | environment, cwd=ROOT) as terminal:
        return terminal.wait(), terminal.text


def make(build: Path, *, end_at: int = 0, by: int = signal.SIGKILL) -> tuple[int, str]:
    """Makes the environment; the exit code, negative for a signal, and what was said."""
    tool = shutil.which("make")
    assert tool is not None
    (build.parent / "steps").unlink(missing_ok=True)
    said = build.parent / "said"
    told = {
        "STEPS": str(build.parent / "steps"),
        "END_AT": str(end_at),
        "SIGNAL": str(int(by)),
        "SAID": str(said),
    }
    with said.open("wb") as output:
        done = subprocess.run(
            [tool, f"BUILD={build}", f"PYTHON={build.parent / 'python3'}", f"{build}/venv/installed.stamp"],
            cwd=ROOT,
            env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")} | told,
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=100,
            check=False,
        )
    return done.returncode, said.read_text()


def is_whole(build: Path) -> bool:
    venv = build / "venv"
    return all((venv / name).is_file() for name in ("bin/python", "pip", "installed.stamp", *PACKAGES))


def test_it_says_what_it_does_and_does_it_once(build: Path) -> None:
    code, said = make(build)
    assert (code, is_whole(build)) == (0, True), said
    assert [line for line in said.splitlines() if line.startswith("venv: ")] == [
        f"venv: making {build}/venv",
        "venv: downloading the packages of pyproject.toml (once; a minute or more)",
        "venv: unpacking 3 packages",
        "venv: ready",
    ]
    assert int((build.parent / "steps").read_text()) == STEPS
    code, said = make(build)
    assert code == 0 and "venv: " not in said


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_it_is_made_again_whenever_it_was_ended(build: Path, step: int, by: int) -> None:
    code, _ = make(build, end_at=step, by=by)
    assert code != 0 and not (build / "venv" / "installed.stamp").exists()
    code, said = make(build)
    assert (code, is_whole(build)) == (0, True), said


def test_it_is_made_again_when_it_is_ended_twice(build: Path) -> None:
    for step in (6, 2, 8):
        assert make(build, end_at=step)[0] != 0
    code, said = make(build)
    assert (code, is_whole(build)) == (0, True), said


def test_an_environment_without_pip_is_made_anew(build: Path) -> None:
    (build / "venv" / "bin").mkdir(parents=True)
    shutil.copy(build.parent / "python3", build / "venv" / "bin" / "python")
    code, said = make(build)
    assert (code, is_whole(build)) == (0, True), said
    assert f"venv: {build}/venv is not whole: making it anew" in said


def test_what_is_new_in_the_list_of_packages_goes_into_the_same_environment(build: Path) -> None:
    assert make(build)[0] == 0
    (build / "venv" / "of-the-user").touch()
    os.utime(build / "venv" / "installed.stamp", (0, 0))
    code, said = make(build)
    assert (code, is_whole(build)) == (0, True), said
    assert (build / "venv" / "of-the-user").exists() and "making" not in said


def test_packages_that_cannot_be_had_are_asked_for_again_in_the_same_environment(build: Path) -> None:
    interpreter = build.parent / "python3"
    interpreter.write_text(
        INTERPRETER.replace('[ "$3" = install ] || exit 0', '[ "$3" = install ] || exit 0; exit 1')
    )
    code, said = make(build)
    assert code != 0 and "error: the packages could not be installed: see above" in said
    assert "unpacking" not in said
    (build / "venv" / "of-the-user").touch()
    interpreter.write_text(INTERPRETER)
    shutil.copy(interpreter, build / "venv" / "bin" / "python")
    code, said = make(build)
    assert (code, is_whole(build)) == (0, True), said
    assert (build / "venv" / "of-the-user").exists()
