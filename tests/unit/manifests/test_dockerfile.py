# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile, read instead of built: its stages, its packages, and what it copies."""

from __future__ import annotations

import fnmatch
import platform
import re
from pathlib import Path

import pytest

from deploy.image import lock
from tests.unit.manifests.dockerfile import COPIED, INSTRUCTIONS, ROOT, instructions
from vcuda.version import VERSION


def of(name: str, stage: int | None = None) -> list[tuple[str, ...]]:
    """The words of every instruction NAME."""
    return [one.words for one in INSTRUCTIONS if one.name == name and stage in (None, one.stage)]


def pairs(words: tuple[str, ...]) -> dict[str, str]:
    """Names and values, of ENV or LABEL."""
    return dict(zip(words[::2], words[1::2], strict=True))


def ignored(path: str) -> bool:
    """What .dockerignore says of a path at the top: the last line that matches counts."""
    answer = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            if fnmatch.fnmatch(path, pattern.removeprefix("**/")):
                answer = not line.startswith("!")
    return answer


def test_what_only_looks_like_an_instruction_is_none() -> None:
    text = (
        "FROM a\nRUN --mount=type=cache,target=/c <<END\nFROM b\nCOPY x y\nEND\nRUN one \\\n# FROM c\n  two\n"
    )
    read = instructions(text)
    assert [(one.stage, one.name) for one in read] == [(0, "FROM"), (0, "RUN"), (0, "RUN")]
    assert read[1].flags == ("--mount=type=cache,target=/c",)
    assert read[2].words == ("one   two",)


def test_two_stages_of_one_python() -> None:
    first, second = of("FROM")
    assert (first, second) == (("${BASE_IMAGE}", "AS", "build"), ("${BASE_IMAGE}",))
    ((argument,),) = of("ARG")
    version = re.fullmatch(r"BASE_IMAGE=\S+/python:3\.(\d+)-slim-\w+", argument)
    assert version and int(version[1]) >= 10
    assert f"3.{version[1]}" == lock.PYTHON, "the packages are locked for the image's Python"


def test_every_package_comes_by_its_hash() -> None:
    installs = [
        part
        for (script,) in of("RUN")
        for part in script.split("&&")
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


def test_a_trial_on_another_python_has_the_same_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one architecture, and with what that Python alone needs."""
    asked = []

    def chosen(requirements: list[str], architecture: str, python: str) -> dict[str, tuple[str, str]]:
        asked.append((architecture, python))
        pinned = dict(one.split("==") for one in requirements)
        return {name: (version, "0" * 64) for name, version in {**pinned, "exceptiongroup": "1.3"}.items()}

    monkeypatch.setattr(lock, "chosen", chosen)
    lock.write_for("3.11", tmp_path)
    assert asked == [(platform.machine(), "3.11")] * 2
    for name in lock.wanted():
        text = (tmp_path / name).read_text()
        ours = lock.locked((ROOT / "deploy" / "image" / name).read_text())
        found = {package: version for package, (version, _) in lock.locked(text).items()}
        assert found == {package: version for package, (version, _) in ours.items()} | {
            "exceptiongroup": "1.3"
        }
        assert f"for Python 3.11 on {platform.machine()}" in text


@pytest.mark.parametrize("words", [["--python", "3.11"], ["--directory", "x"]])
def test_the_images_own_locks_are_not_written_for_another_python(words, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["lock.py", *words])
    with pytest.raises(SystemExit):
        lock.main()
    assert "go together" in capsys.readouterr().err


def test_the_image_that_runs_has_no_compiler_and_fetches_nothing() -> None:
    assert of("RUN", stage=1) == []
    copies = [one.flags for one in INSTRUCTIONS if one.name == "COPY" and one.stage == 1]
    assert copies and set(copies) == {("--from=build",)}
    assert of("ADD") == []


def test_it_starts_the_command() -> None:
    assert of("ENTRYPOINT", stage=1) == [("gigaslice",)]
    assert of("CMD", stage=1) == [("node",)]
    (environment,) = of("ENV", stage=1)
    assert pairs(environment)["PATH"] == "/opt/gigaslice/bin:$PATH"
    assert pairs(environment)["GRPC_VERBOSITY"] == "ERROR", (
        "else its core's lines stand between those of JSON"
    )
    assert of("COPY", stage=1) == [("/opt/gigaslice", "/opt/gigaslice")]


def test_it_says_which_version_it_is() -> None:
    (labels,) = of("LABEL", stage=1)
    assert pairs(labels)["org.opencontainers.image.version"] == f'"{VERSION}"'


def test_what_is_copied_exists_and_reaches_the_build() -> None:
    assert {"native", "vcuda", "gigaslice", "gigaslice_cli", "agent", "pyproject.toml"} <= set(COPIED)
    assert [source for source in COPIED if not (ROOT / source).exists()] == []
    assert [source for source in COPIED if ignored(source)] == []
    assert [name for name in ("build", "tests", "docs", ".git") if not ignored(name)] == []
    assert ignored("_native.abi3.so"), "the bindings are built in the image and not brought along"
