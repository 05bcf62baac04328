# SPDX-License-Identifier: Apache-2.0
"""Programs on a simulated GPU that is used twice over, with time slices: few pages move, none hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from tests.bench.time_slices import Node
from tests.fakedriver.env import ROOT
from tests.native.running import eventually

FOREVER = 10**9


@pytest.fixture
def node():
    with tempfile.TemporaryDirectory(prefix="gs-") as directory:
        made = Node(Path(directory))
        yield made
        made.store.close()


def moved(node, jobs):
    """Bytes of pages that the programs of JOBS have made move so far, by job, with the kernels that they ran."""
    command = [str(ROOT / "build" / "fakedriver" / "fakectl"), "state"]
    state = json.loads(
        subprocess.run(command, env=node.driver, capture_output=True, text=True, check=True).stdout
    )
    by_pid = {one["pid"]: (one["moved"][0], one["launches"]) for one in state["processes"]}
    return [by_pid.get(job.process.pid, (0, 0)) for job in jobs]


def busy(node, job, gpu):
    """Seconds that the program of JOB had of a GPU."""
    command = [str(ROOT / "build" / "fakedriver" / "fakectl"), "state"]
    state = json.loads(
        subprocess.run(command, env=node.driver, capture_output=True, text=True, check=True).stdout
    )
    return next(one["busy_ns"][gpu] / 1e9 for one in state["processes"] if one["pid"] == job.process.pid)


def per_kernel(node, jobs, kernels):
    """Bytes moved for each of the next KERNELS, of all jobs together."""
    before = moved(node, jobs)
    ran = lambda now: sum(b[1] - a[1] for a, b in zip(before, now, strict=True))  # noqa: E731
    assert eventually(lambda: ran(moved(node, jobs)) >= kernels, 120)
    now = moved(node, jobs)
    return sum(b[0] - a[0] for a, b in zip(before, now, strict=True)) / ran(now)


def begin(node, sizes=(16, 16), **more):
    jobs = [node.start(gib, FOREVER, **more) for gib in sizes]
    for job in jobs:
        job.go()
    return jobs


def end(node, jobs):
    for job in jobs:
        node.end(job)


def test_pages_move_a_tenth_as_much_with_time_slices(node):
    jobs = begin(node)
    try:
        plain = per_kernel(node, jobs, 40)
        with node.manager() as manager:
            assert eventually(lambda: any(gpu.arbiter.changes > 4 for gpu in manager.gpus.values()), 120)
            assert per_kernel(node, jobs, 1000) < plain / 10
    finally:
        end(node, jobs)


def test_where_everything_fits_nothing_is_held(node):
    jobs = begin(node, (7, 7))
    try:
        with node.manager() as manager:
            per_kernel(node, jobs, 300)
            (gpu,) = manager.gpus.values()
            assert gpu.fits
            assert gpu.arbiter.changes == 0
            assert set(manager.held_us.values()) == {0}
    finally:
        end(node, jobs)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_dies_or_stops_loses_its_time_slice(node, number):
    jobs = begin(node)
    try:
        with node.manager() as manager:
            assert eventually(lambda: any(gpu.holder for gpu in manager.gpus.values()), 120)
            (gpu,) = manager.gpus.values()
            holder = next(job for job in jobs if job.allocation.id == gpu.holder)
            other = next(job for job in jobs if job is not holder)
            before = moved(node, [other])[0][1]
            os.kill(holder.process.pid, number)
            assert eventually(lambda: moved(node, [other])[0][1] > before + 50, 60)
    finally:
        end(node, jobs)


def test_without_its_agent_every_program_goes_on(node):
    """As after a kill: nothing frees the pages, the leases run out."""
    jobs = begin(node)
    try:
        with node.manager() as manager:
            assert eventually(lambda: any(gpu.holder for gpu in manager.gpus.values()), 120)
            manager.end_all = lambda: None  # type: ignore[method-assign]
        before = moved(node, jobs)
        assert eventually(
            lambda: all(b[1] > a[1] + 3 for a, b in zip(before, moved(node, jobs), strict=True)), 60
        )
    finally:
        end(node, jobs)


def test_two_managers_in_a_row_agree_with_what_they_find(node):
    """An agent restarted in the middle of a time slice: the next starts anew, and no program waits for the old one."""
    jobs = begin(node)
    try:
        for _ in range(2):
            with node.manager() as manager:
                manager.end_all = lambda: None  # type: ignore[method-assign]
                assert eventually(lambda k=manager: any(gpu.holder for gpu in k.gpus.values()), 120)
        assert threading.active_count() >= 1
        before = moved(node, jobs)
        assert eventually(
            lambda: all(b[1] > a[1] for a, b in zip(before, moved(node, jobs), strict=True)), 60
        )
    finally:
        end(node, jobs)


def test_each_of_two_gpus_has_its_own_time_slices():
    """One GPU thrashes, the other does not. A container on both waits on the one and goes on on the other."""
    with tempfile.TemporaryDirectory(prefix="gs-") as directory:
        node = Node(Path(directory), gpus=2)
        first, second = (gpu.uuid for gpu in node.inventory.gpus)
        jobs = begin(node, ((16, 0), (16, 4), (0, 6)))
        try:
            with node.manager() as manager:
                assert eventually(
                    lambda: first in manager.gpus and manager.gpus[first].arbiter.changes > 2, 120
                )
                both = jobs[1].allocation.id
                held = lambda: both in manager.gpus[first].held  # noqa: E731
                assert eventually(held, 60)
                before, since = busy(node, jobs[1], 1), manager.held_us[both, first]
                assert eventually(lambda: busy(node, jobs[1], 1) > before + 0.5, 60)
                assert eventually(lambda: manager.held_us[both, first] > since, 60)
                assert manager.held_us[both, second] == 0
                assert manager.gpus[second].fits and manager.gpus[second].arbiter.changes == 0
                assert {gpu for _, gpu in manager._written} == {first}
                assert busy(node, jobs[2], 1) > 0.5
        finally:
            end(node, jobs)
            node.store.close()
