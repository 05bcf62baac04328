# SPDX-License-Identifier: Apache-2.0
"""What `vcuda doctor` says of WSL2, conda and systemd's units, on machines that are a few files."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcuda import surroundings
from vcuda.finding import Finding

WSL = "6.6.87.2-microsoft-standard-WSL2"
DRIVER = "/usr/lib/wsl/lib/libcuda.so.1"


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    assert finding.level == "ok" or finding.remedy
    return finding


# --- WSL2 ------------------------------------------------------------------------------------------------------------


def test_other_kernels_have_nothing_to_do_with_windows(tmp_path: Path) -> None:
    assert list(surroundings.check_wsl("6.8.0-45-generic", "", tmp_path)) == []


def test_windows_that_gives_no_gpu(tmp_path: Path) -> None:
    finding = only(list(surroundings.check_wsl(WSL, "", touch(tmp_path, DRIVER[1:]))))
    assert (finding.level, finding.subject) == ("fail", "WSL2")
    assert "no /dev/dxg" in finding.text


def test_windows_without_its_driver(tmp_path: Path) -> None:
    finding = only(list(surroundings.check_wsl(WSL, "", touch(tmp_path, "dev/dxg"))))
    assert finding.level == "fail"
    assert DRIVER in finding.text and "none in Linux" in finding.remedy


def test_a_linux_driver_in_front_of_windows_own(tmp_path: Path) -> None:
    root = touch(tmp_path, "dev/dxg", DRIVER[1:])
    finding = only(list(surroundings.check_wsl(WSL, "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35", root)))
    assert finding.level == "fail"
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35" in finding.text


@pytest.mark.parametrize("driver", [DRIVER, "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1/libcuda.so.1.1", ""])
def test_windows_driver_is_not_promised_to_hold_limits(tmp_path: Path, driver: str) -> None:
    finding = only(list(surroundings.check_wsl(WSL, driver, touch(tmp_path, "dev/dxg", DRIVER[1:]))))
    assert finding.level == "warn"
    assert "not tried" in finding.text


# --- conda and other search paths ------------------------------------------------------------------------------------


def test_nothing_is_said_of_a_plain_path(tmp_path: Path) -> None:
    touch(tmp_path, "driver/libcuda.so.1", "env/lib/libcudart.so.12")
    environment = {"LD_LIBRARY_PATH": f"{tmp_path}/driver::relative", "CONDA_PREFIX": f"{tmp_path}/env"}
    assert list(surroundings.check_search_path(environment)) == []
    assert list(surroundings.check_search_path({})) == []


@pytest.mark.parametrize(("name", "level"), [("libcuda.so.1", "fail"), ("libcuda.so", "warn")])
def test_a_stub_on_the_path(tmp_path: Path, name: str, level: str) -> None:
    touch(tmp_path, f"env/lib/stubs/{name}")
    path = f"{tmp_path}/env/lib/stubs"
    environment = {"LD_LIBRARY_PATH": path, "CONDA_PREFIX": f"{tmp_path}/env"}
    finding = only(list(surroundings.check_search_path(environment)))
    assert (finding.level, finding.subject) == (level, "search path")
    assert f"{path}/{name}" in finding.text
    assert finding.remedy == f"take {path} out of LD_LIBRARY_PATH"


@pytest.mark.parametrize("path", ["", "{root}/env/lib"])
def test_a_driver_in_the_conda_environment(tmp_path: Path, path: str) -> None:
    """Programs of the environment find it without LD_LIBRARY_PATH too: their run path is its lib."""
    touch(tmp_path, "env/lib/libcuda.so.1")
    environment = {"LD_LIBRARY_PATH": path.format(root=tmp_path), "CONDA_PREFIX": f"{tmp_path}/env"}
    finding = only(list(surroundings.check_search_path(environment)))
    assert finding.level == "warn"
    assert f"{tmp_path}/env/lib/libcuda.so.1" in finding.text
    assert ("LD_LIBRARY_PATH" in finding.remedy) == bool(path)


def test_cuda_compat_of_conda(tmp_path: Path) -> None:
    touch(tmp_path, "env/cuda-compat/libcuda.so.1")
    environment = {
        "LD_LIBRARY_PATH": f"{tmp_path}/env/cuda-compat",
        "CONDA_PREFIX": f"{tmp_path}/env",
    }
    finding = only(list(surroundings.check_search_path(environment)))
    assert finding.level == "warn" and "cuda-compat and wanted" in finding.remedy


# --- systemd ---------------------------------------------------------------------------------------------------------

SHELL = {"LD_PRELOAD": "/opt/libvcuda.so", "VCUDA_MEMORY_LIMIT": "8GiB"}


def test_a_unit_does_not_have_the_shells_variables() -> None:
    finding = only(list(surroundings.check_units(SHELL, "PATH=/usr/bin\nLANG=C.UTF-8\n")))
    assert finding.level == "warn"
    assert "LD_PRELOAD and VCUDA_MEMORY_LIMIT" in finding.text
    half = only(list(surroundings.check_units(SHELL, "VCUDA_MEMORY_LIMIT=8GiB\n")))
    assert "LD_PRELOAD:" in half.text and "VCUDA_MEMORY_LIMIT" not in half.text


@pytest.mark.parametrize(
    ("environment", "manager"),
    [
        ({}, "PATH=/usr/bin\n"),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so"}, ""),
        (SHELL, None),
        (SHELL, "LD_PRELOAD=/opt/libvcuda.so\nVCUDA_MEMORY_LIMIT=8GiB\n"),
    ],
)
def test_nothing_is_said_where_units_lack_nothing(environment: dict[str, str], manager: str | None) -> None:
    assert list(surroundings.check_units(environment, manager)) == []


def test_a_unit_without_the_logins_runtime_directory(tmp_path: Path) -> None:
    (tmp_path / "1000").mkdir()
    base = Path("/tmp/vcuda-1000")

    def findings(environment: dict[str, str], user: int = 1000) -> list[Finding]:
        return list(surroundings.check_runtime_directory(environment, base, user, tmp_path))

    finding = only(findings({}))
    assert finding.level == "warn"
    assert f"{tmp_path}/1000/vcuda" in finding.text and str(base) in finding.text
    assert findings({"XDG_RUNTIME_DIR": "/run/user/1000"}) == []
    assert findings({}, user=1001) == [], "who has no login has one place alone"
    (tmp_path / "0").mkdir()
    assert findings({}, user=0) == []
