"""Three sizes of which two say the third."""

from __future__ import annotations

import pytest

from vcuda import errors, shares

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "physical", "host", "expected"),
    [
        ("8GiB", None, None, (8, 0, 8, 0)),
        ("24GiB", "16GiB", "8GiB", (24, 16, 16, 8)),
        (None, "16GiB", "8GiB", (24, 16, 16, 8)),
        ("24GiB", "16GiB", None, (24, 16, 16, 8)),
        ("24GiB", None, "8GiB", (24, 16, 16, 8)),
        ("24GiB", "24GiB", None, (24, 24, 24, 0)),
    ],
)
def test_two_say_the_third(memory, physical, host, expected):
    share = shares.split(memory, physical, host)
    assert (share.memory_bytes, share.physical_bytes, share.on_gpu, share.host_bytes) == tuple(
        size * GIB for size in expected
    )


@pytest.mark.parametrize(
    ("memory", "physical", "host", "words"),
    [
        (None, None, None, "no quota"),
        (None, "8GiB", None, "alone says no quota"),
        (None, None, "8GiB", "alone says no quota"),
        ("24GiB", "16GiB", "4GiB", "leave one of the three out"),
        ("8GiB", "16GiB", None, "between nothing and --memory"),
        ("8GiB", None, "8GiB", "between nothing and --memory"),
        ("8GiB", None, "9GiB", "between nothing and --memory"),
    ],
)
def test_contradictions_are_refused(memory, physical, host, words):
    with pytest.raises(errors.UsageError, match=words):
        shares.split(memory, physical, host)


def test_the_host_has_to_have_it(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemAvailable:  16777216 kB\n")
    assert shares.memory_available(meminfo) == 16 * GIB
    share = shares.Share(24 * GIB, 16 * GIB)
    shares.check_host(share, 2, meminfo)
    with pytest.raises(errors.UsageError, match="lower --host"):
        shares.check_host(share, 3, meminfo)
    shares.check_host(shares.Share(1 << 46), 16, tmp_path / "nowhere")  # nothing of it is the host's
    meminfo.write_text("MemTotal:  100 kB\n")
    with pytest.raises(errors.VcudaError, match="does not say"):
        shares.check_host(share, 1, meminfo)


def test_a_share_of_the_time():
    assert shares.compute(None) == shares.Compute()
    assert shares.compute("30") == shares.Compute(30, 0)
    assert shares.compute("100", elastic=True) == shares.Compute(100, 1)


@pytest.mark.parametrize("cores", ["0", "101", "-5", "30%", "", "³", "1e1", "9" * 30])
def test_what_is_no_percentage_is_said(cores):
    with pytest.raises(errors.UsageError, match="not a percentage"):
        shares.compute(cores)


def test_elastic_alone_is_a_mistake():
    with pytest.raises(errors.UsageError, match="--elastic says nothing without --cores"):
        shares.compute(None, elastic=True)
