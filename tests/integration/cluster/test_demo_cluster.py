# SPDX-License-Identifier: Apache-2.0
"""`make demo-cluster` goes through to its end, says so by its exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.control_plane import NEEDED
from tests.demo.clients import DemoError
from tests.demo.cluster import __main__ as command
from tests.demo.cluster.control_plane import Ports
from tests.demo.cluster.real import RealControlPlane
from tests.demo.cluster.stage import chosen
from tests.demo.cluster.stand_ins import StandIns
from tests.demo.machine import ROOT
from tests.demo.test_demo import processes

SECONDS = 120.0  # until the test gives up
CLAIMS = "12 claims held, 0 did not"


def begin(log: Path, *words: str, plane: str = "stand-ins") -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.demo.cluster", "--control-plane", plane, *words],
            cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def left(demo: subprocess.Popen[bytes]) -> list[object]:
    mark = f"gs-demo-{demo.pid}-"
    return [*Path("/tmp").glob(f"{mark}*"), *processes(mark)]


def holds_and_leaves_nothing_behind(log: Path, plane: str) -> str:
    """What the short demo prints."""
    demo = begin(log, "--seconds", "1", plane=plane)
    try:
        code = demo.wait(SECONDS)
    finally:
        demo.kill()
        demo.wait()
    text = log.read_text()
    assert code == 0, text
    assert CLAIMS in text
    assert "PASS  team-a/whole has its GPU" in text
    assert "http://127.0.0.1:" in text
    assert "Traceback" not in text
    assert left(demo) == []
    return text


def interrupted_it_leaves_nothing_behind(log: Path, plane: str, at: str) -> None:
    demo = begin(log, plane=plane)
    try:
        deadline = time.monotonic() + SECONDS
        while at not in log.read_text():
            assert demo.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(SECONDS) == 128 + signal.SIGINT, log.read_text()
    finally:
        demo.kill()
        demo.wait()
    assert "Traceback" not in log.read_text()
    assert left(demo) == []


def test_the_short_demo_holds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    text = holds_and_leaves_nothing_behind(tmp_path / "log", "stand-ins")
    assert "control plane: stand-ins for API server and kube-scheduler (asked for;" in text


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    interrupted_it_leaves_nothing_behind(tmp_path / "log", "stand-ins", "starting the agents")


# --- which control plane ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where binaries are looked for; it has none yet."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("K8S_BIN", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def with_binaries(folder: Path) -> None:
    for name in NEEDED:
        (folder / name).touch(0o755)


def test_a_real_control_plane_is_taken_where_it_is_at_hand(folder: Path, tmp_path: Path) -> None:
    with_binaries(folder)
    found = chosen("auto", tmp_path, Ports())
    assert isinstance(found, RealControlPlane)
    assert f"{', '.join(NEEDED)} from {folder}" in found.description
    assert "CONTROL_PLANE=stand-ins" in found.description
    forced = chosen("stand-ins", tmp_path, Ports())
    assert isinstance(forced, StandIns) and "asked for" in forced.description


def test_stand_ins_say_what_would_make_it_a_real_one(folder: Path, tmp_path: Path) -> None:
    with_binaries(folder)
    (folder / "etcd").unlink()
    found = chosen("auto", tmp_path, Ports())
    assert isinstance(found, StandIns)
    assert f"no etcd in {folder} (K8S_BIN) and PATH" in found.description


def test_a_real_one_that_is_asked_for_and_missing_is_an_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--control-plane", "real"])
    assert ended.value.code == 2
    assert "error: a real control plane is not at hand: no etcd, kube-apiserver" in capsys.readouterr().err
    with pytest.raises(DemoError):
        chosen("real", tmp_path, Ports())
