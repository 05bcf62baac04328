# SPDX-License-Identifier: Apache-2.0
"""What a stranger meets first: the checks before the build, and the entry of continuous integration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from vcuda.version import VERSION

ROOT = Path(__file__).parents[2]


def call(*command: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        env={**os.environ, **extra},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def interpreter(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_this_machine_can_build() -> None:
    result = call(ROOT / ".ci" / "preflight")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('[ "$1" = -V ] && echo Python 3.9.2 || exit 1', "Python 3.9.2 is too old"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "apt install python3-venv"),
        ('case "$2" in *Python.h*) exit 1;; esac', "apt install python3-dev"),
    ],
)
def test_an_interpreter_that_lacks_something(tmp_path: Path, body: str, says: str) -> None:
    result = call(ROOT / ".ci" / "preflight", PYTHON=interpreter(tmp_path / "python", body))
    assert result.returncode == 3
    assert says in result.stderr and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(("name", "says"), [("PYTHON", "apt install python3"), ("CC", "apt install gcc")])
def test_a_tool_that_is_missing(name: str, says: str) -> None:
    result = call(ROOT / ".ci" / "preflight", **{name: "/nonexistent/tool"})
    assert result.returncode == 3
    assert says in result.stderr and "/nonexistent/tool" in result.stderr and result.stderr.count("\n") == 1


def test_an_image_needs_podman_or_docker(tmp_path: Path) -> None:
    make = shutil.which("make")
    assert make is not None
    result = call(make, "-C", ROOT, "--no-print-directory", "image", PATH=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.splitlines()[0].startswith("error: neither podman nor docker")


def test_help_names_every_target() -> None:
    text = call("make", "-C", ROOT, "--no-print-directory", "help").stdout
    for target in (
        "native",
        "demo",
        "test",
        "check",
        "bench",
        "test-gpu",
        "proto",
        "fmt",
        "image",
        "clean",
        "help",
    ):
        assert any(line.split()[0] == target for line in text.splitlines()), target


def test_who_has_read_enough_of_the_help_gets_no_error() -> None:
    """As `make help | head` has; here before the first line, so that it is the same each time."""
    reading, writing = os.pipe()
    os.close(reading)
    command = ["make", "-C", str(ROOT), "--no-print-directory", "help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_made_is_there_whole_or_not_at_all() -> None:
    """A compiler that is killed leaves a part of its file, newer than the source: it writes under another name."""
    seen = 0
    for rules in (ROOT / "Makefile", *ROOT.glob("native/*.mk"), *ROOT.glob("tests/*/*.mk")):
        for line in rules.read_text().splitlines():
            assert not re.search(r"(-o|>) *\$+@(\s|$)", line), f"{rules.name}: {line.strip()}"
            seen += "mv $@.new $@" in line.replace("$$", "$")
    assert seen > 20


@pytest.mark.parametrize(
    ("check", "tests", "code", "last"),
    [
        ("true", "echo '5 passed in 1.00s'", 0, "5 passed in 1.00s"),
        ("true", "echo '1 failed, 4 passed in 2.00s'; false", 2, "1 failed, 4 passed in 2.00s"),
        ("echo bad >&2; false", "echo '5 passed in 1.00s'", 2, ""),
    ],
)
def test_the_exit_code_of_ci_is_honest(tmp_path: Path, check: str, tests: str, code: int, last: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "Makefile").write_text(f"programs:\ncheck:\n\t@{check}\ntest:\n\t@{tests}\n")
    result = call("bash", tmp_path / ".ci" / "run", MAKEFLAGS="")
    assert result.returncode == code
    if last:
        assert result.stdout.splitlines()[-1] == last
    else:
        assert "passed" not in result.stdout


@pytest.mark.parametrize(
    ("tool", "platforms", "words"),
    [
        ("podman", "", f"build --tag gigaslice:{VERSION} --tag gigaslice:latest ."),
        ("docker", "", f"build --tag gigaslice:{VERSION} --tag gigaslice:latest ."),
        (
            "podman",
            "linux/amd64,linux/arm64",
            f"build --platform linux/amd64,linux/arm64 --manifest gigaslice:{VERSION} .",
        ),
        (
            "docker",
            "linux/amd64,linux/arm64",
            f"buildx build --platform linux/amd64,linux/arm64 --tag gigaslice:{VERSION} --tag gigaslice:latest .",
        ),
    ],
)
def test_an_image_is_built_for_one_or_several_architectures(tmp_path, tool, platforms, words) -> None:
    fake = tmp_path / tool
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    for name in ("sh", "bash", "sed", "env"):
        found = shutil.which(name)
        if found:
            (tmp_path / name).symlink_to(found)
    result = subprocess.run(
        [shutil.which("make") or "make", "-s", "image", f"PLATFORMS={platforms}"],
        cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == words
