# SPDX-License-Identifier: Apache-2.0
"""Ledgers through the bindings: empty ones, damaged ones and ones that grew. Charges are tested with the library."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

import vcuda
from tests.fakes.descriptors import open_below
from vcuda import errors

from .conftest import GPU_A, GPU_B, IDENTITY


@pytest.fixture
def ledger(tmp_path: Path, gpus: list[vcuda.GpuLimit]) -> Path:
    path = tmp_path / "ledger"
    vcuda.create_ledger(path, IDENTITY, gpus)
    return path


def test_a_new_ledger_is_empty(ledger: Path) -> None:
    usage = vcuda.read_ledger(ledger)
    none = {GPU_A: 0, GPU_B: 0}
    assert usage == vcuda.LedgerUsage(1, IDENTITY, (GPU_A, GPU_B), none, (), none, none)
    assert usage.used(GPU_A) == 0
    assert ledger.stat().st_size == vcuda.ledger_file_bytes()
    assert ledger.stat().st_blocks * 512 >= vcuda.ledger_file_bytes()  # a full disk shows now, not at a store


def test_an_existing_ledger_is_left_alone(ledger: Path, gpus: list[vcuda.GpuLimit]) -> None:
    with pytest.raises(errors.ExistsError):
        vcuda.create_ledger(ledger, bytes(16), gpus)
    assert vcuda.read_ledger(ledger).allocation_id == IDENTITY


@pytest.mark.parametrize("count", [0, 17])
def test_bad_numbers_of_gpus(tmp_path: Path, count: int) -> None:
    many = [vcuda.GpuLimit(f"GPU-6e1b0000-0000-4000-8000-0000000000{i:02x}", 1) for i in range(count)]
    with pytest.raises(errors.UsageError):
        vcuda.create_ledger(tmp_path / "ledger", IDENTITY, many)
    assert list(tmp_path.iterdir()) == []


def test_living_processes_are_summed() -> None:
    def process(pid: int, used: int, alive: bool = True) -> vcuda.ProcessUsage:
        return vcuda.ProcessUsage(0, pid, pid, 1, {GPU_A: used}, {GPU_A: used}, 0, "x", alive=alive)

    usage = vcuda.LedgerUsage(
        1, IDENTITY, (GPU_A,), {GPU_A: 9}, (process(5, 1), process(0, 2, False), process(6, 4), process(0, 8))
    )
    assert usage.used(GPU_A) == 13  # who lives without a name counts, who is dead does not


def test_a_ledger_that_grew_is_cut(ledger: Path) -> None:
    before = ledger.read_bytes()
    assert vcuda.trim_ledger(ledger) is False
    os.truncate(ledger, 1 << 30)
    assert vcuda.trim_ledger(ledger) is True
    assert ledger.read_bytes() == before


def test_no_smaller_size_is_a_ledger(ledger: Path) -> None:
    full = vcuda.ledger_file_bytes()
    for size in [full - 1, *range(full - 512, -1, -512), 4097, 4096, 4095, 1, 0]:
        os.truncate(ledger, size)
        with pytest.raises(errors.CorruptError):
            vcuda.read_ledger(ledger)


def test_damage_is_an_error_or_changes_only_numbers(ledger: Path) -> None:
    """The header is checked, the rest is the processes' word: it may lie, it may not break the reader."""
    good = ledger.read_bytes()
    with ledger.open("r+b", buffering=0) as file:
        for offset in range(4096 + 2 * 320):
            os.pwrite(file.fileno(), bytes([good[offset] ^ 0xFF]), offset)
            try:
                usage = vcuda.read_ledger(ledger)
            except (errors.CorruptError, errors.VersionError):
                assert offset < 4096
            else:
                assert usage.gpu_uuids == (GPU_A, GPU_B) and usage.allocation_id == IDENTITY, offset
                assert all(process.pid == 0 for process in usage.processes)
            os.pwrite(file.fileno(), good[offset : offset + 1], offset)
    assert vcuda.read_ledger(ledger).processes == ()


def test_garbage_in_every_slot_is_bounded(ledger: Path) -> None:
    size = vcuda.ledger_file_bytes()
    with ledger.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    usage = vcuda.read_ledger(ledger)
    for process in usage.processes:
        assert process.pid == 0
        assert process.name.isprintable()
        assert set(process.used) == {GPU_A, GPU_B}
        assert all(0 <= value < 1 << 48 for value in process.used.values())


def test_missing(tmp_path: Path) -> None:
    for call in (vcuda.read_ledger, vcuda.trim_ledger):
        with pytest.raises(errors.NotFoundError):
            call(tmp_path / "missing")


def test_a_share_is_read_again_and_again(tmp_path: Path) -> None:
    """From an open file; when that cannot be used any more, it is opened anew."""
    gpus = [vcuda.GpuLimit(GPU_A, 8 << 30, cores_percent=30), vcuda.GpuLimit(GPU_B, 8 << 30)]
    path = tmp_path / "ledger"
    vcuda.create_ledger(path, bytes(16), gpus)
    unknown = "GPU-6e1b0000-0000-4000-8000-0000000000ff"
    readers = [vcuda.ShareReader(path, uuid) for uuid in (GPU_A, GPU_B, unknown)]
    nothing = vcuda.ShareUsage(0.0, 0.0, 0, waiting=False)
    for _ in range(2):
        assert [reader.read() for reader in readers] == [nothing, nothing, None]
    whole = path.read_bytes()
    os.truncate(path, 2000)
    for _ in range(2):
        with pytest.raises(vcuda.VcudaError, match="ledger"):
            readers[0].read()
    path.write_bytes(whole)
    assert readers[0].read() == nothing
    path.unlink()
    assert readers[0].read() == nothing, "the file is still there for the process that has it open"
    readers[0].close()
    with pytest.raises(vcuda.VcudaError, match="no such file"):
        readers[0].read()


def test_readers_that_are_forgotten_leave_no_open_file(tmp_path: Path) -> None:
    gpus = [vcuda.GpuLimit(GPU_A, 8 << 30, cores_percent=30)]
    vcuda.create_ledger(tmp_path / "ledger", bytes(16), gpus)
    readers = [vcuda.ShareReader(tmp_path / "ledger", GPU_A) for _ in range(20)]
    for reader in readers:
        reader.read()
    assert len(open_below(tmp_path)) == 20
    del reader, readers
    gc.collect()
    assert open_below(tmp_path) == []
