# SPDX-License-Identifier: Apache-2.0
"""What was exported and then let go of is paid on by its exporter while another process may still hold it: for three
seconds, by when that process has been measured (docs/adr/0014). What is gone is paid no more at once."""

from __future__ import annotations

import time

import pytest

from tests.native.running import (
    CONTEXT,
    GIB,
    INVALID_VALUE,
    MIB,
    OUT_OF_MEMORY,
    ROOT,
    SUCCESS,
    eventually,
)

BLOCK = 512 * MIB


@pytest.fixture
def without_nvml(tmp_path):
    """Settings of a machine that has a driver and no NVML."""
    only_cuda = tmp_path / "only-cuda"
    only_cuda.mkdir()
    (only_cuda / "libcuda.so.1").symlink_to(ROOT / "build/fakedriver/libcuda.so.1")
    (only_cuda / "libnvidia-ml.so.1").touch()  # hides a real one
    return {"LD_LIBRARY_PATH": str(only_cuda)}


def shared(exporter, size=BLOCK):
    """A handle of new memory, and a descriptor of it."""
    code, handle = exporter(f"d.create({size}, prop(0, handle_types=POSIX_FD))")
    assert code == SUCCESS
    code, fd = exporter(f"d.export({handle})")
    assert code == SUCCESS
    return handle, fd


def taken_in(importer, exporter, fd):
    code, handle = importer(f"d.take_in_from({exporter.pid}, {fd})")
    assert code == SUCCESS
    exporter(f"os.close({fd})")
    return handle


def other_quota(place):
    return {"VCUDA_DIR": str(place.directory / "other")}


def test_it_is_charged_at_every_moment(place):
    with place.program("1GiB") as exporter, place.program("1GiB", **other_quota(place)) as importer:
        handle, fd = shared(exporter)
        taken = taken_in(importer, exporter, fd)
        base = importer(f"d.reserve({BLOCK})")
        assert importer(f"[d.map({base}, {BLOCK}, {taken}), d.release({taken})]") == [SUCCESS, SUCCESS]
        assert exporter(f"d.release({handle})") == SUCCESS
        assert exporter("d.used()") == CONTEXT + BLOCK, "another process still holds it"
        assert exporter(f"d.create({BLOCK})[0]") == OUT_OF_MEMORY

        def only_the_importer_pays():
            here, there = exporter("d.used()"), importer("d.used()")
            assert here + there >= 2 * CONTEXT + BLOCK, "it is charged nowhere"
            return (here, there) == (CONTEXT, CONTEXT + BLOCK)

        assert eventually(only_the_importer_pays)
        assert exporter(f"d.create({BLOCK})[0]") == SUCCESS


def test_what_no_process_imported_is_gone_at_once(place):
    with place.program("1GiB") as program:
        handle, fd = shared(program)
        base = program(f"d.reserve({BLOCK})")
        assert program(f"[os.close({fd}), d.map({base}, {BLOCK}, {handle})][1]") == SUCCESS
        assert program(f"d.release({handle})") == SUCCESS
        assert program("d.used()") == CONTEXT + BLOCK
        assert program(f"d.unmap({base}, {BLOCK})") == SUCCESS
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


def test_taking_down_and_making_again_at_the_limit_is_never_refused(place):
    with (
        place.program(str(CONTEXT + BLOCK)) as exporter,
        place.program("1GiB", **other_quota(place)) as importer,
    ):
        base = exporter(f"d.reserve({BLOCK})")
        for number in range(12):
            handle, fd = shared(exporter)
            taken = taken_in(importer, exporter, fd)
            assert exporter(f"d.map({base}, {BLOCK}, {handle})") == SUCCESS
            ends = [
                (importer, f"d.release({taken})"),
                (exporter, f"d.release({handle})"),
                (exporter, f"d.unmap({base}, {BLOCK})"),
            ]
            for program, end in (
                ends[number % 3 :] + ends[: number % 3]
            ):  # the importer is first, last, in the middle
                assert program(end) == SUCCESS


def test_places_of_what_is_paid_no_longer_are_free_again(place):
    """A process remembers 64 of them. Nothing but their time ends these, and no reading of the ledger comes between."""
    with place.program("1GiB") as exporter, place.program("1GiB", **other_quota(place)) as importer:
        parts = [shared(exporter, 2 * MIB) for _ in range(64)]
        for _, fd in parts:
            taken_in(importer, exporter, fd)
        assert exporter(f"[d.release(handle) for handle, _ in {parts}]") == [SUCCESS] * 64
        time.sleep(3.5)
        handle, fd = shared(exporter)
        taken_in(importer, exporter, fd)
        assert exporter(f"d.release({handle}), d.used()") == [SUCCESS, CONTEXT + BLOCK]


