# SPDX-License-Identifier: Apache-2.0
"""`gigaslice dataset pack` as a user sees it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gigaslice_cli import frame


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"content" * 1000)
    return tmp_path / "source"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = frame.main(["dataset", *map(str, words)])
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
        (("unpack", "x"), 2, "did you mean pack?"),
        (("pack", "{source}", "nfs://server/x"), 2, "mount -t nfs"),
        (("pack", "nfs://server/x", "{tmp}/pack"), 2, "name the directory"),
        (("pack", "{source}", "https://server/x"), 1, "cannot be written to"),
        (("pack", "{source}", "{tmp}/pack", "--option", "region=x"), 2, "no options and no credentials"),
        (("pack", "{source}", "s3://packs/x", "--to-option", "region"), 2, "write NAME=VALUE"),
        (("pack", "{source}", "s3://packs/x", "--to-option", "regoin=x"), 2, "did you mean region"),
        (
            ("pack", "{source}", "s3://packs/x", "--to-option", "secret_key=x"),
            2,
            "a directory for --credentials",
        ),
        (("pack", "{source}", "s3://packs/x", "--to-credentials", "{tmp}/gone"), 2, "cannot be read"),
        (("pack", "--check", "{source}", "--to-option", "region=x"), 2, "there is none"),
        (("pack", "--check", "{source}", "--scratch", "{tmp}"), 2, "makes no image"),
        (("pack", "{source}", "{tmp}/pack", "--scratch", "{tmp}"), 2, "leave --scratch out"),
        (("pack", "s3://key:hidden@bucket", "{tmp}/pack"), 2, "a directory for --credentials"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], source: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    found, out, err = run(capsys, *(word.format(source=source, tmp=source.parent) for word in words))
    assert (found, out) == (code, "")
    assert says in err and "hidden" not in err
    assert len(err.splitlines()) == 1


def test_what_is_shown_while_it_packs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gigaslice.roles.dataset_node import packing
    from gigaslice.runtime import progress

    now = [100.0]
    monkeypatch.setattr(progress.StepProgress, "_run", lambda self: None)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = packing.make_pack(source, tmp_path / "made")

    def slow(*_: object, progress: Callable[[str, int, int], None], **__: object) -> object:
        for seconds in range(30):
            now[0] = 100.0 + seconds
            progress("read", seconds << 20, 1 << 30)
            tick()
        return made

    def tick() -> None:
        if progress._Shown.progress is not None:
            progress._Shown.progress.tick()

    monkeypatch.setattr(packing, "make_pack", slow)
    assert run(capsys, "pack", str(source), str(tmp_path / "quiet"), "--quiet")[2] == ""
    now[0] = 100.0
    code, _, err = run(capsys, "pack", str(source), str(tmp_path / "pack"))
    assert code == 0
    assert err.splitlines() == [
        "gigaslice dataset pack: read 2 MiB of 1 GiB, 1 MiB/s, 2 s",
        "gigaslice dataset pack: read 12 MiB of 1 GiB, 1 MiB/s, 12 s",
    ]


def test_a_signal_is_as_an_interrupt_while_it_packs(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only then."""
    before = signal.getsignal(signal.SIGTERM)
    from gigaslice.roles.dataset_node import packing

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr(packing, "make_pack", killed)
    assert frame.main(["dataset", "pack", str(source), str(tmp_path / "pack")]) == 130
    assert signal.getsignal(signal.SIGTERM) is before
