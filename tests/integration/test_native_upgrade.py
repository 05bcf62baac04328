# SPDX-License-Identifier: Apache-2.0
"""Old and new side by side: files of 0.1.0 under today's code, versions to come, libraries of releases and of today."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

import pytest

from tests.native.golden import make as golden
from tests.native.running import CONTEXT, GIB, LIBRARY, MIB, OUT_OF_MEMORY, SUCCESS, Place, run
from tests.releases.conftest import RELEASES
from tests.releases.sources import library
from vcuda import (
    GpuLimit,
    create_ledger,
    create_limits,
    errors,
    ledger_file_bytes,
    read_ledger,
    read_limits,
    set_memory_limit,
)
from vcuda.version import VERSION

FIRST, SECOND = golden.UUIDS
LIMITS, LEDGER = golden.LIMITS.read_bytes(), golden.LEDGER.read_bytes()
MIB_5 = 5 * MIB

# Where things are in the files, said a second time on purpose: the C headers must not be able to move them unnoticed.
LIMITS_VERSION_AT, LIMITS_CHECKSUM_AT, LIMITS_GPU_AT, LIMITS_GPU_BYTES = 8, 40, 64, 64
SHARES = 64 + 16 * 64  # struct limits_share, of which the first five words are in use
LIMITS_RESERVED = [
    (20, 4),
    (56, 8),
    (64 + 20, 4),
    (64 + 48, 16),
    (SHARES + 40, 24),
    (SHARES + 16 * 64, 4096 - SHARES - 16 * 64),
]
LEDGER_VERSION_AT, LEDGER_CHECKSUM_AT = 8, 296
LEDGER_USED_BYTES = 448 + 8 * 64  # the header's fields, the charges that linger at their end
LEDGER_RESERVED = [(316, 4), (LEDGER_USED_BYTES, 4096 - 16 * 8 - LEDGER_USED_BYTES), (4096 + 60, 4)]


def fnv(*parts: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in b"".join(parts):
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def patched(data: bytes, *patches: tuple[int, bytes]) -> bytes:
    """DATA with other bytes at some places, and a checksum to match."""
    out = bytearray(data)
    for at, new in patches:
        out[at : at + len(new)] = new
    if data.startswith(b"VCUDALIM"):
        gpus = [bytes(out[at : at + 20]) for at in (LIMITS_GPU_AT, LIMITS_GPU_AT + LIMITS_GPU_BYTES)]
        out[40:48] = struct.pack("<Q", fnv(bytes(out[:LIMITS_CHECKSUM_AT]), *gpus))
    else:
        out[LEDGER_CHECKSUM_AT : LEDGER_CHECKSUM_AT + 8] = struct.pack(
            "<Q", fnv(bytes(out[:LEDGER_CHECKSUM_AT]))
        )
    return bytes(out)


def put(directory: Path, limits: bytes = LIMITS, ledger: bytes = LEDGER) -> tuple[Path, Path]:
    directory.mkdir(exist_ok=True)
    (directory / "limits").write_bytes(limits)
    (directory / "ledger").write_bytes(ledger + bytes(ledger_file_bytes() - len(ledger)))
    return directory / "limits", directory / "ledger"


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, settings={"VCUDA_DIR": str(tmp_path / "quota")})


# --- frozen bytes ------------------------------------------------------------------------------------------------


def test_the_checksums_are_what_this_test_thinks():
    assert patched(LIMITS) == LIMITS
    assert patched(LEDGER) == LEDGER


def test_todays_agent_reads_yesterdays_page(tmp_path):
    limits, _ = put(tmp_path)
    page = read_limits(limits)
    assert (page.version, page.allocation_id, page.changes) == (1, golden.ID, 2)
    assert [(g.uuid, g.memory_bytes, g.cores_percent, g.undeclared_bytes) for g in page.gpus] == [
        (FIRST, 6 * GIB, 0, 0),
        (SECOND, 9 * GIB, 30, MIB_5),
    ]


def test_todays_agent_reads_yesterdays_ledger(tmp_path):
    _, ledger = put(tmp_path)
    usage = read_ledger(ledger)
    assert (usage.version, usage.allocation_id, usage.gpu_uuids) == (1, golden.ID, golden.UUIDS)
    assert usage.peak == {FIRST: GIB + CONTEXT, SECOND: 3 * GIB + CONTEXT}
    first, second = usage.processes
    assert (first.used, first.peak) == ({FIRST: GIB + CONTEXT, SECOND: 0},) * 2
    assert (second.used, second.peak) == ({FIRST: 0, SECOND: 3 * GIB + CONTEXT},) * 2
    assert (first.refused, second.refused) == (0, 1)
    assert (first.name, first.pid_inside, first.alive) == ("client", 21207, False)
    assert first.pid == second.pid == 0  # no process holds their locks any more


def test_todays_agent_changes_yesterdays_page(tmp_path):
    limits, _ = put(tmp_path)
    set_memory_limit(limits, FIRST, 7 * GIB)
    changed = limits.read_bytes()
    assert changed[: LIMITS_GPU_AT - 16] == LIMITS[: LIMITS_GPU_AT - 16]  # what never changes
    different = [at for at in range(0, 4096, 8) if changed[at : at + 8] != LIMITS[at : at + 8]]
    assert different == [48, LIMITS_GPU_AT + 24]  # the number of changes, and one value: one store each


def test_a_process_of_today_lives_under_yesterdays_files(place):
    put(place.quota)
    with place.client() as client:
        client.ready()
        assert client.do("total a", 0).first == 6 * GIB
        assert client.do("total a", 1).first == 9 * GIB
        assert client.free() == 6 * GIB - CONTEXT  # what the dead processes of the ledger had is back
        assert client.do("alloc a", 6 * GIB - CONTEXT).code == SUCCESS
        assert client.do("alloc b", 1 * MIB).code == OUT_OF_MEMORY
        assert client.close() == ""


# --- reserved fields and versions to come --------------------------------------------------------------------------


def test_reserved_bytes_may_be_used_by_later_versions(place):
    limits = patched(LIMITS, *((at, b"\xa5" * size) for at, size in LIMITS_RESERVED))
    ledger = patched(LEDGER + bytes(4096), *((at, b"\xa5" * size) for at, size in LEDGER_RESERVED))
    paths = put(place.quota, limits, ledger)
    assert read_limits(paths[0]).gpus == read_limits(put(place.directory / "plain")[0]).gpus
    assert len(read_ledger(paths[1]).processes) == 2
    with place.client() as client:
        assert client.ready().do("total a", 0).first == 6 * GIB
        assert client.do("alloc a", GIB).code == SUCCESS
        assert client.close() == ""


@pytest.mark.parametrize("which", ["limits", "ledger"])
@pytest.mark.parametrize("version", [0, 3, 0xFFFFFFFF])
def test_an_unknown_version_is_refused_with_one_clear_line(place, which, version):
    raw = struct.pack("<I", version)
    limits = patched(LIMITS, (LIMITS_VERSION_AT, raw)) if which == "limits" else LIMITS
    ledger = patched(LEDGER, (LEDGER_VERSION_AT, raw)) if which == "ledger" else LEDGER
    paths = put(place.quota, limits, ledger)
    reader = {"limits": read_limits, "ledger": read_ledger}[which]
    with pytest.raises(errors.VcudaError, match="version that this library does not know"):
        reader(paths[0] if which == "limits" else paths[1])
    with place.client() as client:
        assert client.do("init").code != SUCCESS
        line = client.close()
    assert line.count("\n") == 1
    assert "version that this library does not know" in line
    assert str(place.quota / which) in line


# --- a library that is replaced ------------------------------------------------------------------------------------


def installed(directory: Path, version: str) -> Path:
    """The library under a versioned name, as the agent installs it."""
    directory.mkdir(exist_ok=True)
    path = directory / f"libvcuda-{version}.so"
    shutil.copy(LIBRARY, path)
    return path


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def library_of_release(request, tmp_path):
    """The library that a release installed, under the name that it had on the node."""
    (tmp_path / "lib").mkdir(exist_ok=True)
    try:
        return library(request.param, tmp_path / "lib" / f"libvcuda-{request.param.name}.so")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_a_kept_library_is_not_that_of_today(library_of_release):
    """Else the tests below would be about one library."""
    assert library_of_release.read_bytes()[:4] == b"\x7fELF"
    said = run(("readelf", "--notes", library_of_release), {}).stdout
    assert said.count("Build ID") == 1
    assert (
        said.partition("Build ID")[2]
        != run(("readelf", "--notes", LIBRARY), {}).stdout.partition("Build ID")[2]
    )


@pytest.mark.parametrize("first", ["old", "new"])
def test_old_and_new_library_share_a_ledger(place, tmp_path, library_of_release, first):
    libraries = [library_of_release, installed(tmp_path / "lib", VERSION)]
    if first == "new":
        libraries.reverse()
    put(place.quota)
    place.library = libraries[0]
    with place.client() as before:
        before.ready()
        assert before.do("alloc a", 4 * GIB).code == SUCCESS
        place.library = libraries[1]
        libraries[0].unlink()  # the running process keeps what it mapped
        with place.client() as after:
            after.ready()
            assert after.free() == 2 * GIB - 2 * CONTEXT
            assert after.do("alloc a", 2 * GIB).code == OUT_OF_MEMORY
            assert after.do("alloc a", 1 * GIB).code == SUCCESS
            assert before.do("alloc b", 1 * GIB).code == OUT_OF_MEMORY
            assert before.free() == 1 * GIB - 2 * CONTEXT
            assert before.do("free a").code == SUCCESS
            assert after.do("alloc b", 4 * GIB).code == SUCCESS
            assert before.do("alloc b", 1 * GIB).code == OUT_OF_MEMORY
            assert {p.pid_inside for p in read_ledger(place.quota / "ledger").processes} == {
                before.process.pid,
                after.process.pid,
            }


def test_a_limit_that_today_changes_holds_under_the_old_library(place, library_of_release):
    """On files that today's agent has made, too."""
    gpus = [GpuLimit(FIRST, 6 * GIB)]
    place.quota.mkdir()
    create_limits(place.quota / "limits", golden.ID, gpus)
    create_ledger(place.quota / "ledger", golden.ID, gpus)
    place.library = library_of_release
    with place.client() as client:
        client.ready()
        assert client.do("total a", 0).first == 6 * GIB
        assert client.do("alloc a", 4 * GIB).code == SUCCESS
        set_memory_limit(place.quota / "limits", FIRST, 5 * GIB)
        assert client.do("total a", 0).first == 5 * GIB
        assert client.do("alloc b", 1 * GIB).code == OUT_OF_MEMORY
        set_memory_limit(place.quota / "limits", FIRST, 7 * GIB)
        assert client.do("alloc b", 2 * GIB).code == SUCCESS
        (process,) = read_ledger(place.quota / "ledger").processes
        assert (process.pid_inside, process.used) == (client.process.pid, {FIRST: 6 * GIB + CONTEXT})
        assert client.close() == ""


def test_a_process_whose_library_is_gone_starts_children_unharmed(place, tmp_path):
    """/etc/ld.so.preload names the new file for them; one that still names the old is a warning, not an end."""
    place.library = installed(tmp_path / "lib", VERSION)
    put(place.quota)
    place.library.unlink()
    done = run((sys.executable, "-c", "print('runs')"), place.env())
    assert done.stdout == "runs\n"
    assert "cannot be preloaded" in done.stderr