def test_what_is_gone_is_noticed_when_the_time_of_another_is_over(place):
    """The first one's bytes, charged no more and still there, must not stand for those of the second one."""
    with (
        place.program(str(CONTEXT + 2 * BLOCK)) as exporter,
        place.program("2GiB", **other_quota(place)) as importer,
    ):
        handle, fd = shared(exporter)
        taken_in(importer, exporter, fd)
        assert exporter(f"d.release({handle})") == SUCCESS
        time.sleep(2)
        handle, fd = shared(exporter)
        taken = taken_in(importer, exporter, fd)
        assert exporter(f"d.release({handle})") == SUCCESS
        assert eventually(lambda: exporter("d.used()") == CONTEXT + BLOCK)
        assert importer(f"d.release({taken})") == SUCCESS
        assert exporter(f"d.create({2 * BLOCK})[0]") == SUCCESS


def test_an_exporter_that_sleeps_is_paid_for_no_longer(place):
    """Its charge ends although it makes no call: the processes that share its quota end it."""
    with place.program("2GiB") as exporter, place.program("2GiB") as importer:
        handle, fd = shared(exporter)
        taken_in(importer, exporter, fd)
        assert exporter(f"d.release({handle})") == SUCCESS
        assert eventually(lambda: importer("d.used()") == 2 * CONTEXT + 2 * BLOCK), "it has measured itself"
        assert eventually(lambda: importer("d.used()") == 2 * CONTEXT + BLOCK)
        with place.program("2GiB") as third:
            assert third(f"d.create({2 * GIB - 3 * CONTEXT - BLOCK})[0]") == SUCCESS


def test_a_killed_exporter_pays_no_longer(place):
    with place.program("2GiB") as importer:
        with place.program("2GiB") as exporter:
            handle, fd = shared(exporter)
            taken = taken_in(importer, exporter, fd)
            assert exporter(f"d.release({handle})") == SUCCESS
        with place.program(
            "2GiB"
        ) as other:  # the slot's next owner is not charged, now or when the time is over
            assert other(f"d.create({BLOCK})[0]") == SUCCESS
            assert importer(f"d.release({taken})") == SUCCESS
            assert eventually(lambda: other("d.used()") == 2 * CONTEXT + BLOCK)


def test_of_two_that_end_together_only_the_one_that_remains_is_paid(place):
    with place.program("2GiB") as exporter, place.program("2GiB", **other_quota(place)) as importer:
        base = exporter(f"d.reserve({2 * BLOCK})")
        fds = []
        for part in (0, 1):
            handle, fd = shared(exporter)
            fds.append(fd)
            assert exporter(f"d.map({base + part * BLOCK}, {BLOCK}, {handle})") == SUCCESS
            assert exporter(f"d.release({handle})") == SUCCESS
        taken = taken_in(importer, exporter, fds[0])
        assert exporter("d.used()") == CONTEXT + 2 * BLOCK
        assert exporter(f"[os.close({fds[1]}), d.unmap({base}, {2 * BLOCK})][1]") == SUCCESS
        assert exporter("d.used()") == CONTEXT + BLOCK
        assert importer(f"d.release({taken})") == SUCCESS
        assert exporter(f"d.create({2 * GIB - CONTEXT})[0]") == SUCCESS, "a refusal reads first"


def test_errors_of_the_driver_change_nothing(place):
    with place.program("1GiB") as program:
        handle, fd = shared(program)
        base = program(f"d.reserve({BLOCK})")
        assert program(f"[os.close({fd}), d.map({base}, {BLOCK}, {handle})][1]") == SUCCESS
        for call, does in (
            ("cuMemExportToShareableHandle", f"d.export({handle})[0]"),
            ("cuMemUnmap", f"d.unmap({base}, {BLOCK})"),
            ("cuMemRelease", f"d.release({handle})"),
        ):
            place.fakectl("fail", call, 999, 1, "--pid", program.pid)
            assert program(does) == 999
            assert program("d.used(), d.really_used()") == [CONTEXT + BLOCK] * 2
        assert program(f"[d.unmap({base}, {BLOCK}), d.release({handle})]") == [SUCCESS, SUCCESS]
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2
        assert program(f"d.release({handle}), d.export({handle})[0]") == [INVALID_VALUE] * 2
        assert program("d.used(), d.really_used()") == [CONTEXT] * 2


def test_a_second_release_ends_nothing_that_is_paid_on(place):
    with place.program("1GiB") as exporter, place.program("1GiB", **other_quota(place)) as importer:
        handle, fd = shared(exporter)
        taken = taken_in(importer, exporter, fd)
        assert exporter(f"d.release({handle})") == SUCCESS
        assert exporter(f"d.release({handle})") == INVALID_VALUE
        assert exporter("d.used()") == CONTEXT + BLOCK
        assert importer(f"d.release({taken})") == SUCCESS
        assert exporter(f"d.create({BLOCK})[0]") == SUCCESS
        assert exporter("d.used()") == CONTEXT + BLOCK


def test_without_nvml_it_ends_at_once(place, without_nvml):
    with place.program("1GiB", **without_nvml) as exporter, place.program("1GiB", **without_nvml) as importer:
        handle, fd = shared(exporter)
        taken_in(importer, exporter, fd)
        assert exporter(f"d.release({handle})") == SUCCESS
        assert exporter("d.used()") == 0
