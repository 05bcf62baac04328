# SPDX-License-Identifier: Apache-2.0
"""Several services and one lease: who decides, and what a takeover does about bindings of the one before.

After every story no GPU is promised twice (`world.check`).
"""

import asyncio
import contextlib
import itertools
from dataclasses import replace
from unittest.mock import ANY

import aiohttp
import pytest

from gigaslice.roles.scheduler.election import ElectionTimes
from tests.fakes.eventually import until
from tests.fakes.kubeapi import ApiServer, Fault
from tests.fakes.scheduler import SchedulerStandIn
from tests.integration.cluster.simulated_cluster import bindings, bound, check, node, pod, serving, url

LEASE = ("gigaslice", "service")
QUICK = ElectionTimes(lease=3.0, retry=0.2, idle=1.5)


def replica(api, name, times=QUICK):
    return serving(api, times, leader_lease=LEASE, identity=name)


def run(story, *nodes):
    async def main():
        async with ApiServer() as api:
            for one in nodes:
                api.create("nodes", one)
            await story(api)
            check(api)

    asyncio.run(main())


def holder(api):
    leases = api.all("leases")
    return leases[0]["spec"]["holderIdentity"] if leases else ""


async def call(service, verb, body):
    """The status and text of a call, as of a kube-scheduler that writes nothing itself."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url(service)}/scheduler/{verb}", json=body) as answer,
    ):
        return answer.status, await answer.text()


async def asked(service):
    """The status and text of a filter call."""
    metadata = {"name": "x", "namespace": "n", "uid": "u"}
    return await call(service, "filter", {"Pod": {**pod("x", 1), "metadata": metadata}, "NodeNames": []})


async def schedule(service, one):
    """Both calls of a pod's cycle; the second also where the first is not answered."""
    metadata = one["metadata"]
    names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
    await call(service, "filter", {"Pod": one, "NodeNames": ["a"]})
    await call(service, "bind", {**names, "Node": "a"})


def test_one_decides_while_it_is_called_and_gives_the_lease_back_when_it_is_not():
    async def story(api):
        async with replica(api, "one") as one, replica(api, "other") as other:
            assert (await asked(one))[0] == 200
            status, text = await asked(other)
            assert (status, text.strip()) == (503, "another replica decides (one)")
            await until(lambda: holder(api) == "")
            assert (await asked(other))[0] == 200
            assert holder(api) == "other"

    run(story)


def test_a_kube_scheduler_that_has_ended_leaves_the_lease_to_its_successor_at_once():
    times = replace(QUICK, idle=60.0, unconnected=0.5)

    async def story(api):
        async with replica(api, "one", times) as one, replica(api, "other", times) as other:
            async with aiohttp.ClientSession() as session:
                body = {"Pod": {**pod("x", 1), "metadata": {"name": "x", "namespace": "n", "uid": "u"}}}
                async with session.post(
                    f"{url(one)}/scheduler/filter", json={**body, "NodeNames": []}
                ) as answer:
                    assert answer.status == 200
                    await answer.read()
                await asyncio.sleep(1.5)
                assert holder(api) == "one", "it is connected"
            await until(lambda: holder(api) == "")
            assert (await asked(other))[0] == 200

    run(story)


def test_the_first_request_after_a_pause_is_answered_however_long_the_lease_is_left_alone():
    async def story(api):
        async with replica(api, "one", replace(QUICK, retry=60.0)) as one:
            assert await asked(one) == (200, ANY)

    run(story)


def test_who_has_led_last_reads_nothing_anew():
    async def story(api):
        async with replica(api, "one") as one:
            await asked(one)
            lists = one.pods.lists
            await until(lambda: holder(api) == "")
            assert (await asked(one))[0] == 200
            assert one.pods.lists == lists

    run(story)


def test_a_successor_counts_what_its_own_watch_has_not_shown():
    async def story(api):
        async with replica(api, "other") as other:
            async with replica(api, "one") as one, SchedulerStandIn(api, url(one)):
                api.lag = 30.0  # of the watches: the successor sees no binding of the first
                for name in ("first", "second"):
                    api.create("pods", pod(name, 10))
                await until(lambda: len(bound(api)) == 2)
            api.create("pods", pod("third", 10))
            async with SchedulerStandIn(api, url(other)) as scheduler:
                await until(lambda: "filter" in scheduler.calls)
                await asyncio.sleep(0.3)
            assert "third" not in bound(api)

    run(story, node("a"))


def test_a_binding_that_arrives_after_a_takeover_is_not_written():
    """The first service dies while a binding is on its way; the GPU goes to a more urgent pod meanwhile."""

    async def story(api):
        async with replica(api, "other") as other:
            async with replica(api, "one") as one:
                api.faults += [Fault("POST", "late/binding", 0, later=6.0, count=1)]
                await schedule(one, api.create("pods", pod("late", 16)))
                assert one.placer.attempts.doubtful
            assert holder(api) == "one"  # not given back: nothing is certain
            urgent = api.create("pods", pod("urgent", 16))
            while not bound(api):
                await schedule(other, urgent)
            await until(lambda: {201, 409} & {each.status for each in api.writes if "late/b" in each.path})
            assert bound(api) == {"urgent": "a"}

    run(story, node("a", gpus=1))


