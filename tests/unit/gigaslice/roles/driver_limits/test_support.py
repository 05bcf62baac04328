# SPDX-License-Identifier: Apache-2.0
"""Whether limits can be had: each piece of evidence missing, with the sentence that says so."""

from __future__ import annotations

import os

import pytest

from gigaslice.core.limits.driver_limit_messages import GpuSupport, SupportAnswer
from gigaslice.roles.driver_limits.cgroup_tree import CgroupTree
from gigaslice.roles.driver_limits.memory_limits import Limit, LimitCallError
from gigaslice.roles.driver_limits.support import find_support
from tests.fakes.cgroup_trees import LAYOUTS, make_cgroup, make_root
from tests.fakes.memory_limits import GIB, FakeMemoryLimits

UID, ID = "2c48913c-b29f-11e7-9350-020968147796", "a1" * 32
GPU, SECOND = (f"GPU-00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
TOTALS = {GPU: 80 * GIB, SECOND: 40 * GIB}
POD = f"kubepods/burstable/pod{UID}"


@pytest.fixture
def root(tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    return tmp_path / "cgroup"


@pytest.fixture(params=["misc", "dmem"])
def backend(request):
    return request.param


def node(root, backend, pod=f"{POD}/{ID}", **rules):
    make_root(root, nvidia=backend == "dmem")
    make_cgroup(root, pod, pids=(os.getpid(),))
    return FakeMemoryLimits(root, backend, TOTALS, **rules)


def support(driver, root):
    answer = find_support(driver, CgroupTree(root))
    assert SupportAnswer.decode(answer.encode()) == answer
    assert "\n" not in answer.reason
    return answer


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_limit_that_is_set_and_read_back_is_the_evidence(root, backend, layout):
    driver = node(root, backend, layout.container_path(UID, ID))
    assert support(driver, root) == SupportAnswer(
        backend, "", "615.10", {gpu: GpuSupport(total, True) for gpu, total in TOTALS.items()}
    )
    own = root / layout.pod_path(UID)
    assert {gpu: driver.entry(gpu, own) for gpu in TOTALS} == TOTALS, "and it bounds nothing"


def test_persistence_is_told(root, backend):
    driver = node(root, backend)
    driver.persistence = None
    assert support(driver, root).gpus[GPU].persistence is None


def test_the_driver_is_opened_anew_each_time(root, backend):
    driver = node(root, backend)
    support(driver, root)
    driver.reload()
    assert support(driver, root).backend == backend
    assert driver.renewed == 2


def test_no_driver(root, backend):
    driver = node(root, backend)
    driver.loaded = False
    answer = support(driver, root)
    assert (answer.backend, answer.driver, answer.gpus) == ("none", "", {})
    assert "Driver Not Loaded" in answer.reason


def test_no_call(root):
    driver = node(root, "none")
    answer = support(driver, root)
    assert answer.backend == "none" and "nvmlDeviceSetMemoryLimits_v1" in answer.reason
    assert answer.driver == "615.10" and set(answer.gpus) == set(TOTALS), "what there is is told all the same"


def test_no_version_2(tmp_path, version_2_at, backend):
    answer = support(node(tmp_path / "cgroup", backend), tmp_path / "cgroup")
    assert answer.backend == "none" and f"{tmp_path}/cgroup is no cgroup v2" in answer.reason


def test_version_1_beside_version_2(tmp_path, version_2_at, backend):
    version_2_at.append(tmp_path / "unified")
    driver = node(tmp_path / "unified", backend)
    assert support(driver, tmp_path).backend == backend
    (tmp_path / "unified" / "kubepods" / f"{backend}.max").unlink()
    reason = support(driver, tmp_path).reason
    assert "hybrid" in reason and f"{tmp_path}/unified/kubepods has no {backend}.max" in reason


def test_not_in_a_pod(root, backend):
    driver = node(root, backend, "system.slice/gigaslice.service")
    answer = support(driver, root)
    assert answer.backend == "none" and "no pod's cgroup" in answer.reason


def test_no_controller(root, backend):
    driver = node(root, backend)
    (root / "kubepods" / "burstable" / f"{backend}.max").unlink()
    answer = support(driver, root)
    assert answer.backend == "none"
    assert answer.reason.startswith(f"{root}/kubepods/burstable has no {backend}.max")
    assert ("RmMemacctMode=1" in answer.reason) == (backend == "dmem")
    assert driver.calls == [], "a limit there would be taken and never found"


def test_no_permission(root, backend):
    answer = support(node(root, backend, permission=False), root)
    assert answer.backend == "none" and f"{GPU}: Insufficient Permissions" in answer.reason


def test_no_gpu(root, backend):
    driver = node(root, backend)
    driver.totals = {}
    assert "no GPU" in support(driver, root).reason


@pytest.mark.parametrize("shown", [None, Limit(None, 0), Limit(GIB, 0)])
def test_a_limit_that_does_not_stick(root, backend, shown, monkeypatch):
    driver = node(root, backend)
    monkeypatch.setattr(driver, "get", lambda gpu, path: shown)
    answer = support(driver, root)
    assert answer.backend == "none" and f"took a limit of {80 * GIB} bytes" in answer.reason


def test_a_limit_that_cannot_be_read(root, backend, monkeypatch):
    driver = node(root, backend)

    def get(gpu, path):
        raise LimitCallError("Unknown Error")

    monkeypatch.setattr(driver, "get", get)
    assert support(driver, root).reason == f"{GPU}: Unknown Error"
