# SPDX-License-Identifier: Apache-2.0
"""A claim that has other devices than it was prepared with, and the pods that run with those of before."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from gigaslice.core.claims.names import device_name
from gigaslice.core.claims.origin import claim_of
from tests.fakes.claims_of_node import claim, claiming, result, user
from tests.fakes.gpus import GIB, uuid
from vcuda import contract


def run(work):
    return asyncio.run(work)


@pytest.fixture
def running(node):
    """A claim of 8 GiB that was given out anew after a forced deletion, and a pod that runs with what was before.

    The kubelet has not asked for that pod: it had the answer for the one that was deleted.
    """
    one = node.reserve(claim("c", result(0, 8)), claiming("deleted"))
    run(node.prepare(one))
    (allocation,) = node.store.table.allocations
    node.cluster.pods.clear()
    node.cluster.put(claiming("running", phase="Running"))
    node.following.follow()
    node.mounted = {allocation.id}
    return one


def given_anew(node, one, anew):
    """The claim with this device, reserved for another pod beside the one that runs."""
    return given_anew_to(node, one, anew, claiming("running", phase="Running"), claiming("next"))


def given_anew_to(node, one, anew, *pods):
    """The claim with this device, reserved for these pods."""
    results = (replace(anew, share_id=f"{anew.share_id}-anew"),)
    return node.reserve(replace(one, results=results), *pods)


def test_the_same_gpu_and_amount_are_the_same_allocation(node, running):
    (before,) = node.store.table.allocations
    (answer,) = run(node.prepare(given_anew(node, running, result(0, 8))))
    assert not answer.error and [device.share_id for device in answer.devices] == ["share-0-gpu-anew"]
    (after,) = node.store.table.allocations
    assert after.id == before.id and node.store.dirs.path(after.id).is_dir()
    assert [device.share_id for device in claim_of(after).devices] == ["share-0-gpu-anew"]
    assert [consumer.ref.pod for consumer in after.consumers] == ["next", "running"], "both are in one quota"
    assert run(node.prepare(node.claims.by_name["default", "c"])) == [answer]


@pytest.mark.parametrize("anew", [result(1, 8), result(0, 4), result(0, 8, cores=30)])
def test_other_gpus_or_amounts_are_refused_while_a_container_runs_with_those_of_before(node, running, anew):
    (before,) = node.store.table.allocations
    (answer,) = run(node.prepare(given_anew(node, running, anew)))
    assert (
        "default/running/main runs with those of before" in answer.error and "delete that pod" in answer.error
    )
    assert node.store.table.allocations == (before,) and node.store.dirs.path(before.id).is_dir()


def test_once_that_container_has_ended_they_are_prepared(node, running):
    node.mounted = set()
    (answer,) = run(node.prepare(given_anew(node, running, result(1, 4))))
    (after,) = node.store.table.allocations
    assert not answer.error and after.quota() == {uuid(1): 4 * GIB}


@pytest.mark.parametrize("anew", [result(0, 8), result(1, 4)])
def test_names_of_the_earlier_answer_mean_the_devices_of_now(node, anew):
    """The pod was deleted by force while the kubelet was away: it adds this answer to that which it has on disk."""
    one = node.reserve(claim("c", result(0, 8)), claiming("deleted"))
    (before,) = run(node.prepare(one))
    node.cluster.pods.clear()
    (after,) = run(node.prepare(given_anew_to(node, one, anew, claiming("next"))))
    (allocation,) = node.store.table.allocations
    assert not after.error
    names = {device["name"]: device["containerEdits"]["mounts"] for device in written(node, one)}
    for answer in (before, after):
        for name in (name for device in answer.devices for name in device.cdi):
            sources = {mount["hostPath"] for mount in names[name.partition("=")[2]]}
            assert str(node.store.dirs.path(allocation.id) / contract.LIMITS_FILE) in sources


def written(node, one):
    """The devices of the runtime's file of a claim."""
    return json.loads(node.cdi.path(one.uid).read_text())["devices"]


