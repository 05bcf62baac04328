# SPDX-License-Identifier: Apache-2.0
"""The service between the stand-ins of API server and kube-scheduler: what it is for, and what it costs."""

import asyncio

import aiohttp
import pytest

from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT, INVENTORY
from tests.fakes.eventually import until
from tests.fakes.ports import free_port
from tests.integration.cluster.simulated_cluster import (
    bindings,
    bound,
    held,
    inventory,
    node,
    play,
    pod,
    url,
)


@pytest.mark.parametrize(
    ("reply", "calls"), [("best", ["filter", "bind"]), ("all", ["filter", "prioritize", "bind"])]
)
def test_a_pod_gets_its_node_and_its_gpus_in_one_write(reply, calls):
    async def story(api, service, scheduler):
        made = api.create("pods", pod("p", 8))
        await until(lambda: bound(api))
        found = api.get("pods", "p", "default")
        shares = Assignment.decode(found["metadata"]["annotations"][ASSIGNMENT]).containers["c0"]
        assert [share.slices for share in shares] == [8]
        assert shares[0].gpu.startswith(f"GPU-{found['spec']['nodeName']}-")
        ((_, path, body, status),) = [one for one in api.writes if one[0] == "POST"]
        assert (path, status) == ("/api/v1/namespaces/default/pods/p/binding", 201)
        assert body["metadata"]["uid"] == made["metadata"]["uid"]
        await until(lambda: len(scheduler.calls) >= len(calls))  # the binding's answer comes after its write
        assert scheduler.calls == calls

    play(story, node("a"), node("b"), filter_reply=reply)


def test_filter_names_the_node_that_scoring_would_choose_and_keeps_its_gpus():
    """What fits best is the fullest node; the others are neither named nor refused."""

    async def story(api, service, scheduler):
        api.create("pods", pod("first", 4))
        await until(lambda: bound(api))
        full = bound(api)["first"]
        others = [name for name in "abc" if name != full]
        body = {"Pod": api.create("pods", pod("p", 8, other__x=1)), "NodeNames": [*others, full]}
        status, reply = await scheduler._call("filter", body["Pod"], body)
        assert (status, reply["NodeNames"]) == (200, [full])
        assert reply["FailedNodes"] == reply["FailedAndUnresolvableNodes"] == {}
        assert service.placer.attempts.get(body["Pod"]["metadata"]["uid"]).node == full

    play(story, node("a"), node("b"), node("c"))


def test_six_and_six_free_are_not_eight_together():
    async def story(api, service, scheduler):
        for number in range(2):
            api.create("pods", pod(f"ten-{number}", 10))
        await until(lambda: len(bound(api)) == 2)
        api.create("pods", pod("eight", 8))
        await until(lambda: len([one for one in scheduler.said if one[1] == "eight"]) >= 2)
        await asyncio.sleep(0.1)
        assert "eight" not in bound(api)
        texts = [one[4]["FailedNodes"] for one in scheduler.said if one[1] == "eight"]
        assert (
            texts == [{"a": "no GPU has that much memory free together"}] * 2
        )  # its own condition woke it once
        api.delete("pods", "ten-0", "default")
        await until(lambda: "eight" in bound(api))

    play(story, node("a"))


def test_a_gpu_is_kept_for_a_pod_whose_status_names_its_node():
    async def story(api, service, scheduler):
        urgent = pod("urgent", 16, priority=1000)
        urgent["spec"]["schedulerName"] = (
            "another"  # which has evicted others and waits for the end of its pause
        )
        urgent["status"]["nominatedNodeName"] = "a"
        api.create("pods", urgent)
        await until(lambda: len(service.pods) == 1)
        api.create("pods", pod("q", 8))
        await until(lambda: scheduler.calls.count("filter") >= 2)
        await asyncio.sleep(0.5)
        assert bound(api) == {}
        texts = {one[4]["FailedNodes"]["a"] for one in scheduler.said if one[1] == "q"}
        assert texts == {"no GPU has that much memory free together"}
        assert service.wakeups == 0
        api.create("pods", pod("more-urgent", 16, priority=2000))
        await until(lambda: bound(api))
        assert bound(api) == {"more-urgent": "a"}
        api.delete("pods", "more-urgent", "default")
        await asyncio.sleep(0.3)
        assert bound(api) == {}
        api.change("pods", "urgent", {"status": {"nominatedNodeName": None}}, "default")
        await until(lambda: bound(api) == {"q": "a"})

    play(story, node("a", gpus=1))


def test_two_models_in_one_node():
    async def story(api, service, scheduler):
        document = {"metadata": {"name": "big"}, "spec": {"selector": {"matchLabels": {"model": "NVIDIA B"}}}}
        api.create("resourceclasses", document)
        await until(lambda: len(service.classes) == 1)
        limits = {"gigaslice.io__gpu": 1, "gpuclass.gigaslice.io__big": 1}
        api.create("pods", pod("p", **limits))
        await until(lambda: bound(api))
        assert bound(api) == {"p": "b"}

    play(story, node("a", model="NVIDIA A"), node("b", model="NVIDIA B"))


