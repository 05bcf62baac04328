# SPDX-License-Identifier: Apache-2.0
"""Checks of ``vcuda doctor`` for what lies around a program on a workstation: WSL2, conda, systemd's units.

Each has its own way of giving a program another driver, environment or directory than the shell has in which
``vcuda doctor`` is typed. Nothing is said where there is none of it. What the kernel and systemd say is read by the
caller, and files are looked for below a ROOT, so that each of these machines can be had in a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from vcuda import contract
from vcuda.finding import Finding

__all__ = [
    "STUB_LIBRARY",
    "check_runtime_directory",
    "check_search_path",
    "check_units",
    "check_wsl",
    "stub_finding",
]

STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY
_WSL_DRIVER = "usr/lib/wsl/lib/libcuda.so.1"
_VARIABLES = ("LD_PRELOAD", contract.ENV_MEMORY_LIMIT)


def check_wsl(release: str, driver: str, root: Path = Path("/")) -> Iterator[Finding]:
    """Whether a program under WSL2 has Windows' driver.

    Args:
        release: the kernel's.
        driver: path of the libcuda.so.1 that a program loads, "" for none.
        root: below which the system lies.
    """
    if "microsoft" not in release.lower():
        return
    windows = "install NVIDIA's driver in Windows and none in Linux, then `wsl --update` and `wsl --shutdown`"
    if not (root / "dev/dxg").exists():
        yield Finding("fail", "WSL2", "there is no /dev/dxg: Windows gives this system no GPU", windows)
    elif not (root / _WSL_DRIVER).exists():
        yield Finding("fail", "WSL2", f"there is no /{_WSL_DRIVER}, which Windows puts there", windows)
    elif driver and "/wsl/" not in driver:
        text = f"programs load {driver}, not Windows' driver in /usr/lib/wsl"
        remedy = "remove the driver's packages from Linux, then run `sudo ldconfig` and this again"
        yield Finding("fail", "WSL2", text, remedy)
    else:
        text = (
            "Windows' driver is used, on which limits were not tried; it shows no processes of other programs"
        )
        remedy = "believe the lines `via …` below, and try a program that asks for more than its limit"
        yield Finding("warn", "WSL2", text, remedy)


def check_search_path(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Drivers that LD_LIBRARY_PATH or a conda environment puts before the system's: stubs, and copies of their own."""
    conda = environment.get("CONDA_PREFIX", "")
    listed = [entry for entry in environment.get("LD_LIBRARY_PATH", "").split(":") if entry.startswith("/")]
    own = f"{conda}/lib" if conda.startswith("/") else ""
    for entry in dict.fromkeys([*listed, own] if own else listed):
        names = [name for name in ("libcuda.so.1", "libcuda.so") if (Path(entry) / name).exists()]
        if not names:
            continue
        where = "LD_LIBRARY_PATH" if entry in listed else "the conda environment"
        remedy = f"take {entry} out of LD_LIBRARY_PATH" if entry in listed else f"remove {entry}/libcuda.so*"
        if "stubs" in Path(entry).parts:
            text = f"{where} leads to NVIDIA's stub {entry}/{names[0]}, which is for linking and finds no GPU"
            # Few programs open libcuda.so, all others libcuda.so.1.
            yield Finding("fail" if names[0] == "libcuda.so.1" else "warn", "search path", text, remedy)
        elif conda and Path(entry).is_relative_to(conda):
            text = f"{where} has a driver of its own, {entry}/{names[0]}, which goes before the system's"
            yield Finding("warn", "search path", text, f"{remedy}, unless it is cuda-compat and wanted")


def stub_finding(driver: str) -> Finding:
    """A driver that answers that it is none."""
    text = f"{driver or 'libcuda.so.1'} is NVIDIA's stub, which is for linking and finds no GPU"
    folder = str(Path(driver).parent) if driver else "its directory"
    return Finding("fail", "CUDA driver", text, f"take {folder} out of LD_LIBRARY_PATH")


def check_units(environment: Mapping[str, str], manager: str | None) -> Iterator[Finding]:
    """Whether units of the user's systemd have the variables that this shell has.

    Args:
        environment: this process's.
        manager: what ``systemctl --user show-environment`` prints; None where there is no such manager.
    """
    if manager is None or contract.ENV_MEMORY_LIMIT not in environment:
        return
    names = {line.partition("=")[0] for line in manager.splitlines()}
    missing = [name for name in _VARIABLES if name in environment and name not in names]
    if missing:
        text = f"user units do not have this shell's {' and '.join(missing)}: what they start has no limit"
        remedy = "write ExecStart=…/vcuda run --memory … -- PROGRAM into the unit"
        yield Finding("warn", "systemd units", text, remedy)


def check_runtime_directory(
    environment: Mapping[str, str], base: Path, user: int, run_user: Path = Path("/run/user")
) -> Iterator[Finding]:
    """Whether quotas are where the user's other programs have theirs; system units and cron have no XDG_RUNTIME_DIR."""
    runtime = run_user / str(user)
    if user == 0 or environment.get("XDG_RUNTIME_DIR") or not runtime.is_dir():
        return  # root's quotas are in /tmp anyhow
    text = f"XDG_RUNTIME_DIR is not set: quotas are in {base}, those of your login in {runtime}/vcuda"
    remedy = f"set XDG_RUNTIME_DIR={runtime}, or `vcuda ps` of one does not show those of the other"
    yield Finding("warn", "runtime directory", text, remedy)
