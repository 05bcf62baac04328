# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's CUDA runtime, shared and static, gets our functions for all that is hooked and the driver's for the rest.

`make test-runtimes` does the same with many releases of it and writes docs/runtimes.md.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests.native import runtimes
from tests.native.runtimes import Lookup, mistakes

PACKAGES = Path(sysconfig.get_path("purelib")) / "nvidia"


@pytest.fixture
def trials(tmp_path):
    found = list(runtimes.try_folder(runtimes.machine(tmp_path), PACKAGES, "the headers' runtime"))
    assert found, f"no libcudart below {PACKAGES}"
    return found


def test_the_runtime_of_this_environment(trials):
    for trial in trials:
        assert trial.mistakes == []
        assert trial.count("v1") + trial.count("v2") > 300, "it looked up what it always looks up"
        asked = {found.question.split('"')[1] for found in trial.lookups}
        assert {"", "cuMemAlloc", "cuMemAllocAsync", "cuGetProcAddress"} <= asked
        assert any("flags 2" in found.question for found in trial.lookups)
        assert all("status NULL" in found.question for found in trial.lookups if found.way == "v2")


def test_a_static_runtime_is_there_too(trials):
    assert [trial.name for trial in trials] == [
        "the headers' runtime",
        "the headers' runtime, linked statically",
    ]


def test_the_check_sees_what_it_looks_for():
    plain = [Lookup('v2 "cuMemAlloc" 3020 flags 0', 0, "cuMemAlloc_v2", "libcuda.so.1")]
    ours = Lookup(plain[0].question, 0, "cuMemAlloc_v2", "libvcuda.so")
    other = Lookup(plain[0].question, 0, "cuMemAlloc", "libvcuda.so")
    stray = Lookup('v2 "cuDriverGetVersion" 2000 flags 0', 0, "cuDriverGetVersion", "libvcuda.so")
    assert list(mistakes(plain, [ours])) == []
    assert any("of libcuda.so.1, not of libvcuda.so" in mistake for mistake in mistakes(plain, plain))
    assert any("changed" in mistake for mistake in mistakes(plain, [other]))
    assert any("not of libcuda.so.1" in mistake for mistake in mistakes([stray], [stray]))
