# SPDX-License-Identifier: Apache-2.0
"""Pods are woken when their start would succeed, in the order in which their claims came."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent.allocation.start_wait import StartTimes
from gigaslice.core.errors import StorageError
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.claims_of_node import claim, claiming, result, user
from tests.fakes.eventually import run_beside, until


def woken(node):
    return [pod.name for pod in node.cluster.woken]


def free(node):
    node.cluster.pods.pop(("default", "first"))
    asyncio.run(node.unprepare(node.first))


def test_nobody_is_woken_for_nothing(full):
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == []


def test_the_first_that_came_is_woken_and_the_next_when_that_one_has_ended(full):
    free(full)
    for _ in range(3):
        asyncio.run(full.waking.wake_ready())
    assert woken(full) == ["pod-d"], "and once"
    assert not asyncio.run(full.prepare(full.late[0]))[0].error
    asyncio.run(full.waking.wake_ready())
    full.cluster.pods.pop(("default", "pod-d"))
    asyncio.run(full.unprepare(full.late[0]))
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == ["pod-d", "pod-e"]


def test_a_pod_whose_claim_is_not_asked_for_is_woken_again(full):
    free(full)
    asyncio.run(full.waking.wake_ready())
    full.now = 11.0
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == ["pod-d", "pod-d"]


def test_who_does_not_wait_any_more_is_forgotten_and_keeps_nobody(full):
    full.cluster.put(claiming("pod-d", claims=("d",), ending=True))
    full.claims.by_name.pop(("default", "d"))
    free(full)
    full.cluster.pods.pop(("default", "pod-d"))
    for full.now in (0.0, 60.0):
        asyncio.run(full.release.look())
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == ["pod-e"]
    assert list(full.preparation.refusals.waiting) == ["uid-e"]


def test_pods_that_are_not_known_are_not_taken_for_gone(full):
    pods, full.cluster.pods = full.cluster.pods, {}
    full.cluster.synced = False
    asyncio.run(full.waking.wake_ready())
    assert list(full.preparation.refusals.waiting) == ["uid-d", "uid-e"]
    full.cluster.pods = pods


def test_every_pod_that_waits_with_a_claim_of_ours_is_woken(make_node):
    node = make_node()
    node.claims.put(claim("ours", result(0, 4)))
    node.claims.put(claim("theirs"))
    node.cluster.put(claiming("a", claims=("ours",)))
    node.cluster.put(claiming("b", claims=("theirs",)))
    node.cluster.put(claiming("c", claims=("ours",), phase="Running", sandboxed=True))
    node.cluster.put(claiming("d", claims=("ours",), ending=True))
    node.cluster.put(claiming("e", claims=()))
    asyncio.run(node.waking.wake_all())
    assert woken(node) == ["a"]
    node.claims.failure = ApiFailure("away")
    asyncio.run(node.waking.wake_all())
    assert woken(node)[1:] == ["a", "b"], "what cannot be read may be ours"


def test_nobody_is_woken_before_the_kubelet_has_the_driver_and_all_each_time_it_has_it_anew(make_node):
    """It answers a pod that is woken before with an error, and looks at it a minute or more later."""
    node = make_node()
    node.claims.put(claim("ours", result(0, 4)))
    node.cluster.put(claiming("a", claims=("ours",)))

    async def story():
        running = asyncio.create_task(node.waking.run())
        await asyncio.sleep(0.05)
        assert woken(node) == []
        for count in (1, 2):
            node.waking.registered()
            while len(woken(node)) < count:
                await asyncio.sleep(0.01)
        assert woken(node) == ["a", "a"]
        running.cancel()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_without_the_right_it_goes_on(full):
    full.cluster.wake_problem = "no right"
    free(full)
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == []


def test_a_disk_that_fails_keeps_nobody_asleep(full, monkeypatch):
    free(full)
    real = full.preparation.would_start

    async def would_start(uid):
        if uid == "uid-d":
            raise StorageError("the disk is full")
        return await real(uid)

    monkeypatch.setattr(full.waking, "_would_start", would_start)
    pod = full.cluster.pods.pop(("default", "pod-d"))
    asyncio.run(full.unprepare(full.late[0]))
    full.cluster.put(pod)
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == ["pod-e"]


def looked_at(node, *times):
    for node.now in times:
        asyncio.run(node.waking.wake_unasked())
    return woken(node)


def test_a_pod_that_nobody_asked_for_is_woken_ever_more_seldom(make_node):
    """The kubelet could not read its claim, which only its own log and an event tell."""
    node = make_node()
    node.reserve(claim("c", result(0, 4)), claiming("train"))
    assert looked_at(node, 0.0, 1.9) == []
    assert looked_at(node, 2.0, 2.5, 5.9) == ["train"]
    assert looked_at(node, 6.0, 13.9) == ["train"] * 2
    assert looked_at(node, 14.0) == ["train"] * 3


@pytest.mark.parametrize(
    "more",
    [{"sandboxed": True}, {"phase": "Succeeded"}, {"ending": True}, {"claims": ()}],
    ids=lambda more: next(iter(more)),
)
def test_who_waits_for_something_else_is_not_woken(make_node, more):
    node = make_node()
    node.reserve(claim("c", result(0, 4)), claiming("train", **more))
    assert looked_at(node, 0.0, 3.0, 100.0) == []


def test_a_pod_with_claims_of_others_alone_is_not_woken(make_node):
    node = make_node()
    node.reserve(claim("c"), claiming("train"))
    assert looked_at(node, 0.0, 3.0) == []


def test_after_a_boot_a_pod_that_ran_is_woken_though_its_claim_is_prepared(make_node):
    """Its sandbox is gone, and the kubelet asks for it anew; it may have done so before the driver was there."""
    node = make_node()
    own = node.reserve(claim("c", result(0, 4)), claiming("train", phase="Running", sandboxed=True))
    asyncio.run(node.prepare(own))
    assert looked_at(node, 0.0, 3.0) == []
    node.cluster.put(claiming("train", phase="Running", sandboxed=False))
    node.waking.registered()
    asyncio.run(node.waking.wake_all())
    assert woken(node) == ["train"]
    assert looked_at(node, 4.0, 6.0) == ["train"] * 2


def test_a_pod_whose_claims_the_kubelet_was_given_is_left_to_its_runtime(make_node):
    """Its sandbox may take long, in a burst. One of the same name with another claim is another pod."""
    node = make_node()
    own = node.reserve(claim("c", result(0, 4)), claiming("train"))
    asyncio.run(node.prepare(own))
    assert looked_at(node, 0.0, 3.0, 100.0) == []
    node.cluster.pods.pop(("default", "train"))
    asyncio.run(node.unprepare(own))
    node.reserve(replace(claim("c", result(0, 4)), uid="uid-again"), claiming("train"))
    assert looked_at(node, 200.0, 203.0) == ["train"]


def test_a_pod_of_the_same_name_is_woken_while_the_one_before_still_has_its_memory(make_node):
    """It was deleted by force and made again, with its claim; the kubelet has not unprepared the older one yet."""
    node = make_node()
    asyncio.run(node.prepare(node.reserve(claim("c", result(0, 4)), claiming("train"))))
    node.reserve(
        replace(claim("c", result(0, 4)), uid="uid-again"), replace(claiming("train"), uid="uid-train-again")
    )
    assert looked_at(node, 0.0, 3.0) == ["train"]


def test_several_pods_are_woken_at_a_time(make_node, monkeypatch):
    node = make_node()
    for number in range(20):
        node.reserve(claim(f"c{number}", result(0, 1)), claiming(f"p{number}", claims=(f"c{number}",)))
    waking, most = 0, 0

    async def wake(pod):
        nonlocal waking, most
        waking += 1
        most = max(most, waking)
        await asyncio.sleep(0.01)
        waking -= 1
        node.cluster.woken.append(pod)
        return ""

    monkeypatch.setattr(node.cluster, "wake", wake)
    assert len(looked_at(node, 0.0, 3.0)) == 20
    assert 1 < most <= 8


def test_a_pod_that_may_start_is_woken_though_waking_another_takes_long(full, monkeypatch):
    full.reserve(claim("late", result(0, 1)), claiming("unasked", claims=("late",)))
    woken_at_once, waking = [], []

    async def wake(pod):
        waking.append(pod.name)
        if pod.name == "unasked":
            await asyncio.Event().wait()
        woken_at_once.append(pod.name)
        return ""

    monkeypatch.setattr(full.cluster, "wake", wake)
    monkeypatch.setattr(full.waking, "_unasked", {"uid-unasked": (0.0, 2.0)})

    async def story():
        await until(lambda: waking == ["unasked"])
        full.cluster.pods.pop(("default", "first"))
        await full.unprepare(full.first)
        await until(lambda: woken_at_once == ["pod-d"])

    asyncio.run(run_beside(full.waking.run(), story()))


def test_a_second_pod_of_a_prepared_claim_is_woken_too(make_node):
    node = make_node()
    first = claiming("first", phase="Running", sandboxed=True)
    shared = node.reserve(claim("c", result(0, 4)), first)
    asyncio.run(node.prepare(shared))
    node.cluster.put(claiming("second"))
    assert looked_at(node, 0.0, 3.0) == ["second"]


def test_who_was_refused_or_is_being_prepared_is_left_to_that(full):
    assert looked_at(full, 0.0, 3.0) == []


def test_a_claim_that_is_being_prepared_is_not_woken_for(node):
    one = node.reserve(claim("c", result(0, 4)), claiming("train"))

    async def story():
        node.preparation.preparing = node.waking._preparing = lambda uid: uid == one.uid
        for node.now in (0.0, 3.0):
            await node.waking.wake_unasked()

    asyncio.run(story())
    assert woken(node) == []


def test_a_call_that_the_kubelet_gave_up_is_one_that_was_refused(full):
    """It took too long before the waiting began, which ends in time."""
    one = full.reserve(claim("f", result(0, 20)), claiming("pod-f", claims=("f",)))

    async def story():
        asked = asyncio.create_task(full.prepare(one))
        await asyncio.sleep(0.05)
        asked.cancel()
        await asyncio.wait([asked])

    asyncio.run(story())
    assert list(full.preparation.refusals.waiting) == ["uid-d", "uid-e", "uid-f"]


def test_pods_of_another_namespace_are_left_asleep(full):
    full.cluster.put(replace(claiming("pod-d", claims=("d",)), namespace="other", uid="uid-other"))
    free(full)
    asyncio.run(full.waking.wake_ready())
    assert [(pod.namespace, pod.name) for pod in full.cluster.woken] == [("default", "pod-d")]


def test_of_many_that_wait_the_one_that_fits_is_woken(make_node):
    """And it alone: each of the others would cost a call and an event."""
    node = make_node(gpus=1, times=StartTimes(patience=0.0, unwatched_patience=0.0, margin=0.0))
    first = node.reserve(claim("c", result(0, 24)), claiming("first"))
    late = [
        node.reserve(claim(f"c{number}", result(0, 20)), claiming(f"p{number}", claims=(f"c{number}",)))
        for number in range(50)
    ]

    async def story():
        await node.prepare(first)
        for one in late:
            assert (await node.prepare(one))[0].error
        node.cluster.pods.pop(("default", "first"))
        await node.unprepare(first)
        for _ in range(3):
            await node.waking.wake_ready()

    asyncio.run(story())
    assert woken(node) == ["p0"]


def test_a_pod_with_two_claims_that_wait_is_woken_for_both_at_once(make_node):
    """The kubelet asks for them together, and an answer that refuses one of them costs another minute."""
    node = make_node(gpus=2)
    others = [
        node.reserve(claim(f"o{gpu}", result(gpu, 24)), claiming(f"other-{gpu}", claims=(f"o{gpu}",)))
        for gpu in (0, 1)
    ]
    pod = claiming("train", user("a", "c"), user("b", "d"), claims=("c", "d"))
    own = [node.reserve(claim(name, result(gpu, 8)), pod) for gpu, name in enumerate("cd")]
    asyncio.run(node.prepare(*others))
    assert all(answer.error for answer in asyncio.run(node.prepare(*own)))
    for other, expected in zip(others, ([], ["train"]), strict=True):
        node.cluster.pods.pop(("default", other.reserved_for[0].name))
        asyncio.run(node.unprepare(other))
        asyncio.run(node.waking.wake_ready())
        assert woken(node) == expected


def test_a_pod_whose_other_claim_can_never_be_served_is_left_alone(full):
    other = full.reserve(claim("x", result(0, 1)), claiming("pod-d", claims=("d", "x")))
    assert "GPU memory of x and d" in asyncio.run(full.prepare(other))[0].error
    free(full)
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == [], "pod-d has the memory that pod-e waits for"


def test_a_wake_that_fails_is_repeated_soon_and_not_at_once(full):
    """The right may have been given meanwhile, and the API server be back."""
    free(full)
    tries = []
    real = full.cluster.wake

    async def wake(pod):
        tries.append(full.now)
        return "no right" if len(tries) == 1 else await real(pod)

    full.cluster.wake = wake
    for full.now in (0.0, 1.9, 2.0, 2.5, 11.9, 12.0):
        asyncio.run(full.waking.wake_ready())
    assert tries == [0.0, 2.0, 12.0]


def test_a_call_that_is_held_is_not_woken_for(full):
    """It was refused once and is asked for again: it is answered as soon as it may start."""
    free(full)
    full.waking._preparing = lambda uid: uid == "uid-d"
    asyncio.run(full.waking.wake_ready())
    assert woken(full) == []
