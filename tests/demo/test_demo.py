# SPDX-License-Identifier: Apache-2.0
"""The demo says FAIL when something is not as it should be, adapts to the GPU, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.demo import __main__ as command
from tests.demo import stage
from tests.demo.machine import ROOT, GpuModel, Machine, plan
from tests.demo.report import GIB, Report
from tests.demo.supervise import prefix
from tests.fakes.kubelet import Runtime


def machine(*gpus):
    """GPUs of (total, free) GiB."""
    return Machine(
        True,
        tuple(GpuModel(f"GPU-{n}", "gpu", int(t * GIB), int(f * GIB)) for n, (t, f) in enumerate(gpus)),
        {},
    )


@pytest.mark.parametrize(
    ("gpus", "first", "second", "elsewhere", "waiting"),
    [
        ([(24, 24), (24, 24)], 8, 12, 16, 13),
        ([(140, 139)], 8, 12, 0, 121),
        ([(24, 20)], 6, 10, 0, 9),
        ([(8, 6.5)], 2, 3, 0, 4),
        ([(80, 80), (80, 21)], 8, 12, 61, 80),
    ],
)
def test_sizes_follow_the_gpu(gpus, first, second, elsewhere, waiting):
    one = machine(*gpus)
    sizes = plan(one)
    assert dataclasses.astuple(sizes) == (first, second, elsewhere, waiting)
    assert sizes.first + sizes.second <= min(free for _, free in gpus)
    assert sum(dataclasses.astuple(sizes)) == one.slices + 1


def test_a_claim_that_does_not_hold_is_counted_and_shown(capsys):
    report = Report()
    assert report.claim("two is two", True, "2")
    assert not report.claim("two is three", False, "2")
    assert (report.passed, report.failed) == (1, ["two is three (seen: 2)"])
    out = capsys.readouterr().out
    assert "PASS  two is two" in out
    assert "FAIL  two is three" in out


@pytest.mark.parametrize("words", [["--repeat", "0"], ["--repeat", "x"], ["--nonsense"]])
def test_usage_mistakes(words, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(words)
    assert caught.value.code == 2
    assert words[-1] in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["auto", "plain"])
def test_the_demo_holds(mode, capsys):
    code = command.tell(command.parse(["--simulate", "--namespaces", mode, "--prefix", prefix()]))
    out = capsys.readouterr().out
    assert code == 0, out
    assert "FAIL" not in out
    assert out.count("PASS") > 40
    assert "claims held, 0 did not" in out
    assert ("without namespaces" in out) == (mode == "plain" or Runtime().mode == "plain")


def test_without_the_library_it_fails(capsys, monkeypatch):
    """The proof that its claims are about something: the same, with containers that the library never reaches."""

    class Bare(Runtime):
        def _strip(self, launch):
            mounts = tuple(bind for bind in launch.mounts if bind.target != "/etc/ld.so.preload")
            return dataclasses.replace(launch, mounts=mounts)

        def start(self, launch, logs):
            return super().start(self._strip(launch), logs)

        def exec(self, process, launch, logs):
            return super().exec(process, self._strip(launch), logs)

    monkeypatch.setattr(stage, "Runtime", Bare)
    code = command.tell(command.parse(["--simulate", "--prefix", prefix()]))
    out = capsys.readouterr().out
    assert code == 1, out
    assert "FAIL  pod a: CUDA shows a GPU of 8 GiB" in out
    assert "FAIL  pod a: one byte more than the limit is refused" in out


def processes(mark):
    """Command lines of this machine with MARK in them."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it ended meanwhile
            continue
        if mark.encode() in words:
            found.append(words)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
@pytest.mark.parametrize("at", ["starting the kubelet", "pod b asks for", "the only process is its own"])
def test_an_interrupted_demo_leaves_nothing_behind(number, at, tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as out:
        env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
        demo = subprocess.Popen(
            [sys.executable, "-m", "tests.demo", "--simulate"],
            cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while at not in log.read_text():
            assert demo.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(demo.pid, number)
        assert demo.wait(180) == 128 + number, log.read_text()
    finally:
        demo.kill()
        demo.wait()
    assert "Traceback" not in log.read_text()
    mark = f"gs-demo-{demo.pid}-"
    assert list(Path("/tmp").glob(f"{mark}*")) == []
    assert list(tmp_path.iterdir()) == [log]
    assert processes(mark) == []