def test_pods_of_a_dataset_go_where_it_is_and_stay_together_where_it_is_not_yet():
    async def story(api, service, scheduler):
        found = {"key": "ab" * 32, "source": "s3://b/coco", "digest": "d1", "bytes": 100, "state": "Ready"}
        status = {"freeBytes": 1 << 40, "datasets": [found]}
        api.create("datasetnodes", {"metadata": {"name": "c"}, "status": status})
        api.create("datasets", {"metadata": {"name": "coco"}, "spec": {"source": "s3://b/coco/"}})
        await until(lambda: len(service.dataset_nodes) == len(service.datasets) == 1)
        for name, attributes in (
            ("named", {"dataset": "coco"}),
            ("direct", {"source": "s3://b/coco"}),
            ("new-0", {"source": "s3://b/wiki"}),
            ("new-1", {"source": "s3://b/wiki"}),
        ):
            document = pod(name, 8)
            volume = {
                "name": "data",
                "csi": {"driver": "dataset.gigaslice.io", "volumeAttributes": attributes},
            }
            document["spec"]["volumes"] = [volume]
            api.create("pods", document)
            await until(lambda name=name: name in bound(api))
        assert bound(api) == {"named": "c", "direct": "c", "new-0": "a", "new-1": "a"}

    play(story, *(node(name, gpus=1) for name in "abc"))


def test_a_class_that_does_not_exist_is_said_and_its_pod_comes_when_it_does():
    async def story(api, service, scheduler):
        limits = {"gigaslice.io__gpu": 1, "gpuclass.gigaslice.io__late": 1}
        api.create("pods", pod("p", **limits))
        await until(lambda: scheduler.calls.count("filter") >= 2)
        reply = scheduler.said[-1][4]
        assert 'there is no GPU class "late"' in reply["FailedAndUnresolvableNodes"]["a"]
        api.create(
            "resourceclasses",
            {"metadata": {"name": "late"}, "spec": {"selector": {"matchLabels": {"vendor": "NVIDIA"}}}},
        )
        await until(lambda: bound(api))  # no event of a kube-scheduler: the service hands the pod back
        await until(lambda: service.wakeups)

    play(story, node("a"))


def test_a_burst_onto_one_node_needs_no_second_binding():
    async def story(api, service, scheduler):
        for number in range(100):
            api.create("pods", pod(f"p-{number}", 1))
        await until(lambda: len(bound(api)) == 100)
        assert bindings(api) == [201] * 100
        assert scheduler.failures == []
        assert max(held(api).values()) <= 16

    play(story, node("a", gpus=8))


def test_five_hundred_pods_onto_few_gpus_and_each_gpu_that_frees_is_used():
    async def story(api, service, scheduler):
        for number in range(500):
            api.create("pods", pod(f"p-{number}", 10))  # by the node's sum a third one would fit
        await until(lambda: len(bound(api)) == 4)
        await until(lambda: len(service.placer.waiting) > 400)
        for count in range(5, 8):
            gone = min(bound(api))
            api.delete("pods", gone, "default")
            await until(lambda count=count: bindings(api).count(201) == count)
        assert scheduler.failures == []
        assert len(bound(api)) == 4

    play(story, node("a"), node("b"))


def test_a_refusals_text_is_the_same_as_long_as_nothing_changes():
    async def story(api, service, scheduler):
        for number in range(2):
            api.create("pods", pod(f"ten-{number}", 10))
        await until(lambda: len(bound(api)) == 2)
        for number in range(3):
            api.create("pods", pod(f"p-{number}", 8))
        await until(lambda: scheduler.calls.count("filter") >= 8)
        await asyncio.sleep(0.3)
        texts = {str(one[4]["FailedNodes"]) for one in scheduler.said if one[1].startswith("p-")}
        assert len(texts) == 1
        assert scheduler.calls.count("filter") == 2 + 6  # two for each that is refused: no loop

    play(story, node("a"))


def test_the_inventory_of_a_gpu_that_heals_wakes_its_pods():
    async def story(api, service, scheduler):
        api.create("pods", pod("p", 8))
        await until(lambda: scheduler.calls.count("filter") >= 2)
        assert scheduler.said[-1][4]["FailedAndUnresolvableNodes"] == {
            "a": "matching GPUs are unhealthy or cordoned"
        }
        api.change("nodes", "a", {"metadata": {"annotations": {INVENTORY: inventory("a")}}})
        await until(lambda: bound(api))

    play(story, node("a", unhealthy="xid-79"))


def test_a_scheduler_that_does_not_react_to_annotations_is_told_by_the_service():
    async def story(api, service, scheduler):
        api.create("pods", pod("p", 8))
        await until(lambda: scheduler.calls.count("filter") >= 2)
        api.change("nodes", "a", {"metadata": {"annotations": {INVENTORY: inventory("a")}}})
        await until(lambda: bound(api))
        await until(lambda: service.wakeups)

    play(story, node("a", unhealthy="xid-79"), standin={"annotations_wake": False})


