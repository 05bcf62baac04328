"""The Dockerfile, read instead of built: its stages, and that what it copies is enough to make the wheel."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.manifests.locks import lock
from vcuda.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction with its words; stage counts from 0, -1 is before the first FROM."""

    stage: int
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def instructions() -> list[Line]:
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()))
    found: list[Line] = []
    stage = -1
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Line(stage, name, rest))
    return found


LINES = instructions()
COPIED = [
    source
    for line in LINES
    if line.name == "COPY" and not line.text.startswith("--from=")
    for source in line.words[:-1]
]


def of(name: str, stage: int | None = None) -> list[str]:
    return [line.text for line in LINES if line.name == name and stage in (None, line.stage)]


def ignored(path: str) -> bool:
    """What .dockerignore says of a path at the top: the last line that matches counts."""
    answer = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            if fnmatch.fnmatch(path, pattern.removeprefix("**/")):
                answer = not line.startswith("!")
    return answer


def test_two_stages_of_one_python() -> None:
    first, second = of("FROM")
    assert (first, second) == ("${BASE_IMAGE} AS build", "${BASE_IMAGE}")
    (argument,) = of("ARG")
    version = re.fullmatch(r"BASE_IMAGE=\S+/python:3\.(\d+)-slim-\w+", argument)
    assert version and int(version[1]) >= 10
    assert f"3.{version[1]}" == lock.PYTHON, "the packages are locked for the image's Python"


def test_every_package_comes_by_its_hash() -> None:
    installs = [
        part
        for line in of("RUN")
        for part in line.split("&&")
        if re.search(r"\bpip\b.*\b(install|wheel)\b", part)
    ]
    assert len(installs) == 4
    for part in installs:
        assert "--require-hashes" in part or ("--no-index" in part and "--no-deps" in part), part


def test_the_locks_agree_with_the_project() -> None:
    for name, requirements in lock.wanted().items():
        found = lock.locked((ROOT / "deploy" / "image" / name).read_text())
        assert lock.disagreements(requirements, found) == [], "run make lock"
        assert all(hashes >= 1 for _, hashes in found.values())
    compiled = lock.locked((ROOT / "deploy" / "image" / "runtime.txt").read_text())
    assert compiled["grpcio"][1] == compiled["cffi"][1] == len(lock.ARCHITECTURES)


def test_what_a_lock_lacks_is_said() -> None:
    found = {"h11": ("0.13.0", 1), "cffi": ("2.1.0", 2)}
    assert lock.disagreements(["h11>=0.14,<1", "cffi>=2.0,<3", "PyYAML>=6"], found) == [
        "h11 0.13.0 is not <1,>=0.14",
        "pyyaml is not locked",
    ]
    with pytest.raises(ValueError, match="no version with hashes"):
        lock.locked("h11==0.14.0\n")


def test_the_image_that_runs_has_no_compiler_and_fetches_nothing() -> None:
    assert of("RUN", stage=1) == []
    copies = of("COPY", stage=1)
    assert copies and all(copy.startswith("--from=build ") for copy in copies)
    assert not any(line.name.lower() == "add" for line in LINES)


def test_it_starts_the_command() -> None:
    assert of("ENTRYPOINT", stage=1) == ['["gigaslice"]']
    assert of("CMD", stage=1) == ['["node"]']
    (environment,) = of("ENV", stage=1)
    assert "PATH=/opt/gigaslice/bin:$PATH" in environment
    assert of("COPY", stage=1) == ["--from=build /opt/gigaslice /opt/gigaslice"]


def test_it_says_which_version_it_is() -> None:
    (labels,) = of("LABEL", stage=1)
    assert f'org.opencontainers.image.version="{VERSION}"' in labels


def test_what_is_copied_exists_and_reaches_the_build() -> None:
    assert {"native", "vcuda", "gigaslice", "agent", "pyproject.toml"} <= set(COPIED)
    assert [source for source in COPIED if not (ROOT / source).exists()] == []
    assert [source for source in COPIED if ignored(source)] == []
    assert [name for name in ("build", "tests", "docs", ".git") if not ignored(name)] == []
    assert ignored("_native.abi3.so"), "the bindings are built in the image and not brought along"


@pytest.mark.slow
@pytest.mark.timeout(600)  # the library is compiled, beside other tests
def test_what_is_copied_is_enough_for_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.o", ".*", "_lib")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=unwanted)
        else:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    result = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(source)],
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"vcuda/_lib/libvcuda.so", "vcuda/_native.abi3.so", "agent/cli/node.py"} <= names
    modules = {
        str(path.relative_to(ROOT))
        for top in ("agent", "gigaslice", "vcuda")
        for path in (ROOT / top).rglob("*.py")
    }
    assert modules - names == set(), "a package that the image leaves out"
