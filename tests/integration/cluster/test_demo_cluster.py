"""`make demo-cluster` goes through to its end, says so by its exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.demo.machine import ROOT
from tests.demo.test_demo import processes

SECONDS = 120.0  # until the test gives up


def begin(log: Path, *words: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.demo.cluster", *words],
            cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def left(demo: subprocess.Popen[bytes]) -> list[object]:
    mark = f"gs-demo-{demo.pid}-"
    return [*Path("/tmp").glob(f"{mark}*"), *processes(mark)]


def test_the_short_demo_holds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    demo = begin(log, "--seconds", "1")
    try:
        code = demo.wait(SECONDS)
    finally:
        demo.kill()
        demo.wait()
    text = log.read_text()
    assert code == 0, text
    assert "11 claims held, 0 did not" in text
    assert "PASS  team-a/whole has its GPU" in text
    assert "http://127.0.0.1:" in text
    assert "Traceback" not in text
    assert left(demo) == []


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    demo = begin(log)
    try:
        deadline = time.monotonic() + SECONDS
        while "starting the agents" not in log.read_text():
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
