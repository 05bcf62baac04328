"""Quota directories: made whole, joined only on equal terms, removed only when no process can need them."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vcuda
from vcuda import errors, quotas

from .conftest import GPU_A, GPU_B

OPEN = 0o711 if os.geteuid() == 0 else 0o700


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return quotas.private_base(tmp_path / "vcuda")


@pytest.fixture
def sleeper() -> Iterator[Callable[[dict[str, str]], subprocess.Popen[bytes]]]:
    """Starts processes with a given environment that wait until their stdin closes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
        code = "import sys; print(flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def forget_launcher(directory: Path) -> None:
    """As if the launcher had ended: its PID now has another start time."""
    noted = json.loads((directory / "command.json").read_text())
    noted["launcher_start"] -= 1
    (directory / "command.json").write_text(json.dumps(noted))


def test_a_fresh_directory_is_complete(base: Path, gpus: list[vcuda.GpuLimit]) -> None:
    directory = quotas.create_in(base, gpus, ["python", "train\n.py"])
    assert directory.stat().st_mode & 0o777 == OPEN
    assert {entry.name for entry in directory.iterdir()} == {"limits", "ledger", "command.json"}
    quota = quotas.read_quota(directory)
    assert (quota.kind, quota.name) == ("command", r"python train\n.py")
    assert quota.limits.gpus == tuple(gpus)
    assert quotas.find_quotas(base) == [directory]
    noted = json.loads((directory / "command.json").read_text())
    assert noted["launcher"] == os.getpid() and noted["pid"] == 0 and noted["version"] == 1
    quotas.write_command(directory, ["python"], 4711)
    assert json.loads((directory / "command.json").read_text())["pid"] == 4711


def test_nothing_is_left_of_a_directory_that_cannot_be_made(base: Path) -> None:
    with pytest.raises(errors.UsageError):
        quotas.create_in(base, [vcuda.GpuLimit(GPU_A, 0)], ["x"])
    assert list(base.iterdir()) == []


def test_a_base_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for path in (tmp_path / "link", tmp_path / "file", tmp_path / "missing" / "deeper"):
        with pytest.raises(errors.PermissionDeniedError):
            quotas.private_base(path)
    (tmp_path / "real").chmod(0o777)
    assert quotas.private_base(tmp_path / "real").stat().st_mode & 0o777 == OPEN


@pytest.mark.parametrize(("user", "mode"), [(0, 0o711), (1000, 0o700)])
def test_only_roots_directories_can_be_entered_by_others(
    base: Path, gpus: list[vcuda.GpuLimit], monkeypatch: pytest.MonkeyPatch, user: int, mode: int
) -> None:
    """What root starts may become another user; what a user starts may not."""
    monkeypatch.setattr(quotas.os, "geteuid", lambda: user)
    directory = quotas.create_in(base, gpus, ["x"])
    assert directory.stat().st_mode & 0o777 == mode
    assert len(directory.name.rpartition("-")[2]) == 24, "a user who may enter the base has to know the name"
    assert (directory / "limits").stat().st_mode & 0o777 == 0o644
    assert (directory / "ledger").stat().st_mode & 0o777 == 0o666


