# SPDX-License-Identifier: Apache-2.0
"""Writes the lock files of the image: every package that it is built from and runs with, by version and hash.

    python -m deploy.image.lock            both files anew, with the newest versions that pyproject.toml allows
    python -m deploy.image.lock --check    whether they are what pyproject.toml asks for; asks no index
    python -m deploy.image.lock --python 3.11 --directory DIR
                                           the same versions for another Python on this architecture, for a trial

`runtime.txt` is what the roles import, `build.txt` what its wheel is compiled with. pip chooses, as it would in the
image: wheels for the image's Python on both architectures. It is asked what it would install, and installs nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # pip has had it for long
    from pip._vendor import tomli as tomllib

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

from deploy.generated import ROOT
from gigaslice.runtime.progress import each

HERE = Path(__file__).resolve().parent
PYTHON = "3.12"  # of the Dockerfile's BASE_IMAGE
ARCHITECTURES = ("x86_64", "aarch64")
_GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_28", "manylinux_2_34")
_HEAD = """# Made by `make lock`; not to be edited. {what}, for Python {python} on {architectures}.
# Installed with `pip install --require-hashes --only-binary :all:`.
"""
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+) \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)


def wanted(root: Path = ROOT) -> dict[str, list[str]]:
    """What each file must satisfy, as pyproject.toml says it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        "runtime.txt": [
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"]["cluster"],  # one image for all roles
            *project["project"]["optional-dependencies"]["dataset"],
        ],
        "build.txt": project["build-system"]["requires"],
    }


def locked(text: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes by name. Raises ValueError for a line that is none of a lock file."""
    rest = _LINE.sub("", text)
    for line in rest.splitlines():
        if line and not line.startswith("#"):
            raise ValueError(f"{line!r} is no version with hashes")
    return {
        canonicalize_name(found["name"]): (found["version"], found["hashes"].count("--hash"))
        for found in _LINE.finditer(text)
    }


def disagreements(requirements: Iterable[str], found: Mapping[str, tuple[str, int]]) -> list[str]:
    """What of REQUIREMENTS the locked versions FOUND do not satisfy, one sentence each."""
    mistakes = []
    for one in map(Requirement, requirements):
        name = canonicalize_name(one.name)
        if name not in found:
            mistakes.append(f"{name} is not locked")
        elif not one.specifier.contains(found[name][0], prereleases=True):
            mistakes.append(f"{name} {found[name][0]} is not {one.specifier}")
    return mistakes


def chosen(
    requirements: Iterable[str], architecture: str, python: str = PYTHON
) -> dict[str, tuple[str, str]]:
    """Version and hash by name of what pip would install."""
    platforms = [f"--platform={one}_{architecture}" for one in _GLIBC]
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report=-",
        "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms,
        f"--abi=cp{python.replace('.', '')}", "--abi=abi3", "--abi=none", "--disable-pip-version-check",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as nowhere:
        done = subprocess.run(
            [*command, f"--target={nowhere}", *requirements], stdout=subprocess.PIPE, check=True
        )
    found: dict[str, tuple[str, str]] = {}
    for one in json.loads(done.stdout)["install"]:
        hashes = one["download_info"]["archive_info"]["hashes"]
        found[canonicalize_name(one["metadata"]["name"])] = (one["metadata"]["version"], hashes["sha256"])
    return found


def written(
    name: str,
    requirements: Iterable[str],
    python: str = PYTHON,
    architectures: Sequence[str] = ARCHITECTURES,
) -> str:
    """The text of a lock file. Raises ValueError when the architectures do not have the same versions."""
    requirements = list(requirements)
    answers = [
        chosen(requirements, architecture, python)
        for architecture in each(
            architectures, lambda one: f"{name}: asking for packages of {one}", name="lock"
        )
    ]
    what = {"runtime.txt": "What the roles import", "build.txt": "What its wheel is compiled with"}[name]
    lines = [_HEAD.format(what=what, python=python, architectures=" and ".join(architectures))]
    for package in sorted({one for answer in answers for one in answer}):
        versions = {answer[package][0] for answer in answers if package in answer}
        if len(versions) > 1:
            raise ValueError(f"{package}: {' and '.join(sorted(versions))} on different architectures")
        hashes = sorted({answer[package][1] for answer in answers if package in answer})
        lines.append(
            " \\\n".join([f"{package}=={versions.pop()}", *(f"    --hash=sha256:{one}" for one in hashes)])
            + "\n"
        )
    return "".join(lines)


def write_for(python: str, directory: Path) -> None:
    """Writes both files for PYTHON into DIRECTORY, with the versions of the image's own."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in wanted():
        versions = locked((HERE / name).read_text(encoding="utf-8"))
        same = [f"{package}=={version}" for package, (version, _) in versions.items()]
        text = written(name, same, python, [platform.machine()])
        (directory / name).write_text(text, encoding="utf-8")


def main() -> int:
    """As the module says; 1 when the files do not agree with pyproject.toml."""
    parser = argparse.ArgumentParser(description="lock files of the image")
    parser.add_argument("--check", action="store_true", help="change nothing, ask no index")
    parser.add_argument("--python", metavar="3.N", help="for this Python, into --directory")
    parser.add_argument("--directory", metavar="DIR", type=Path, help="where the files for --python go")
    words = parser.parse_args()
    if bool(words.python) != bool(words.directory):
        parser.error("--python and --directory go together: the image's own files are for its own Python")
    if words.python:
        write_for(words.python, words.directory)
        return 0
    check = words.check
    mistakes = []
    for name, requirements in wanted().items():
        if not check:
            (HERE / name).write_text(written(name, requirements), encoding="utf-8")
        found = locked((HERE / name).read_text(encoding="utf-8"))
        mistakes += [f"{name}: {one}; run make lock" for one in disagreements(requirements, found)]
    print("\n".join(mistakes), end="\n" if mistakes else "", file=sys.stderr)
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(main())
