# SPDX-License-Identifier: Apache-2.0
"""Limits pages through the bindings: round trips, live changes, and files in every state of damage."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vcuda
from vcuda import errors

from .conftest import GPU_A, GPU_B, IDENTITY

TOP = (1 << 47) - 1
LIMITS = st.builds(
    vcuda.GpuLimit,
    uuid=st.uuids().map(lambda uuid: f"GPU-{uuid}"),
    memory_bytes=st.integers(1, TOP),
    cores_percent=st.integers(0, 100),
    undeclared_bytes=st.integers(0, TOP),
)


@given(
    gpus=st.lists(LIMITS, min_size=1, max_size=16, unique_by=lambda gpu: gpu.uuid),
    identity=st.binary(min_size=16, max_size=16),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, gpus: list[vcuda.GpuLimit], identity: bytes
) -> None:
    path = tmp_path_factory.mktemp("page") / "limits"
    vcuda.create_limits(path, identity, gpus)
    assert vcuda.read_limits(path) == vcuda.LimitsPage(1, identity, 0, tuple(gpus))


def test_a_mig_instance_keeps_its_prefix(tmp_path: Path) -> None:
    gpu = vcuda.GpuLimit("MIG-6e1b0000-0000-4000-8000-00000000000a", 1 << 30)
    vcuda.create_limits(tmp_path / "limits", IDENTITY, [gpu])
    vcuda.create_ledger(tmp_path / "ledger", IDENTITY, [gpu])
    assert vcuda.read_limits(tmp_path / "limits").gpus == (gpu,)
    assert vcuda.read_ledger(tmp_path / "ledger", [gpu]).gpu_uuids == (gpu.uuid,)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_the_mode_is_the_one_asked_for(tmp_path: Path, gpus: list[vcuda.GpuLimit], mode: int) -> None:
    before = os.umask(0o077)
    try:
        vcuda.create_limits(tmp_path / "limits", IDENTITY, gpus, mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "limits").stat().st_mode) == mode


def test_live_changes(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    path = tmp_path / "limits"
    vcuda.create_limits(path, IDENTITY, gpus)
    inode = path.stat().st_ino
    vcuda.set_memory_limit(path, GPU_B, 3 << 30)
    vcuda.set_undeclared(path, GPU_B, 7)
    vcuda.set_cores_limit(path, GPU_B.upper(), 50)
    page = vcuda.read_limits(path)
    assert page.gpus == (gpus[0], vcuda.GpuLimit(GPU_B, 3 << 30, 50, 7))
    assert page.changes == 3
    assert path.stat().st_ino == inode


def test_the_words_of_later_agents(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    vcuda.create_limits(path, IDENTITY, [vcuda.GpuLimit(GPU_A, 8 << 30)])
    vcuda.set_physical_limit(path, GPU_A, 5 << 30)
    vcuda.set_compute_policy(path, GPU_A, 0x301)
    vcuda.set_allowed(path, GPU_A, 1000)
    vcuda.set_credit(path, GPU_A, (1 << 48) - 1)
    vcuda.set_time_slice(path, GPU_A, 9)
    page = vcuda.read_limits(path)
    assert page.gpus == (
        vcuda.GpuLimit(
            GPU_A,
            8 << 30,
            physical_bytes=5 << 30,
            compute_policy=0x301,
            allowed_permille=1000,
            credit_us=(1 << 48) - 1,
        ),
    )
    assert page.changes == 5
    for setter, value in (
        (vcuda.set_physical_limit, 0),
        (vcuda.set_compute_policy, 1 << 16),
        (vcuda.set_allowed, 1001),
        (vcuda.set_credit, 1 << 48),
        (vcuda.set_time_slice, -1),
    ):
        with pytest.raises(errors.InvalidArgumentError):
            setter(path, GPU_A, value)


@pytest.mark.parametrize("value", [0, -1, TOP + 1, 1 << 64])
def test_a_limit_without_sense_changes_nothing(
    tmp_path: Path, gpus: list[vcuda.GpuLimit], value: int
) -> None:
    path = tmp_path / "limits"
    vcuda.create_limits(path, IDENTITY, gpus)
    before = path.read_bytes()
    with pytest.raises(errors.InvalidArgumentError):
        vcuda.set_memory_limit(path, GPU_A, value)
    assert path.read_bytes() == before
    with pytest.raises(errors.InvalidArgumentError):
        vcuda.create_limits(tmp_path / "other", IDENTITY, [vcuda.GpuLimit(GPU_A, value)])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [vcuda.GpuLimit(f"GPU-6e1b0000-0000-4000-8000-0000000000{i:02x}", 1) for i in range(17)],
        [vcuda.GpuLimit(GPU_A, 1), vcuda.GpuLimit(GPU_A, 1)],
        [vcuda.GpuLimit(GPU_A, 1, cores_percent=101)],
        [vcuda.GpuLimit(GPU_A, 1, cores_percent=1 << 32)],
        [vcuda.GpuLimit(GPU_A, 1, cores_percent=-1)],
        [vcuda.GpuLimit(GPU_A, 1, undeclared_bytes=-1)],
        [vcuda.GpuLimit("GPU-0", 1)],
    ],
)
def test_bad_arguments(tmp_path: Path, bad: list[vcuda.GpuLimit]) -> None:
    with pytest.raises(errors.UsageError):
        vcuda.create_limits(tmp_path / "limits", IDENTITY, bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [0, 15, 17])
def test_an_allocation_id_has_a_length(tmp_path: Path, gpus: list[vcuda.GpuLimit], length: int) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        vcuda.create_limits(tmp_path / "limits", bytes(length), gpus)


def test_an_existing_page_is_left_alone(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    path = tmp_path / "limits"
    vcuda.create_limits(path, IDENTITY, gpus)
    with pytest.raises(errors.ExistsError):
        vcuda.create_limits(path, bytes(16), gpus[:1])
    assert vcuda.read_limits(path).gpus == tuple(gpus)
    assert [entry.name for entry in tmp_path.iterdir()] == ["limits"]


def test_a_gpu_that_is_not_in_the_page(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    vcuda.create_limits(tmp_path / "limits", IDENTITY, gpus[:1])
    with pytest.raises(errors.NotFoundError, match="no such GPU"):
        vcuda.set_memory_limit(tmp_path / "limits", GPU_B, 1)
    with pytest.raises(errors.NotFoundError, match="no such file"):
        vcuda.set_memory_limit(tmp_path / "missing", GPU_B, 1)


def test_no_byte_can_be_damaged_unnoticed(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    """Every single damaged byte is an error, or lies where nothing is kept and changes no limit."""
    path = tmp_path / "limits"
    vcuda.create_limits(path, IDENTITY, gpus)
    good, page = path.read_bytes(), vcuda.read_limits(path)
    noticed = 0
    with path.open("r+b", buffering=0) as file:
        for offset in range(len(good)):
            for mask in (0x01, 0x80, 0xFF):
                os.pwrite(file.fileno(), bytes([good[offset] ^ mask]), offset)
                try:
                    found = vcuda.read_limits(path)
                except (errors.CorruptError, errors.VersionError):
                    noticed += 1
                else:
                    assert (found.gpus, found.allocation_id) == (page.gpus, page.allocation_id), offset
            os.pwrite(file.fileno(), good[offset : offset + 1], offset)
    assert noticed > 3 * 2 * 40  # at least what two GPUs keep
    assert vcuda.read_limits(path) == page


def test_no_other_size_is_a_page(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    path = tmp_path / "limits"
    vcuda.create_limits(path, IDENTITY, gpus)
    full = path.stat().st_size
    for size in [*range(full - 1, -1, -1), full, full + 1, 1 << 20]:
        os.truncate(path, size)
        with pytest.raises(errors.CorruptError):
            vcuda.read_limits(path)


def test_a_later_version_is_told_apart_from_damage(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    path = tmp_path / "limits"
    vcuda.create_limits(path, IDENTITY, gpus)
    with path.open("r+b") as file:
        file.seek(len(b"VCUDALIM"))
        file.write((2).to_bytes(4, "little"))
    with pytest.raises(errors.VersionError):
        vcuda.read_limits(path)


def test_what_is_no_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(errors.VcudaError):
            vcuda.read_limits(path)
        with pytest.raises(errors.VcudaError):
            vcuda.read_ledger(path)


def test_no_permission(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> None:
    vcuda.create_limits(tmp_path / "limits", IDENTITY, gpus, mode=0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(errors.PermissionDeniedError):
            vcuda.read_limits(tmp_path / "limits")
    finally:
        os.seteuid(me)


def test_a_page_and_a_ledger_in_two_steps_are_the_same_as_in_one(tmp_path):
    gpus = [vcuda.GpuLimit(GPU_A, 8 << 30, 30), vcuda.GpuLimit(GPU_B, 1 << 30, physical_bytes=1 << 20)]
    vcuda.create_limits(tmp_path / "one", IDENTITY, gpus)
    vcuda.reserve_limits(tmp_path / "two")
    with pytest.raises(vcuda.errors.CorruptError):
        vcuda.read_limits(tmp_path / "two")
    vcuda.fill_limits(tmp_path / "two", IDENTITY, gpus)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    for some in (gpus, gpus[:1]):
        (tmp_path / "two").unlink()
        vcuda.create_ledger(tmp_path / f"ledger{len(some)}", IDENTITY, some)
        vcuda.reserve_ledger(tmp_path / "two")
        vcuda.fill_ledger(tmp_path / "two", IDENTITY, some)
        assert (tmp_path / f"ledger{len(some)}").read_bytes() == (tmp_path / "two").read_bytes()
    with pytest.raises(vcuda.errors.ExistsError):
        vcuda.reserve_limits(tmp_path / "two")
    for fill in (vcuda.fill_limits, vcuda.fill_ledger):
        with pytest.raises(vcuda.errors.NotFoundError):
            fill(tmp_path / "nowhere", IDENTITY, gpus)
        with pytest.raises(vcuda.errors.InvalidArgumentError):
            fill(tmp_path / "two", IDENTITY, [vcuda.GpuLimit(GPU_A, 0)])
