# SPDX-License-Identifier: Apache-2.0
"""Programs below ``vcuda run`` that become another user, or are of another C library."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.vcuda.programs import OUT_OF_MEMORY, ROOT, VCUDA, Run, left_in
from tests.unit.vcuda.test_program import elf

NOBODY = 65534


@pytest.fixture
def open_place(environment: dict[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory that every user can enter, with the simulated machine and a client in it; nothing else of these tests
    need be readable by others.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, and no user namespace maps two without help")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o711)
        (place / "machine").mkdir()
        (place / "machine").chmod(0o777)  # of the driver, which each user starts anew
        (place / "runtime").mkdir(mode=0o711)
        (place / "driver").mkdir(mode=0o755)
        for file in (ROOT / "build" / "fakedriver").glob("*.so*"):
            shutil.copy(file, place / "driver")
        for file in (ROOT / "build/native/clients/client", ROOT / "tests/fakedriver/machines/two-24g.txt"):
            shutil.copy(file, place)
        yield (
            place,
            environment
            | {
                "LD_LIBRARY_PATH": str(place / "driver"),
                "FAKEDRIVER_MACHINE": str(place / "two-24g.txt"),
                "FAKEDRIVER_STATE": str(place / "machine" / "state"),
                "XDG_RUNTIME_DIR": str(place / "runtime"),
            },
        )


def as_nobody(place: Path, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    become = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        str(place / "client"),
        "dlsym",
    ]
    return subprocess.run(
        [*VCUDA, "run", "--memory", "1GiB", *options, "--", *become],
        env={**environment, "VCUDA_REFUSALS": "off"},
        input=f"init\nretain z 0\ncurrent z\nalloc a {900 << 20}\nalloc b {200 << 20}\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("library", ["for all", "for root alone"])
def test_a_program_that_becomes_another_user_keeps_its_limit(
    open_place: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    place, environment = open_place
    if library == "for root alone":
        package = place / "package"
        shutil.copytree(ROOT / "vcuda", package / "vcuda", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "vcuda" / "_lib").mkdir(exist_ok=True)
        shutil.copy(ROOT / "build" / "libvcuda.so", package / "vcuda" / "_lib")
        package.chmod(0o700)
        monkeypatch.chdir(package)
    done = as_nobody(place, environment)
    codes = [int(answer.split()[0]) for answer in done.stdout.splitlines()]
    assert (codes, done.stderr) == ([0, 0, 0, 0, OUT_OF_MEMORY], "")


def test_a_directory_that_another_user_may_not_enter_is_said_to_be_that(
    open_place: tuple[Path, dict[str, str]],
) -> None:
    place, environment = open_place
    done = as_nobody(place, environment, "--dir", str(place / "mine"))
    assert done.stdout.split()[0] != "0"
    assert "permission denied" in done.stderr and "chmod o+x" in done.stderr
    (place / "mine").chmod(0o711)
    done = as_nobody(place, environment, "--dir", str(place / "mine"))
    assert [answer.split()[0] for answer in done.stdout.splitlines()] == ["0", "0", "0", "0", "2"]


def test_a_directory_of_the_variables_that_belongs_to_another_user_is_said_to_be_that(
    open_place: tuple[Path, dict[str, str]],
) -> None:
    place, environment = open_place
    limits = {
        "LD_PRELOAD": str(place / "libvcuda.so"),
        "VCUDA_DIR": str(place / "mine"),
        "VCUDA_MEMORY_LIMIT": "1GiB",
    }
    shutil.copy(ROOT / "build" / "libvcuda.so", place)
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    said = []
    for user in ([], become):
        done = subprocess.run(
            [*user, str(place / "client"), "dlsym"],
            env=environment | limits,
            input="init\n",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        said.append((done.stdout.split()[0], done.stderr))
    assert said[0] == ("0", "")
    assert said[1][0] != "0" and "permission denied" in said[1][1] and "another user's" in said[1][1]


def test_a_named_directory_does_not_decide_what_code_runs(run: Run, base: Path, tmp_path: Path) -> None:
    """It may be shared with other users, who could put another library there."""
    named = tmp_path / "named"
    for _ in range(2):
        seen = run(
            "run", "--memory", "1GiB", "--dir", named, "--", "sh", "-c", 'echo "$LD_PRELOAD"'
        ).stdout.strip()
        assert not seen.startswith(str(named))
        assert seen.endswith("/libvcuda.so")
    assert sorted(entry.name for entry in named.iterdir()) == ["ledger", "limits"]
    assert all(entry.name.startswith("links-") for entry in base.iterdir())


def test_a_program_of_musl_is_refused_before_it_fails_to_start(run: Run, base: Path, tmp_path: Path) -> None:
    program = elf(tmp_path / "program", b"/lib/ld-musl-x86_64.so.1")
    (tmp_path / "script").write_text(f"#!{program}\n")
    (tmp_path / "script").chmod(0o755)
    for path in (program, tmp_path / "script"):
        refused = run("run", "--memory", "1GiB", "--", path)
        assert refused.returncode == 126
        assert "cannot be limited" in refused.stderr and "musl" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not base.exists() or left_in(base) == []


def test_a_program_of_musl_runs_below_the_command(run: Run, tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip(
            "this machine has no musl-gcc; that its loader finds nothing is tested in test_preload.py"
        )
    (tmp_path / "main.c").write_text("int main(void) { return 7; }\n")
    subprocess.run(["musl-gcc", "-o", tmp_path / "program", tmp_path / "main.c"], check=True)
    command = f"{shlex.quote(str(tmp_path / 'program'))}; echo $?; grep -c libvcuda /proc/self/maps"
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        Path(runtime).chmod(0o711)
        done = run("run", "--memory", "1GiB", "--", "sh", "-c", command, XDG_RUNTIME_DIR=runtime)
    code, mapped = done.stdout.split()
    assert (code, done.stderr) == ("7", "")
    assert int(mapped) > 0, "its neighbours of glibc have the library"
