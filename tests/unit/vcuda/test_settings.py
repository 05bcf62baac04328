# SPDX-License-Identifier: Apache-2.0
"""Where quota directories are, and the environment that a command is given."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from vcuda import settings

LIBRARY = Path("/opt/lib/libvcuda.so")


def environment(given: dict[str, str], **extra: str) -> dict[str, str]:
    config = settings.UserSettings(Path("/run/x"), None, given)
    return settings.child_environment(config, library=LIBRARY, directory=Path("/q"), **extra)


def test_the_runtime_directory_when_it_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert settings.read_settings().base_directory == tmp_path / "vcuda"


@pytest.mark.parametrize(
    ("owner", "mode", "user", "may"),
    [
        (1000, 0o700, 1000, True),
        (1000, 0o711, 1000, True),
        (0, 0o700, 1000, False),
        (0, 0o700, 0, False),  # the user that a program of root's becomes could not enter
        (0, 0o711, 0, True),
        (1000, 0o755, 0, False),
    ],
)
def test_whose_runtime_directory_is_used(owner: int, mode: int, user: int, may: bool) -> None:
    info = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))
    assert settings._may_hold_quotas(info, user) is may


@pytest.mark.parametrize("value", ["", "relative", "/nonexistent/run", "/proc/1/root/nonexistent"])
def test_otherwise_a_directory_of_this_user(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    assert settings.read_settings().base_directory == Path(f"/tmp/vcuda-{os.geteuid()}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "/opt/lib/libvcuda.so"),
        ("/a.so", "/a.so:/opt/lib/libvcuda.so"),
        ("/a.so /b.so", "/a.so:/b.so:/opt/lib/libvcuda.so"),
        ("/a.so::/opt/lib/libvcuda.so", "/a.so:/opt/lib/libvcuda.so"),
    ],
)
def test_a_preload_is_kept(before: str, after: str) -> None:
    assert environment({"LD_PRELOAD": before})["LD_PRELOAD"] == after


def test_what_a_command_is_given() -> None:
    given = {"HOME": "/h", "VCUDA_MEMORY_LIMIT": "1GiB", "VCUDA_DIR": "/other", "CUDA_VISIBLE_DEVICES": "3"}
    result = environment(
        {**given, "VCUDA_QUOTA": "another", "VCUDA_CORES": "30", "VCUDA_PHYSICAL_LIMIT": "1GiB"}
    )
    assert result == {
        "HOME": "/h",
        "VCUDA_DIR": "/q",
        "CUDA_VISIBLE_DEVICES": "3",
        "LD_PRELOAD": str(LIBRARY),
    }
    assert environment(given, visible_devices="GPU-1,GPU-2")["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert given["VCUDA_MEMORY_LIMIT"] == "1GiB"


@pytest.mark.parametrize(("path", "fine"), [("/a/b.so", True), ("/a b.so", False), ("/a:b.so", False)])
def test_preloadable_paths(path: str, fine: bool) -> None:
    assert (settings.not_preloadable(Path(path)) == "") is fine


@pytest.mark.parametrize(("value", "own"), [("/q", Path("/q")), ("", None), ("relative", None)])
def test_the_quota_that_we_run_under(value: str, own: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCUDA_DIR", value)
    assert settings.read_settings().own_directory == own


@pytest.mark.parametrize(("name", "own"), [("nb", "quota-nb"), ("", None), ("../nb", None)])
def test_the_name_of_a_quota_goes_before_a_directory_that_was_inherited(
    name: str, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VCUDA_DIR", "/run/env-1")
    monkeypatch.setenv("VCUDA_QUOTA", name)
    found = settings.read_settings()
    assert found.own_directory == (found.base_directory / own if own else Path("/run/env-1"))


@pytest.mark.parametrize(
    ("error", "present"), [(FileNotFoundError, False), (PermissionError, True), (OSError, True)]
)
def test_a_page_that_may_not_be_looked_at_counts(
    error: type[OSError], present: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking it for absent would mean no limit."""

    def refuse(_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refuse)
        found = settings.in_container()
    assert found is present
