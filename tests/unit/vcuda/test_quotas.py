# SPDX-License-Identifier: Apache-2.0
"""Quota directories: made whole, joined only on equal terms, removed only when no process can need them."""

from __future__ import annotations

import concurrent.futures
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vcuda
from vcuda import errors, quotas
from vcuda._bridge import lib

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


def is_named(directory: Path, proc: Path = Path("/proc")) -> bool:
    return bool(lib.quota_is_named(bytes(proc), bytes(directory)))


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
        with pytest.raises(errors.UsageError, match=f"{GPU_B} 12GiB"):
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
    shown = Path(f"/proc/{child.pid}/environ")
    try:
        while not shown.read_bytes():
            pass
        assert b"" in [shown.read_bytes() for _ in range(20_000)], "else this test shows nothing"
        assert all(is_named(tmp_path) for _ in range(300))
    finally:
        child.kill()
        child.wait()
    assert not is_named(tmp_path)


def test_a_process_with_no_environment_at_all_keeps_no_directory(tmp_path: Path) -> None:
    bare = subprocess.Popen(["/bin/sleep", "100"], env={})
    try:
        while not Path(f"/proc/{bare.pid}/cmdline").read_bytes().startswith(b"/bin/sleep"):
            pass
        assert Path(f"/proc/{bare.pid}/environ").read_bytes() == b""
        assert not is_named(tmp_path)
    finally:
        bare.kill()
        bare.wait()


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., Path]:
    """A /proc with one process as it would be shown."""

    def make(
        environ: bytes = b"A=b\0", cmdline: bytes = b"x\0", statm: bytes = b"9 9", maps: str = ""
    ) -> Path:
        process = tmp_path / "proc" / "4711"
        process.mkdir(parents=True)
        for name, text in (("environ", environ), ("cmdline", cmdline), ("statm", statm)):
            (process / name).write_bytes(text)
        (process / "maps").write_text(maps)
        (tmp_path / "proc" / "self").mkdir()
        return tmp_path / "proc"

    return make


@pytest.mark.parametrize(
    ("cmdline", "statm", "named"),
    [(b"", b"9 9", True), (b"x\0", b"9 9", False), (b"", b"0 0", False)],
    ids=["in execve", "no environment", "no memory"],
)
def test_a_program_that_takes_long_to_be_loaded_keeps_every_directory(
    shown: Callable[..., Path], cmdline: bytes, statm: bytes, named: bool
) -> None:
    """Its process stands in execve(2) for longer than is waited; nothing tells whose it is."""
    assert is_named(Path("/b/run-1-x"), shown(b"", cmdline, statm)) is named


@pytest.mark.parametrize(
    ("directory", "environ", "maps", "named"),
    [
        ("/b/run-1-x", b"A=b\0VCUDA_DIR=/b/run-1-x\0", "", True),
        ("/b/run-1-x", b"A=b\0VCUDA_DIR=/b/run-1-x", "", True),
        ("/b/run-1-x", b"XVCUDA_DIR=/b/run-1-x\0VCUDA_DIR=/b/run-1-xy\0VCUDA_DIR=/b/run-1-\0", "", False),
        ("/b/env-1-x", b"A=b\0", "7f-80 r--s 0 08:01 5      /real/b/env-1-x/limits\n", False),
        ("/b/env-1-x", b"A=b\0", "7f-80 rw-s 0 08:01 5      /real/b/env-1-x/ledger\n", True),
        ("/b/env-1-x", b"A=b\0", "7f-80 rw-s 0 08:01 5      /b/.dead-1/ledger (deleted)\n", False),
        ("/b/env-1-x", b"A=b\0", "7f-80 rw-s 0 08:01 5      /b/env-1-xy/ledger\n7f-80 rw-s 0 0\n", False),
        ("/tmp/vcuda-1/quota-nb", b"VCUDA_QUOTA=nb\0", "", True),
        ("/tmp/vcuda-1/quota-nb", b"VCUDA_QUOTA=n\0VCUDA_QUOTA=nbb\0", "", False),
        ("/run/user/1/vcuda/quota-nb", b"VCUDA_QUOTA=nb\0XDG_RUNTIME_DIR=/run/user/1\0", "", True),
        ("/run/user/1/vcuda/quota-nb", b"VCUDA_QUOTA=nb\0XDG_RUNTIME_DIR=/run/user\0", "", False),
        ("/run/user/1/vcuda/quota-nb", b"VCUDA_QUOTA=nb\0", "", False),
        ("/b/env-nb", b"VCUDA_QUOTA=nb\0", "", False),
        ("/b/run-1-x", b"L=" + b"x" * 9000 + b"\0VCUDA_DIR=/b/run-1-x\0", "", True),
    ],
)
def test_how_a_process_names_a_directory(
    shown: Callable[..., Path], directory: str, environ: bytes, maps: str, named: bool
) -> None:
    assert is_named(Path(directory), shown(environ, maps=maps)) is named


def test_where_processes_are_not_to_be_seen_every_directory_is_kept(tmp_path: Path) -> None:
    assert is_named(Path("/b/run-1-x"), tmp_path / "missing")


def test_what_the_library_makes_is_swept_likewise(base: Path, gpus: list[vcuda.GpuLimit]) -> None:
    head = base / f"env-{os.getpid()}-{'0' * 24}-{'0' * 16}"
    quotas.create_in(base, gpus, ["x"]).rename(head)
    named = quotas.open_named(base / "quota-nb", gpus)
    child = subprocess.Popen(
        ["/bin/cat"], env={"VCUDA_QUOTA": "nb", "XDG_RUNTIME_DIR": str(base.parent)}, stdin=subprocess.PIPE
    )
    while Path(f"/proc/{child.pid}/cmdline").read_bytes() != b"/bin/cat\0":
        pass
    assert quotas.sweep(base) == 0, "one's head lives, the other is named"
    child.communicate()
    forget_launcher(head)
    assert quotas.sweep(base) == 2
    assert list(base.iterdir()) == []
    assert not named.exists()


def test_a_base_that_is_locked_is_not_waited_for(base: Path, gpus: list[vcuda.GpuLimit]) -> None:
    """Who joins or makes a quota keeps it; what is left is swept the next time."""
    directory = quotas.create_in(base, gpus, ["x"])
    forget_launcher(directory)
    lock = os.open(base, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert quotas.sweep(base) == 0
    os.close(lock)
    assert quotas.sweep(base) == 1


def test_all_that_is_in_a_directory_goes_with_it_and_nothing_else(
    base: Path, gpus: list[vcuda.GpuLimit], tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("x")
    directory = quotas.create_in(base, gpus, ["x"])
    (directory / "preload" / "lib" / "deep").mkdir(parents=True)
    for folder in ("preload", "preload/lib/deep"):
        (directory / folder / "link").symlink_to(tmp_path)
        (directory / folder / "file").symlink_to(tmp_path / "kept")
    assert quotas.remove_if_unused(directory, launcher_done=True)
    assert list(base.iterdir()) == []
    assert (tmp_path / "kept").read_text() == "x"


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


def test_a_quota_of_the_same_name_in_another_base_is_another(
    tmp_path: Path, gpus: list[vcuda.GpuLimit], shown: Callable[..., Path]
) -> None:
    ours, other = (quotas.open_named(tmp_path / base / "quota-nb", gpus) for base in ("a", "b"))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    proc = shown(maps=f"7f-80 rw-s 0 08:01 5      {ours}/ledger\n")
    assert is_named(ours, proc)
    assert is_named(tmp_path / "link" / "quota-nb", proc)
    assert not is_named(other, proc)
