# SPDX-License-Identifier: Apache-2.0
"""A pod is woken by one annotation, and only by an agent that can write nothing else."""

from __future__ import annotations

import asyncio

import pytest

from agent.apiserver.pod_waker import PodWaker
from gigaslice.core.model import Pod
from tests.fakes.kubeapi import Fault, pod_document

WAKE = "gigaslice.io/wake"


@pytest.fixture
def pod(server):
    document = server.put("pods", pod_document("late"))
    return Pod("default", "late", document["metadata"]["uid"])


@pytest.fixture
def wake(client_of):
    """Wakes a pod, several times with one waker where there are several clocks."""

    def run(pod, *clocks):
        async def main():
            times = iter(clocks or (0.0,))
            now = [0.0]
            async with client_of() as client:
                waker = PodWaker(client, lambda: now[0])
                problems = []
                for now[0] in times:
                    problems.append(await waker.wake(pod))
                return problems

        return asyncio.run(main())

    return run


def annotation(server):
    return server.get("pods", "late", "default")["metadata"].get("annotations", {}).get(WAKE)


def test_a_pod_has_another_annotation_each_time(server, pod, wake):
    server.answers.pod_policy = True
    assert wake(pod, 0.0, 1.0) == ["", ""]
    assert int(annotation(server)) > 1_700_000_000_000
    bodies = [body for body in server.accepted("PATCH", "/pods/") if WAKE in str(body)]
    assert all(body["metadata"].keys() == {"uid", "annotations"} for body in bodies)


def test_without_the_policy_that_bounds_it_nothing_is_written(server, pod, wake):
    server.answers.pod_policy = False
    problems = wake(pod, 0.0, 59.0, 61.0)
    assert all("may change others' annotations of late" in problem for problem in problems)
    assert annotation(server) is None
    assert len([one for one in server.requests if "dryRun" in one[1]]) == 2, "not asked again for a minute"


def test_without_the_right_it_says_what_gives_it(server, pod, wake):
    server.answers.pod_policy = True
    server.faults.append(
        Fault("PATCH", "/pods/late", status=403, when=lambda _, target: "dryRun" not in target)
    )
    (problem,) = wake(pod)
    assert "may not annotate pods" in problem and "90 seconds" in problem


def test_another_pod_of_that_name_and_one_that_is_gone_are_left_alone(server, pod, wake):
    server.answers.pod_policy = True
    assert wake(Pod("default", "late", "another")) == [""]
    assert annotation(server) is None
    assert wake(Pod("default", "gone", "u")) == [""]
