# SPDX-License-Identifier: Apache-2.0
"""A machine for the command `vcuda`: its environment, where quotas lie, and what starts the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.command import environment as clean_environment
from tests.fakes.command import runtime
from tests.integration.vcuda.programs import FORWARDED, ROOT, VCUDA, Run


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **clean_environment("CUDA_VISIBLE_DEVICES"),
        "LD_LIBRARY_PATH": str(ROOT / "build" / "fakedriver"),
        "FAKEDRIVER_MACHINE": str(ROOT / "tests" / "fakedriver" / "machines" / "two-24g.txt"),
        "FAKEDRIVER_STATE": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(runtime(tmp_path)),
    }


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "runtime" / "vcuda"


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def call(*words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*VCUDA, *map(str, words)],
            env={**environment, **extra},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=100,
            check=False,
        )

    return call


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def fresh() -> None:
        for number in FORWARDED:  # a shell may ignore some of them (nohup), which is inherited
            signal.signal(number, signal.SIG_DFL)

    def call(*words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*VCUDA, *map(str, words)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=fresh,  # noqa: PLW1509 - the tests have one thread
        )
        started.append(process)
        return process

    yield call
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
