"""``vcuda doctor`` on the simulated driver, and with parts of the machine missing."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.fakes.command import alone, runtime
from tests.fakes.command import environment as clean_environment
from vcuda import doctor as doctor_module

ROOT = Path(__file__).parents[2]
Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    environment = {
        **clean_environment("CUDA_VISIBLE_DEVICES"),
        "LD_LIBRARY_PATH": str(ROOT / "build" / "fakedriver"),
        "FAKEDRIVER_MACHINE": str(ROOT / "tests" / "fakedriver" / "machines" / "two-24g.txt"),
        "FAKEDRIVER_STATE": str(tmp_path / "state"),
        "XDG_RUNTIME_DIR": str(runtime(tmp_path)),
    }

    def call(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*alone(), "doctor", *words],
            env={**environment, **extra},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return call


def levels(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Level by subject."""
    return {line[6:26].strip(): line[:5].strip() for line in result.stdout.splitlines()}


def test_everything_is_well(doctor: Doctor, tmp_path: Path) -> None:
    result = doctor(sys.executable)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    found = levels(result)
    assert set(found.values()) == {"ok"}
    assert {
        "glibc",
        "NVML",
        "GPU 0",
        "GPU 1",
        "CUDA driver",
        "permissions",
        "record locks",
        "library",
    } <= set(found)
    assert {"via dlsym", "via cuGetProcAddress", "program"} <= set(found)
    assert "CUDA 1" in result.stdout
    assert list((tmp_path / "runtime" / "vcuda").iterdir()) == []


def test_a_gpu_that_cannot_move_pages(doctor: Doctor, tmp_path: Path) -> None:
    assert levels(doctor())["host memory"] == "ok"
    machine = write_machine(tmp_path, like="two-24g", managed_access="no")
    result = doctor(FAKEDRIVER_MACHINE=str(machine), FAKEDRIVER_STATE=str(tmp_path / "other"))
    assert levels(result)["host memory"] == "warn"
    assert "GPU 0, 1: allocations beyond a physical share are refused" in result.stdout


def test_no_driver(doctor: Doctor, tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).touch()  # hides the real ones where there are any
    result = doctor(LD_LIBRARY_PATH=str(tmp_path))
    assert (result.returncode, result.stderr) == (1, "")
    found = levels(result)
    assert (found["NVML"], found["CUDA driver"]) == ("fail", "fail")
    assert (found["library"], found["interception"]) == ("ok", "warn")
    for line in result.stdout.splitlines():
        assert line.startswith("ok") or "; " in line  # what is not well says what to do


def test_a_program_that_no_library_can_reach(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF")
    (tmp_path / "broken").chmod(0o755)
    assert levels(doctor(str(tmp_path / "broken")))["program"] == "fail"
    assert levels(doctor("no-such-program"))["program"] == "fail"


def test_a_runtime_directory_that_is_not_ours(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "runtime" / "vcuda").touch()
    result = doctor()
    assert result.returncode == 1
    assert levels(result)["permissions"] == "fail"


def test_a_file_system_without_locks_of_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_module.check_locks(tmp_path, "move").level == "ok"
    real = fcntl.fcntl

    def without(file: object, command: int, *rest: object) -> object:
        return b"" if command == fcntl.F_OFD_SETLK else real(file, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "fcntl", without)
    found = doctor_module.check_locks(tmp_path, "move")
    assert (found.level, found.remedy) == ("fail", "move")
    assert "do not exclude each other" in found.text
