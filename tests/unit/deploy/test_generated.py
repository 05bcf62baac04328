# SPDX-License-Identifier: Apache-2.0
"""A program that makes files writes them, and says which are old where it is asked to check them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import generated

Program = Callable[..., int]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """One file that is what the program makes, and one that is not."""
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    fresh, old = tmp_path / "fresh.yaml", tmp_path / "old.yaml"
    fresh.write_text("a: ä\n", encoding="utf-8")
    old.write_text("a: 1\n")
    return fresh, old


@pytest.fixture
def program(files: tuple[Path, Path]) -> Program:
    """The program, which takes what was typed."""
    texts = dict(zip(files, ("a: ä\n", "a: 2\n"), strict=True))
    return lambda *words: generated.write_or_check(lambda: texts, "things", "makes things", words)


def test_it_writes_every_file(program: Program, files: tuple[Path, Path]) -> None:
    files[0].unlink()
    assert program() == 0
    assert [path.read_text(encoding="utf-8") for path in files] == ["a: ä\n", "a: 2\n"]
    assert program("--check") == 0


def test_a_check_names_what_is_old_and_changes_nothing(
    program: Program, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program("--check") == 1
    assert capsys.readouterr().err == "old.yaml: not what the program makes; run make things\n"
    assert files[1].read_text() == "a: 1\n"


def test_a_missing_file_is_old(
    program: Program, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].unlink()
    assert program("--check") == 1
    assert "fresh.yaml, old.yaml: not what" in capsys.readouterr().err
