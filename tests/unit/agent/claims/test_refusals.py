# SPDX-License-Identifier: Apache-2.0
"""Claims that were answered with an error, and what has to be over before their pods are woken."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

from agent.claims import refusals
from gigaslice.core.errors import StorageError
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.claims_of_node import claim, claiming, result, user
from tests.fakes.nodes import inventory


def woken(node):
    """The pods that were woken so far, after one more look."""
    asyncio.run(node.waking.wake_ready())
    return [pod.name for pod in node.cluster.woken]


def unasked(node):
    """The same where the kubelet is not known to ask."""
    for node.now in (0.0, 3.0):
        asyncio.run(node.waking.wake_unasked())
    return [pod.name for pod in node.cluster.woken]


def test_a_claim_that_could_not_be_read_is_tried_again_later(node, monkeypatch):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))
    node.claims.failure = ApiFailure("away")
    assert asyncio.run(node.prepare(one, remaining=0.1))[0].error
    assert woken(node) == []
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 6.0)
    monkeypatch.setattr(refusals, "time", later)
    assert woken(node) == ["train"]


def test_nobody_is_woken_for_what_cannot_be(node):
    """It was prepared for another pod, and would start; this one is refused whenever it asks."""
    one = node.reserve(claim("c", result(0, 4, "a"), result(1, 4, "b")), claiming("first"))
    assert not asyncio.run(node.prepare(one))[0].error
    node.reserve(one, claiming("late", user("x", "c/a")))
    assert "has only a of claim c" in asyncio.run(node.prepare(one))[0].error
    assert woken(node) == []


def test_what_the_kubelet_has_given_up_is_not_waited_for(full):
    """A pod of that name with a claim of that name, made anew, has other UIDs."""
    full.cluster.pods.pop(("default", "pod-d"))
    asyncio.run(full.unprepare(full.late[0]))
    assert list(full.preparation.refusals.waiting) == ["uid-e"]


def test_a_claim_that_was_made_anew_while_the_first_waits_has_its_pod_woken(full):
    anew = replace(full.late[0], uid="uid-anew")
    full.reserve(anew, replace(claiming("pod-d", claims=("d",)), uid="uid-pod-anew"))
    assert "is gone" in asyncio.run(full.prepare(full.late[0]))[0].error
    assert unasked(full) == ["pod-d"]


def test_a_pod_whose_gpu_was_away_is_woken_when_it_is_back(make_node):
    node = make_node(gpus=2)
    one = node.reserve(claim("c", result(1, 4)), claiming("train"))
    node.gpus.replace(inventory(1))
    assert "no GPU" in asyncio.run(node.prepare(one))[0].error
    assert woken(node) == []
    node.gpus.replace(inventory(2))
    assert woken(node) == ["train"]


def test_a_pod_that_a_full_disk_has_kept_out_is_woken_when_there_is_room(node, monkeypatch):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))

    def full_disk(*_args):
        raise StorageError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(node.store, "commit", full_disk)
        broken.setattr(node.store.dirs, "probe", full_disk)
        assert "disk is full" in asyncio.run(node.prepare(one))[0].error
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 6.0)
        monkeypatch.setattr(refusals, "time", later)
        assert woken(node) == []
    assert woken(node) == ["train"]


def test_a_pod_whose_claim_was_released_while_its_call_was_held_is_woken(full):
    """Nothing is recorded of it any more that would tell what it waits for."""

    async def story():
        held = asyncio.create_task(full.prepare(full.late[0]))
        await asyncio.sleep(0.05)
        full.store.release(full.store.table.without([full.store.table.of_key("uid-d/gpu").id]), [])
        assert "unprepared meanwhile" in (await held)[0].error

    asyncio.run(story())
    assert unasked(full) == ["pod-d"]