def test_a_named_directory_is_shared_on_equal_terms(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    directory = tmp_path / "deep" / "quota"
    assert quotas.open_named(directory, gpus) == directory
    before = quotas.read_quota(directory)
    quotas.open_named(directory, list(reversed(gpus)))
    assert quotas.read_quota(directory) == before
    for other in (
        gpus[:1],
        [gpus[0], vcuda.GpuLimit(GPU_B, 13 << 30)],
        [gpus[1], vcuda.GpuLimit(GPU_A, 8 << 30, 31)],
    ):
        with pytest.raises(errors.UsageError, match="12GiB"):
            quotas.open_named(directory, other)
    assert quotas.read_quota(directory) == before


def test_a_ledger_that_is_missing_is_made_for_the_page(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    directory = quotas.open_named(tmp_path / "quota", gpus)
    (directory / "ledger").unlink()
    quotas.open_named(directory, gpus)
    quota = quotas.read_quota(directory)
    assert quota.usage.allocation_id == quota.limits.allocation_id


def test_a_ledger_of_another_page_is_refused(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    directory = quotas.open_named(tmp_path / "quota", gpus)
    (directory / "limits").unlink()
    with pytest.raises(errors.MismatchError):
        quotas.open_named(directory, gpus)


def test_many_join_a_named_directory_at_once(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    for round_number in range(20):
        directory = tmp_path / str(round_number)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            opened = set(pool.map(lambda path: quotas.open_named(path, gpus), [directory] * 8))
        assert opened == {directory}
        quota = quotas.read_quota(directory)
        assert quota.usage.allocation_id == quota.limits.allocation_id


def test_names_for_people(quota: Callable[[str], Path]) -> None:
    directory = quota("plain")
    assert (quotas.read_quota(directory).kind, quotas.read_quota(directory).name) == ("directory", "plain")
    (directory / "owner.json").write_text('{"namespace": "a", "pod": "b", "container": "c"}')
    assert (quotas.read_quota(directory).kind, quotas.read_quota(directory).name) == ("container", "a/b/c")
    for damaged in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"command": "x"}', b'{"command": []}'):
        (directory / "command.json").write_bytes(damaged)
        assert quotas.read_quota(directory).name == "a/b/c"


def test_a_directory_stays_while_its_launcher_lives(base: Path, gpus: list[vcuda.GpuLimit]) -> None:
    directory = quotas.create_in(base, gpus, ["x"])
    assert quotas.sweep(base) == 0
    assert quotas.find_quotas(base) == [directory]
    forget_launcher(directory)
    assert quotas.sweep(base) == 1
    assert list(base.iterdir()) == []


def test_a_directory_stays_while_a_process_has_it_in_its_environment(
    base: Path, gpus: list[vcuda.GpuLimit], sleeper: Callable[[dict[str, str]], subprocess.Popen[bytes]]
) -> None:
    """A background child that did not touch the GPU yet must still meet its limit."""
    directory = quotas.create_in(base, gpus, ["x"])
    child = sleeper({"VCUDA_DIR": str(directory)})
    sleeper({"VCUDA_DIR": f"{directory}-not"})
    assert quotas.remove_if_unused(directory, launcher_done=True) is False
    finish(child)
    assert quotas.remove_if_unused(directory, launcher_done=True) is True
    assert list(base.iterdir()) == []


def test_a_process_that_is_becoming_another_program_keeps_its_directory(tmp_path: Path) -> None:
    """While a program is loaded, the kernel shows no environment of its process."""
    again = "import os, sys; os.execve(sys.executable, [sys.executable, '-S', '-c', os.environ['CODE']], os.environ)"
    environment = {"VCUDA_DIR": str(tmp_path), "CODE": again}
    child = subprocess.Popen([sys.executable, "-S", "-c", again], env=environment)
    try:
        while not Path(f"/proc/{child.pid}/environ").read_bytes():
            pass
        shown = [quotas._environment(child.pid) for _ in range(20_000)]
        assert b"" in shown, "else this test shows nothing"
        assert all(quotas._is_in_an_environment(tmp_path) for _ in range(300))
    finally:
        child.kill()
        child.wait()
    assert not quotas._is_in_an_environment(tmp_path)


def test_a_process_with_no_environment_at_all_keeps_no_directory(tmp_path: Path) -> None:
    bare = subprocess.Popen(["/bin/sleep", "100"], env={})
    try:
        while not Path(f"/proc/{bare.pid}/cmdline").read_bytes().startswith(b"/bin/sleep"):
            pass
        assert quotas._environment(bare.pid) == b""
        assert not quotas._is_in_an_environment(tmp_path)
    finally:
        bare.kill()
        bare.wait()


def test_a_program_that_takes_long_to_be_loaded_keeps_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stands in execve(2) for longer than is waited; nothing tells whose it is."""
    monkeypatch.setattr(quotas, "_environment", lambda pid: b"" if pid == os.getpid() else None)
    monkeypatch.setattr(quotas, "_has_arguments", lambda pid: False)
    assert quotas._is_in_an_environment(tmp_path)


def test_what_is_damaged_is_swept_and_what_is_not_ours_is_left(
    base: Path, gpus: list[vcuda.GpuLimit]
) -> None:
    broken = quotas.create_in(base, gpus, ["x"])
    (broken / "ledger").write_bytes(b"garbage")
    forget_launcher(broken)
    for name in (".new-4194999-00", ".new-x", ".dead-00"):
        (base / name).mkdir()
    (base / f".new-{os.getpid()}-00").mkdir()
    quotas.open_named(base / "default", gpus)
    quotas.sweep(base)
    assert {entry.name for entry in base.iterdir()} == {f".new-{os.getpid()}-00", "default"}


def test_sweeping_what_is_not_there(tmp_path: Path) -> None:
    assert quotas.sweep(tmp_path / "missing") == 0
    assert quotas.find_quotas(tmp_path / "missing") == []
    assert quotas.remove_if_unused(tmp_path / "missing") is False
