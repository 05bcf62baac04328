# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between filter, reservation and binding.

After every story no GPU is promised twice (`simulated_cluster.check`).
"""

import asyncio
import random

import pytest

from gigaslice.core.cluster.names import INVENTORY
from tests.fakes.eventually import until
from tests.fakes.kubeapi import ApiServer, Fault
from tests.fakes.scheduler import SchedulerStandIn
from tests.integration.cluster.simulated_cluster import (
    bindings,
    bound,
    check,
    inventory,
    node,
    play,
    pod,
    serving,
    url,
)

BINDING = "/binding"


@pytest.mark.parametrize("status", [500, 503, 0])
@pytest.mark.parametrize("effect", [True, False])
def test_a_binding_without_a_clear_answer(status, effect):
    """Written or not: the pod is bound once, where it was decided at first."""

    async def story(api, service, scheduler):
        api.faults.append(Fault("POST", BINDING, status, effect=effect, count=1))
        api.create("pods", pod("p", 16))
        await until(lambda: bound(api))
        await until(lambda: not service.placer.attempts.counts()["doubtful"])
        assert bindings(api).count(201) == 1
        api.create("pods", pod("q", 16))
        await until(lambda: len(bound(api)) == 2)

    play(story, node("a", gpus=1), node("b", gpus=1))


def test_a_binding_that_arrives_after_everyone_has_given_it_up():
    async def story(api, service, scheduler):
        api.faults.append(Fault("POST", BINDING, 500, later=0.3, count=1))
        api.create("pods", pod("late", 10))
        await until(lambda: service.placer.attempts.counts()["doubtful"] or bound(api))
        for number in range(3):
            api.create("pods", pod(f"p-{number}", 10))
        await until(lambda: len(bound(api)) == 2)
        await asyncio.sleep(0.5)

    play(story, node("a"))


def test_no_other_pod_gets_the_gpus_of_a_binding_in_doubt():
    async def story(api, service, scheduler):
        api.faults += [Fault("POST", "late/binding", 0), Fault("GET", "/pods/late", 500)]
        api.create("pods", pod("late", 16))
        await until(lambda: service.placer.attempts.counts()["doubtful"] == 1)
        api.create("pods", pod("other", 16))
        await asyncio.sleep(0.3)
        assert bound(api) == {}
        api.delete("pods", "late", "default")  # the doubt ends
        await until(lambda: "other" in bound(api))

    play(story, node("a", gpus=1))


@pytest.mark.parametrize("status", [403, 404, 409, 422, 429])
def test_a_binding_that_was_certainly_not_written_releases_its_gpus(status):
    async def story(api, service, scheduler):
        api.faults.append(Fault("POST", BINDING, status, count=1))
        api.create("pods", pod("p", 16))
        api.create("pods", pod("q", 16))
        await until(lambda: len(bound(api)) == 2)
        assert sorted(bindings(api)) == sorted([status, 201, 201])  # of p and q, which come first is open

    play(story, node("a"))


def test_too_many_requests_is_waited_for_and_costs_no_retry():
    async def story(api, service, scheduler):
        api.faults.append(Fault("POST", BINDING, 429, count=1, headers="Retry-After: 1\r\n"))
        api.create("pods", pod("p", 16))
        await until(lambda: bound(api))
        assert scheduler.failures == []

    play(story, node("a"))


def test_a_second_bind_while_the_first_runs_writes_nothing():
    """As 1.20 does when its patience ends."""

    async def story(api, service, scheduler):
        api.faults.append(Fault("POST", BINDING, 200, delay=0.6, count=1))
        api.create("pods", pod("p", 8))
        await until(lambda: bound(api))
        await asyncio.sleep(0.3)
        assert scheduler.calls.count("bind") + len(scheduler.failures) >= 2
        assert bindings(api) == [201]

    play(story, node("a"), node("b"), standin={"timeout": 0.2, "second_bind": True})


def test_a_pod_deleted_while_it_is_bound_leaves_nothing_behind():
    async def story(api, service, scheduler):
        api.faults.append(Fault("POST", BINDING, 200, delay=0.2, count=1))
        api.create("pods", pod("p", 16))
        await until(lambda: service.placer.attempts.counts()["binding"])
        api.delete("pods", "p", "default")
        await until(lambda: not len(service.placer.attempts))
        api.create("pods", pod("q", 16))
        await until(lambda: bound(api))
        assert bindings(api) == [404, 201]

    play(story, node("a", gpus=1))


def test_a_pod_made_anew_under_its_name_is_not_bound_to_the_old_ones_gpus():
    async def story(api, service, scheduler):
        api.faults.append(Fault("POST", BINDING, 200, delay=0.2, count=1))
        api.create("pods", pod("p", 16))
        await until(lambda: service.placer.attempts.counts()["binding"])
        api.delete("pods", "p", "default")
        api.create("pods", pod("p", 4))
        await until(lambda: bound(api))
        assert bindings(api) == [409, 201]

    play(story, node("a", gpus=1))


def test_a_reservation_that_is_never_bound_ends_and_its_neighbour_comes():
    async def story(api, service, scheduler):
        body = {
            "Pod": {**pod("x", 16), "metadata": {"name": "x", "namespace": "n", "uid": "u"}},
            "NodeNames": ["a"],
        }
        await scheduler._call("filter", {"metadata": {"name": "x"}}, body)
        assert service.placer.attempts.counts()["provisional"] == 1
        api.create("pods", pod("p", 16))
        await until(lambda: scheduler.calls.count("filter") >= 3)
        await until(lambda: bound(api))  # no event of the cluster: the service hands it back
        await until(lambda: service.wakeups)

    play(story, node("a", gpus=1), reserve=0.5)


def test_the_api_server_restarts_in_a_burst():
    async def story(api, service, scheduler):
        for number in range(60):
            api.create("pods", pod(f"p-{number}", 4))
            if number == 20:
                await until(lambda: bound(api))
                await api.stop()
                api.store.compact()
                await asyncio.sleep(0.2)
                await api.start()
        await until(lambda: len(bound(api)) == 32)

    play(story, node("a", gpus=4), node("b", gpus=4))


def test_nodes_and_gpus_come_and_go_in_a_burst():
    choices = random.Random(4)

    async def story(api, service, scheduler):
        for number in range(80):
            api.create("pods", pod(f"p-{number}", choices.choice((2, 6, 10))))
            name = choices.choice("abc")
            text = inventory(name, unhealthy=choices.choice(("", "xid-79")))
            api.change("nodes", name, {"metadata": {"annotations": {INVENTORY: text}}})
            if number % 10 == 9:
                await asyncio.sleep(0.05)
                for gone in list(bound(api))[:3]:
                    api.delete("pods", gone, "default")
        for name in "abc":
            api.change("nodes", name, {"metadata": {"annotations": {INVENTORY: inventory(name)}}})
        api.delete("nodes", "c")
        await asyncio.sleep(0.5)
        await until(lambda: bound(api))
        check(api)

    play(story, node("a"), node("b"), node("c"))


def test_starting_again_needs_nothing_but_the_api():
    """The service ends at any time in a burst; the next one goes on from what the API shows."""

    async def main():
        async with ApiServer() as api:
            for name in ("a", "b"):
                api.create("nodes", node(name, gpus=4))
            async with serving(api) as service:
                scheduler = SchedulerStandIn(api, url(service))
                async with scheduler:
                    for number in range(40):
                        api.create("pods", pod(f"p-{number}", 3))
                    await until(lambda: len(bound(api)) > 5)
            check(api)
            async with serving(api) as service, SchedulerStandIn(api, url(service)):
                await until(lambda: len(bound(api)) == 40)
            check(api)

    asyncio.run(main())


def test_two_pairs_one_after_the_other_promise_nothing_twice():
    async def main():
        async with ApiServer() as api:
            api.create("nodes", node("a", gpus=4))
            async with serving(api) as one, serving(api) as other:
                for turn, service in enumerate((one, other, one, other)):
                    async with SchedulerStandIn(api, url(service)):
                        for number in range(8):
                            api.create("pods", pod(f"p-{turn}-{number}", 3))
                        await until(lambda turn=turn: len(bound(api)) == min(20, 8 * turn + 8))
                    check(api)

    asyncio.run(main())