def test_an_event_that_the_scheduler_sees_before_the_service_loses_no_pod():
    async def story(api, service, scheduler):
        for number in range(2):
            api.create("pods", pod(f"ten-{number}", 10))
        await until(lambda: len(bound(api)) == 2)
        api.create("pods", pod("eight", 8))
        await until(lambda: scheduler.calls.count("filter") >= 4)
        await until(lambda: not len(service.placer.attempts))
        api.lag = 0.2  # the scheduler's watch is quicker
        api.delete("pods", "ten-0", "default")
        await until(lambda: "eight" in bound(api))
        await until(lambda: service.wakeups)

    play(story, node("a"))


def test_preemption_frees_one_gpu_and_not_a_sum():
    async def story(api, service, scheduler):
        for number, slices in enumerate((10, 10, 6, 6)):
            api.create("pods", pod(f"low-{number}", slices))
            await until(lambda number=number: len(bound(api)) == number + 1)
        api.create("pods", pod("high", 12, priority=100))
        await until(lambda: "high" in bound(api))
        assert "preempt" in scheduler.calls
        left = set(bound(api))
        assert len(left) == 3  # the two of one GPU have gone

    play(story, node("a"))


def test_pods_that_ask_for_nothing_of_ours_pass():
    async def story(api, service, scheduler):
        names = ["a", "b", "unknown"]
        body = {
            "Pod": {**pod("x"), "metadata": {"name": "x", "namespace": "n", "uid": "u"}},
            "NodeNames": names,
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url(service)}/scheduler/filter", json=body) as one,
        ):
            assert (await one.json())["NodeNames"] == names

    play(story, node("a"))


def test_whole_node_objects_are_taken_and_given_back():
    async def story(api, service, scheduler):
        nodes = [*api.all("nodes"), {"metadata": {"name": "plain"}}]
        body = {
            "Pod": {**pod("x", 8), "metadata": {"name": "x", "namespace": "n", "uid": "u"}},
            "Nodes": {"items": nodes},
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url(service)}/scheduler/filter", json=body) as one,
        ):
            reply = await one.json()
        assert [found["metadata"]["name"] for found in reply["Nodes"]["items"]] == ["a"]
        assert list(reply["FailedAndUnresolvableNodes"]) == ["plain"]

    play(story, node("a"))


def test_metrics_and_probes():
    async def story(api, service, scheduler):
        for number in range(2):
            api.create("pods", pod(f"ten-{number}", 10))
        await until(lambda: len(bound(api)) == 2)
        api.create("pods", pod("eight", 8))
        await until(lambda: scheduler.calls.count("filter") >= 4)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url(service)}/metrics") as one:
                text = await one.text()
            for path, status in (("/healthz", 200), ("/readyz", 200), ("/other", 404)):
                async with session.get(url(service) + path) as one:
                    assert one.status == status
        for line in (
            'gigaslice_scheduler_bindings_total{result="bound"} 2.0',
            'gigaslice_scheduler_rejections_total{reason="no-room"} 2.0',
            'gigaslice_scheduler_objects{resource="nodes"} 1.0',
            "gigaslice_scheduler_ready 1.0",
            "gigaslice_scheduler_filter_seconds_count 4.0",
            "gigaslice_scheduler_bind_seconds_count 2.0",
            'gigaslice_scheduler_reservations{state="provisional"} 0.0',
        ):
            assert line in text, line

    play(story, node("a"))


def test_metrics_and_probes_apart_from_what_kube_scheduler_asks(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    address = ("127.0.0.1", free_port())

    async def story(api, service, scheduler):
        apart = f"http://127.0.0.1:{address[1]}"
        async with aiohttp.ClientSession() as session:

            async def get(path, **headers):
                async with session.get(apart + path, headers=headers) as one:
                    return one.status, await one.text()

            for path, status in (("/healthz", 200), ("/readyz", 200), ("/scheduler/filter", 404)):
                assert (await get(path))[0] == status
            async with session.post(f"{apart}/scheduler/bind", data=b"{}") as one:
                assert one.status == 405, "no scheduler binds pods here"
            assert (await get("/metrics"))[0] == 401
            status, text = await get("/metrics", Authorization="Bearer secret")
            assert status == 200 and "gigaslice_scheduler_ready 1.0" in text

    play(story, node("a"), metrics_address=address, metrics_token_file=token)


def test_nonsense_is_refused_and_harms_nothing():
    async def story(api, service, scheduler):
        async with aiohttp.ClientSession() as session:
            for verb in ("filter", "prioritize", "preempt", "bind"):
                for body in (b"", b"[]", b"{", b'{"Pod":{}}', b'{"Pod":{"metadata":{}},"NodeNames":3}'):
                    async with session.post(f"{url(service)}/scheduler/{verb}", data=body) as one:
                        assert one.status == 400
        api.create("pods", pod("p", 8))
        await until(lambda: bound(api))

    play(story, node("a"))
