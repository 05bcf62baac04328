# SPDX-License-Identifier: Apache-2.0
"""``vcuda doctor`` on the simulated driver, and with parts of the machine missing."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakedriver.env import write_machine
from tests.fakes.command import alone, runtime
from tests.fakes.command import environment as clean_environment
from tests.native.running import LIBRARY
from vcuda import contexts, quotas, surroundings
from vcuda import doctor as doctor_module
from vcuda.finding import Finding
from vcuda.limits import GpuLimit

ROOT = Path(__file__).parents[3]
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


def test_a_stub_in_place_of_the_driver(doctor: Doctor, tmp_path: Path) -> None:
    """As NVIDIA's: it has the driver's functions, and each answers that it is a stub."""
    stubs = tmp_path / "lib" / "stubs"
    stubs.mkdir(parents=True)
    names = ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuMemAlloc_v2", "cuGetProcAddress")
    (tmp_path / "stub.c").write_text("".join(f"int {name}() {{ return 34; }}\n" for name in names))
    stub = ["gcc", "-shared", "-fPIC", "-o", str(stubs / "libcuda.so.1"), str(tmp_path / "stub.c")]
    subprocess.run(stub, check=True)
    result = doctor(LD_LIBRARY_PATH=f"{stubs}:{ROOT / 'build' / 'fakedriver'}")
    assert (result.returncode, result.stderr) == (1, "")
    found = levels(result)
    assert (found["search path"], found["CUDA driver"]) == ("fail", "fail")
    assert f"{stubs}/libcuda.so.1 is NVIDIA's stub" in result.stdout
    assert result.stdout.count(f"take {stubs} out of LD_LIBRARY_PATH") == 2


def test_a_linux_driver_under_wsl(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    monkeypatch.setattr(doctor_module.platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    monkeypatch.setattr(
        doctor_module, "_run_probe", lambda _: {"init": 0, "version": 12080, "driver": driver}
    )
    asked: list[str] = []

    def check(release: str, file: str) -> list[Finding]:
        asked.append(f"{release} {file}")
        return [Finding("fail", "WSL2", "", "")]

    monkeypatch.setattr(surroundings, "check_wsl", check)
    assert "WSL2" in [finding.subject for finding in doctor_module._check_driver({})]
    assert asked == [f"6.6.87.2-microsoft-standard-WSL2 {driver}"]


def test_units_of_the_user_lack_the_shells_variables(doctor: Doctor, tmp_path: Path) -> None:
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text('#!/bin/sh\n[ "$*" = "--user show-environment" ] && echo PATH=/usr/bin\n')
    systemctl.chmod(0o755)
    path = f"{systemctl.parent}:/usr/bin:/bin"
    assert "systemd units" not in levels(doctor(PATH=path))
    result = doctor(PATH=path, VCUDA_MEMORY_LIMIT="8GiB")
    assert levels(result)["systemd units"] == "warn", result.stdout
    systemctl.write_text("#!/bin/sh\nexit 1\n")
    assert "systemd units" not in levels(doctor(PATH=path, VCUDA_MEMORY_LIMIT="8GiB"))


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


# --- variables with limits ----------------------------------------------------------------------------------------


def of_limits(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line[:6] + line[27:] for line in result.stdout.splitlines() if line[6:26].strip() == "limits"]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"VCUDA_MEMORY_LIMIT": "8GB"},
            'fail  VCUDA_MEMORY_LIMIT: "8GB" is not a size; write a number with KiB, MiB, GiB or TiB, as in 8GiB, '
            "above 0 and below 128 TiB (8G is 8GiB; 8GB is refused)",
        ),
        (
            {"VCUDA_CORES": "30"},
            "fail  VCUDA_CORES is set without VCUDA_MEMORY_LIMIT; a share of the time goes with one of the memory, "
            "set both",
        ),
        ({"VCUDA_MEMORY_LIMIT": "30GiB"}, "warn  30GiB are more than GPU 0 has, 24 GiB; set less"),
    ],
)
@pytest.mark.parametrize("loaded", [True, False])
def test_variables_that_make_no_sense(doctor: Doctor, variables, says: str, loaded: bool) -> None:
    result = doctor(**variables, **({"LD_PRELOAD": str(LIBRARY)} if loaded else {}))
    lines = of_limits(result)
    assert says in lines, result.stdout
    unheard = [line for line in lines if "the library is not loaded" in line]
    assert len(unheard) == (not loaded)
    assert result.stderr == ""


def test_a_limit_that_nothing_obeys(doctor: Doctor, tmp_path: Path) -> None:
    result = doctor(VCUDA_MEMORY_LIMIT="8GiB")
    assert result.returncode == 1
    assert of_limits(result)[0] == (
        "fail  VCUDA_MEMORY_LIMIT is set, but the library is not loaded: what is started here has no limit; "
        f"export LD_PRELOAD={LIBRARY}, or use vcuda run"
    )
    result = doctor(VCUDA_MEMORY_LIMIT="0=8GiB", LD_PRELOAD=str(LIBRARY))
    assert result.returncode == 0
    (line,) = of_limits(result)
    assert line.startswith("ok    GPU-") and line.endswith(" 8GiB")
    assert not list((tmp_path / "runtime" / "vcuda").iterdir()), "it has made no quota"
    assert "24 GiB" in result.stdout, "the card's own memory"


def test_limits_that_vcuda_run_would_warn_of(doctor: Doctor, tmp_path: Path) -> None:
    base = tmp_path / "runtime" / "vcuda"
    uuid = next(line.split()[-1] for line in doctor().stdout.splitlines() if " GPU 0 " in line)
    left = quotas.create_in(quotas.private_base(base), [GpuLimit(uuid, 16 << 30)], ["python", "train.py"])
    limited = {"LD_PRELOAD": str(LIBRARY), "VCUDA_MEMORY_LIMIT": "16GiB"}
    assert of_limits(doctor(**limited)) == [
        "warn  GPU 0 has 24 GiB, and 32 GiB of it are promised now (16 GiB to python train.py): programs may find it "
        "full although their quotas have room; set less, or end one of them"
    ]
    assert quotas.remove_if_unused(left, launcher_done=True)
    driver = re.search(r"NVML +driver (\S+),", doctor().stdout)
    assert driver is not None
    contexts.keep(base, driver[1], {uuid: 100 << 20})
    assert of_limits(doctor(**{**limited, "VCUDA_MEMORY_LIMIT": "50MiB"})) == [
        "fail  50MiB are less than a context takes of GPU 0: one took 100MiB; set that and what the program needs "
        "besides"
    ]
