# SPDX-License-Identifier: Apache-2.0
"""Threads on the CPUs near their GPU: only ever fewer, and only of containers that use it."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from agent.inventory.sysfs import node_cpus
from agent.ledgers import usage
from agent.limits import cpus as module
from agent.limits.cpus import CpuBinder, narrowed
from gigaslice.core.allocation.table import AllocationTable
from tests.fakes.nodes import allocation, claim_allocation, consumer, inventory
from vcuda import ProcessUsage


@pytest.mark.parametrize(
    ("present", "near", "expected"),
    [
        ({0, 1, 2, 3}, {2, 3}, {2, 3}),
        ({1, 2}, {2, 3}, {2}),
        ({2}, {2, 3}, None),
        ({0, 1}, {2, 3}, None),
        ({0, 1}, set(), None),
    ],
)
def test_a_set_of_cpus_gets_smaller_or_stays(present, near, expected):
    assert narrowed(frozenset(present), frozenset(near)) == (
        None if expected is None else frozenset(expected)
    )


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,8\n", {0, 1, 2, 8}), ("\n", set()), ("x\n", set()), (None, set())]
)
def test_the_cpus_of_a_node_are_read(tmp_path, text, cpus):
    if text is not None:
        write_node(tmp_path, 1, text)
    assert node_cpus(1, tmp_path) == cpus


def write_node(root, node, text):
    path = root / f"devices/system/node/node{node}/cpulist"
    path.parent.mkdir(parents=True)
    path.write_text(text)


class Ledgers:
    """A store whose allocations' processes are the test's."""

    def __init__(self, pids, *held):
        self.table = AllocationTable().with_allocation(allocation(1, *held))
        self.pids = pids

    def reading(self, allocation_id):
        assert allocation_id == f"{1:032x}"
        processes = [ProcessUsage(slot, pid, pid, 1, {}, {}, 0, "p") for slot, pid in enumerate(self.pids)]
        return usage.Reading({}, {}, tuple(processes))


@pytest.fixture
def sleeper():
    """A process that may use all of this one's CPUs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n", timeout=60)


@pytest.fixture
def cpus():
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("needs two CPUs")
    return found


def test_a_process_is_kept_on_the_near_ones_and_never_gets_more(tmp_path, sleeper, cpus):
    write_node(tmp_path, 0, f"{cpus[-1]}\n")
    binder = CpuBinder(Ledgers([sleeper], (0, range(2))), inventory, 1.0, sysfs=tmp_path)
    asyncio.run(binder.round())
    assert os.sched_getaffinity(sleeper) == {cpus[-1]}
    (tmp_path / "devices/system/node/node0/cpulist").write_text(f"0-{cpus[-1]}\n")
    asyncio.run(binder.round())
    assert os.sched_getaffinity(sleeper) == {cpus[-1]}


def test_gpus_of_two_nodes_leave_both(tmp_path, sleeper, cpus):
    write_node(tmp_path, 0, f"{cpus[0]}\n")
    write_node(tmp_path, 1, f"{cpus[1]}\n")
    asyncio.run(
        CpuBinder(Ledgers([sleeper], (0, range(2)), (1, range(2))), inventory, 1.0, sysfs=tmp_path).round()
    )
    assert os.sched_getaffinity(sleeper) == set(cpus[:2])


def test_without_a_known_node_no_process_is_bound(tmp_path, sleeper, cpus):
    write_node(tmp_path, 0, f"{cpus[0]}\n")
    binder = CpuBinder(
        Ledgers([sleeper], (0, range(2))), lambda: inventory(numa=(None,)), 1.0, sysfs=tmp_path
    )
    asyncio.run(binder.round())
    assert os.sched_getaffinity(sleeper) == set(cpus)


def test_processes_that_have_ended_disturb_no_other(tmp_path, sleeper, cpus):
    write_node(tmp_path, 0, f"{cpus[0]}\n")
    pids = [1 << 30, sleeper, (1 << 30) - 1]
    asyncio.run(CpuBinder(Ledgers(pids, (0, range(2))), inventory, 1.0, sysfs=tmp_path).round())
    assert os.sched_getaffinity(sleeper) == {cpus[0]}


@pytest.mark.parametrize(
    ("group", "bound"),
    [("0::/kubepods/pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9/c1\n", True), ("0::/user.slice\n", False)],
)
def test_the_company_in_a_pods_cgroup_is_bound_too_and_no_other(tmp_path, sleeper, cpus, group, bound):
    write_node(tmp_path, 0, f"{cpus[0]}\n")
    proc = tmp_path / "proc"
    for pid in (1 << 29, sleeper):
        (proc / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(group)
    asyncio.run(
        CpuBinder(Ledgers([1 << 29], (0, range(2))), inventory, 1.0, sysfs=tmp_path, proc=proc).round()
    )
    assert os.sched_getaffinity(sleeper) == ({cpus[0]} if bound else set(cpus))


@pytest.mark.parametrize(
    ("number", "bound"), [(0, True), (1, True), (2, False)], ids=["first", "second", "stranger"]
)
def test_the_processes_of_each_pod_of_a_shared_quota_are_bound(tmp_path, sleeper, cpus, number, bound):
    uids = [f"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f{digit}" for digit in range(3)]
    write_node(tmp_path, 0, f"{cpus[0]}\n")
    proc = tmp_path / "proc"
    (proc / str(sleeper) / "task" / str(sleeper)).mkdir(parents=True)
    (proc / str(sleeper) / "cgroup").write_text(f"0::/kubepods/pod{uids[number]}/c1\n")
    ledgers = Ledgers([sleeper])
    shared = claim_allocation(1, "shared", consumer("a", uids[0]), consumer("b", uids[1]))
    ledgers.table = AllocationTable((shared,), 2)
    asyncio.run(CpuBinder(ledgers, inventory, 1.0, sysfs=tmp_path, proc=proc).round())
    assert os.sched_getaffinity(sleeper) == ({cpus[0]} if bound else set(cpus))


def test_processes_are_not_looked_at_in_the_agents_own_thread(tmp_path, sleeper, cpus, monkeypatch):
    """A node has thousands, and the kubelet's calls are answered there."""
    write_node(tmp_path, 0, f"{cpus[0]}\n")
    seen = set()
    for name in ("_cgroup", "node_cpus"):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, real=real: (seen.add(threading.get_ident()), real(*a))[1]
        )
    binder = CpuBinder(Ledgers([sleeper], (0, range(2))), inventory, 1.0, sysfs=tmp_path)
    asyncio.run(binder.round())
    assert os.sched_getaffinity(sleeper) == {cpus[0]}
    assert seen and threading.get_ident() not in seen
