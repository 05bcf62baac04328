"""`gigaslice dataset pack` as a user sees it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agent import cli


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"content" * 1000)
    return tmp_path / "source"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["dataset", *map(str, words)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def test_a_pack_is_made_and_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: Path) -> None:
    pack = tmp_path / "pack"
    code, out, err = run(capsys, "pack", source, pack)
    assert (code, err) == (0, "")
    assert out.startswith(f"{pack}: 1 files, ") and "BLAKE3" in out
    for words in ((pack,), (source, pack)):
        code, out, err = run(capsys, "pack", "--check", *words)
        assert (code, err) == (0, "")
        assert out.endswith("as it should be\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("pack",), 2, "required"),
        (("pack", "{source}"), 2, "there is no DST"),
        (("pack", "{source}", "{source}/in"), 1, "outside of it"),
        (("pack", "{source}/gone", "{tmp}/pack"), 1, "cannot be opened"),
        (("pack", "--check", "{source}"), 1, "is no pack"),
        (("pack", "--check", "--force", "{source}"), 2, "writes nothing"),
        (("pack", "{source}", "{tmp}/pack", "--fource"), 2, "--fource"),
        (("unpack", "x"), 2, "invalid choice"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], source: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    found, out, err = run(capsys, *(word.format(source=source, tmp=source.parent) for word in words))
    assert (found, out) == (code, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_the_bar_is_for_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent.cli._dataset import pack

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pack._Bar(quiet=False) as bar:
        bar.show("packed", 512, 1024)  # too soon after the beginning
        bar.show("packed", 1024, 1024)
    with pack._Bar(quiet=True) as bar:
        bar.show("packed", 1024, 1024)
    lines = capsys.readouterr().err.split("\r")
    assert [line for line in lines if "%" in line] == [
        line for line in lines if "100% packed 1 KiB of 1 KiB" in line
    ]
    assert len(lines) == 3


def test_without_the_libraries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = run(capsys, "pack", source, source.parent / "pack")
    assert code == 3
    assert "pip install 'gigaslice[dataset]'" in err