def test_what_a_deleted_pod_still_has_keeps_nobody_out(node, running):
    """The pod that the claim is reserved for has not been started; the container is that of the deleted one."""
    node.cluster.pods.clear()
    one = node.reserve(replace(running, results=(result(1, 4),)), claiming("next"))
    node.following.follow()
    (answer,) = run(node.prepare(one))
    (after,) = node.store.table.allocations
    assert not answer.error and after.quota() == {uuid(1): 4 * GIB}


def test_devices_that_were_allocated_anew_are_prepared_anew(node):
    """The claim has lost its pods and got another one, and a process still has what it was given before."""
    one = node.reserve(claim("c", result(0, 8)), claiming("train"))
    run(node.prepare(one))
    (before,) = node.store.table.allocations
    node.cluster.pods.clear()
    node.mounted = {before.id}
    run(node.unprepare(one))
    assert [kept.id for kept in node.store.table.allocations] == [before.id]
    node.reserve(replace(one, results=(result(1, 4),)), claiming("next"))
    (answer,) = run(node.prepare(one))
    (after,) = node.store.table.allocations
    assert after.quota() == {uuid(1): 4 * GIB}
    assert [device.device for device in answer.devices] == [device_name(uuid(1))]


def woken(node):
    run(node.waking.wake_ready())
    return [pod.name for pod in node.cluster.woken]


@pytest.mark.parametrize("end", ["container", "pod"])
def test_who_was_refused_for_a_container_is_woken_once_that_has_ended(node, running, end):
    one = given_anew(node, running, result(1, 4))
    node.cluster.put(claiming("running", phase="Running", sandboxed=True))
    assert run(node.prepare(one))[0].error
    assert woken(node) == [], "it would be refused again"
    if end == "container":
        node.mounted = set()
    else:
        node.cluster.pods.pop(("default", "running"))
    assert woken(node) == ["next"]
    assert not run(node.prepare(one))[0].error


@pytest.fixture
def answered(make_node):
    """A node that answers NVIDIA's names, and a claim of two requests on the first GPU that has lost its pod."""
    node = make_node(visible_devices="cdi")
    one = node.reserve(
        claim("c", result(0, 4, "a"), result(0, 2, "b")),
        claiming("deleted", user("x", "c/a"), user("y", "c/b")),
    )
    run(node.prepare(one))
    node.cluster.pods.clear()
    return node, one


def anew(node, one, *results):
    results = tuple(replace(anew, share_id=f"{anew.share_id}-anew") for anew in results)
    pod = claiming("next", user("x", "c/a"), user("y", "c/b"))
    return run(node.prepare(node.reserve(replace(one, results=results), pod)))[0]


def test_a_kubelet_that_was_answered_other_gpus_by_their_names_is_refused(answered):
    """It adds both answers up, and a container could open a GPU of which the pod has nothing."""
    node, one = answered
    before = node.store.table.allocations
    answer = anew(node, one, result(0, 4, "a"), result(1, 2, "b"))
    assert "containers would get both; delete the pods of this claim" in answer.error
    assert node.cluster.said("ClaimNotExecutable") == [answer.error]
    assert node.store.table.allocations == before
    assert woken(node) == [], "no end of a container mends it"
    node.cluster.pods.clear()
    assert run(node.unprepare(one)) == [""]
    assert not anew(node, one, result(0, 4, "a"), result(1, 2, "b")).error, "the kubelet has given it up"


def test_other_amounts_of_the_same_gpus_are_prepared(answered):
    node, one = answered
    answer = anew(node, one, result(0, 8, "a"), result(0, 1, "b"))
    assert not answer.error
    assert {name for device in answer.devices for name in device.cdi if "nvidia" in name} == {
        f"nvidia.com/gpu={uuid(0)}"
    }


def test_what_the_kubelet_gave_up_while_a_pod_had_it_is_in_no_answer_of_its(answered):
    node, one = answered
    node.mounted = {allocation.id for allocation in node.store.table.allocations}
    assert run(node.unprepare(one)) == [""]
    assert not anew(node, one, result(0, 4, "a"), result(1, 2, "b")).error
