# SPDX-License-Identifier: Apache-2.0
"""Options of vcuda run: of three sizes any two give the third."""

from __future__ import annotations

import pytest

from vcuda import errors, quota_request

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
def test_two_sizes_give_the_third(memory, physical, host, expected):
    request = quota_request.parse_memory(memory, physical, host)
    assert (request.memory_bytes, request.physical_bytes, request.on_gpu, request.host_bytes) == tuple(
        size * GIB for size in expected
    )


@pytest.mark.parametrize(
    ("memory", "physical", "host", "words"),
    [
        (None, None, None, "no quota"),
        (None, "8GiB", None, "alone gives no quota"),
        (None, None, "8GiB", "alone gives no quota"),
        ("24GiB", "16GiB", "4GiB", "leave one of the three out"),
        ("8GiB", "16GiB", None, "more than 0 and at most --memory"),
        ("8GiB", None, "8GiB", "more than 0 and at most --memory"),
        ("8GiB", None, "9GiB", "more than 0 and at most --memory"),
    ],
)
def test_contradictions_are_refused(memory, physical, host, words):
    with pytest.raises(errors.UsageError, match=words):
        quota_request.parse_memory(memory, physical, host)


def test_the_host_must_have_the_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemAvailable:  16777216 kB\n")
    assert quota_request.memory_available(meminfo) == 16 * GIB
    request = quota_request.MemoryRequest(24 * GIB, 16 * GIB)
    quota_request.check_host_memory(request, 2, meminfo)
    with pytest.raises(errors.UsageError, match="lower --host"):
        quota_request.check_host_memory(request, 3, meminfo)
    quota_request.check_host_memory(
        quota_request.MemoryRequest(1 << 46), 16, tmp_path / "nowhere"
    )  # nothing of it is the host's
    meminfo.write_text("MemTotal:  100 kB\n")
    with pytest.raises(errors.VcudaError, match="does not say"):
        quota_request.check_host_memory(request, 1, meminfo)


def test_a_share_of_the_time():
    assert quota_request.parse_compute(None) == quota_request.ComputeRequest()
    assert quota_request.parse_compute("30") == quota_request.ComputeRequest(30, 0)
    assert quota_request.parse_compute("100", elastic=True) == quota_request.ComputeRequest(100, 1)


@pytest.mark.parametrize("cores", ["0", "101", "-5", "30%", "", "³", "1e1", "9" * 30])
def test_cores_must_be_a_percentage(cores):
    with pytest.raises(errors.UsageError, match="not a percentage"):
        quota_request.parse_compute(cores)


def test_elastic_alone_is_a_mistake():
    with pytest.raises(errors.UsageError, match="--elastic has no effect without --cores"):
        quota_request.parse_compute(None, elastic=True)