def test_a_binding_in_doubt_is_not_written_by_a_service_that_decides_again():
    """It had no clear answer; another service decided meanwhile, gave the GPU away and its lease back."""

    async def story(api):
        async with replica(api, "other") as other, replica(api, "one") as one:
            api.faults += [Fault("POST", "late/binding", 0, effect=False, count=1)]
            late = api.create("pods", pod("late", 16))
            await schedule(one, late)
            assert one.placer.attempts.doubtful
            urgent = api.create("pods", pod("urgent", 16))
            while not bound(api):
                await schedule(other, urgent)
            await until(lambda: holder(api) == "")
            await schedule(one, late)
            assert holder(api) == "one"
            assert bound(api) == {"urgent": "a"}
            check(api)
            assert not one.placer.attempts.doubtful
            api.delete("pods", "urgent", "default")
            while "late" not in bound(api):
                await schedule(one, late)

    run(story, node("a", gpus=1))


def test_a_service_started_anew_under_its_name_does_not_wait_for_its_own_lease():
    async def story(api):
        async with replica(api, "one") as one:
            await asked(one)
            api.faults.append(Fault("PUT", "/leases/", 500))  # it ends, and its lease stays
        api.faults.clear()
        assert holder(api) == "one"
        api.create("pods", pod("waits", 1))
        async with replica(api, "one") as one:
            assert (await asked(one))[0] == 200
        conditions = api.get("pods", "waits", "default")["status"]["conditions"]
        assert [each["type"] for each in conditions] == ["gigaslice.io/Scheduler"]

    run(story)


def test_a_takeover_goes_on_where_every_other_request_of_it_fails():
    async def story(api):
        for number in range(20):
            api.create("pods", pod(f"p-{number}", 1))
        turns = itertools.count()
        api.faults.append(Fault("PATCH", "/status", 500, when=lambda *_: next(turns) % 2))
        async with replica(api, "one") as one, SchedulerStandIn(api, url(one)):
            await until(lambda: len(bound(api)) == 20)

    run(story, node("a"))


@pytest.mark.parametrize("status", [403, 422, 500])
def test_a_pod_that_cannot_be_written_keeps_no_other_waiting_for_ever(status):
    times = replace(QUICK, over=3600.0)

    async def story(api):
        for name in ("bad", "good"):
            api.create("pods", pod(name, 1))
        api.faults.append(Fault("PATCH", "/pods/bad/status", status))
        async with replica(api, "one", times) as one, SchedulerStandIn(api, url(one)):
            await until(lambda: api.asked("PATCH", "/pods/bad/status") > 2)
            assert bound(api) == {}, "an older binding of it may still be written"
            one.election._times = replace(times, over=0.0)
            await until(lambda: bound(api).keys() == {"bad", "good"})

    run(story, node("a"))


def test_a_replica_that_cannot_renew_answers_no_more():
    async def story(api):
        async with replica(api, "one") as one:
            await asked(one)
            api.faults.append(Fault("PUT", "/leases/", 500))
            await until(lambda: not one.election.seconds_left)
            api.create("pods", pod("p", 1))
            async with SchedulerStandIn(api, url(one)) as scheduler:
                await until(
                    lambda: ("filter", 503) in [(verb, status) for verb, _, _, status, _ in scheduler.said]
                )
            assert bound(api) == {}
            api.faults.clear()
            async with SchedulerStandIn(api, url(one)):
                await until(lambda: bound(api))

    run(story, node("a"))


def test_a_pod_that_changes_between_filter_and_binding_is_bound_as_it_is_now():
    async def story(api):
        async with replica(api, "one") as one, SchedulerStandIn(api, url(one)):
            api.faults.append(Fault("POST", "/binding", 200, delay=0.5, count=1))
            api.create("pods", pod("p", 1))
            await until(lambda: one.binder.busy)
            api.change("pods", "p", {"metadata": {"labels": {"a": "b"}}}, "default")
            await until(lambda: bound(api))
            assert bindings(api) == [409, 201]

    run(story, node("a"))


def test_two_pairs_that_take_turns_in_a_burst():
    """Each pair ends in the midst of it, with and without an answer to its bindings."""

    async def story(api):
        for number in range(24):
            api.create("pods", pod(f"p-{number}", 3))
        for turn in range(4):
            with contextlib.suppress(asyncio.TimeoutError):
                async with replica(api, f"r{turn % 2}") as service, SchedulerStandIn(api, url(service)):
                    if turn % 2:
                        api.faults.append(Fault("POST", "/binding", 0, later=0.5, count=2))
                    await until(lambda turn=turn: len(bound(api)) >= min(20, 5 * turn + 5))
        check(api)

    run(story, node("a", gpus=4))
