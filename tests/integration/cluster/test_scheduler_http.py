# SPDX-License-Identifier: Apache-2.0
"""What the service answers to requests that no kube-scheduler sends, to large ones, and to two schedulers at once."""

import asyncio
import contextlib
import io
import json

import aiohttp
import pytest

from tests.fakes.kubeapi import ApiServer
from tests.integration.cluster.simulated_cluster import node, pod, serving, url

VERBS = ("filter", "prioritize", "preempt", "bind")


def answered(story, *nodes, **settings):
    """Plays STORY, which takes the service and a function that sends a body to a verb: status and text."""

    async def main():
        async with ApiServer() as api:
            for one in nodes:
                api.create("nodes", one)
            async with serving(api, **settings) as service, aiohttp.ClientSession() as session:

                async def send(verb, body):
                    content = body if isinstance(body, bytes) else json.dumps(body).encode()
                    async with session.post(
                        f"{url(service)}/scheduler/{verb}", data=io.BytesIO(content)
                    ) as reply:
                        return reply.status, await reply.text()

                await story(service, send)

    asyncio.run(main())


def asking(uid, slices, **fields):
    one = pod(uid, slices)
    return {**one, "metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": {**one["spec"], **fields}}


@pytest.mark.parametrize(
    "body", [b"", b"garbage", b"[]", b"{}", b'{"Pod": 3, "NodeNames": []}', b"\x00" * 1000]
)
def test_what_makes_no_sense_is_refused_with_a_sentence_and_the_service_goes_on(body):
    async def story(service, send):
        for verb in VERBS:
            status, text = await send(verb, body)
            assert status == 400 and text.strip(), verb
        status, text = await send("filter", {"Pod": asking("p", 8), "NodeNames": ["a"]})
        assert (status, json.loads(text)["NodeNames"]) == (200, ["a"])

    answered(story, node("a"))


def test_whole_nodes_of_a_large_cluster_are_taken():
    filler = {"annotations": {"example.com/filler": "x" * 20_000}}
    nodes = [{"metadata": {"name": f"n{number}", **filler}} for number in range(500)]

    async def story(service, send):
        body = {"Pod": asking("p", 8), "Nodes": {"items": [*nodes, {"metadata": {"name": "a", **filler}}]}}
        status, text = await send("filter", body)
        reply = json.loads(text)
        assert status == 200
        assert [one["metadata"]["name"] for one in reply["Nodes"]["items"]] == ["a"]
        assert len(reply["FailedAndUnresolvableNodes"]) == 500

    answered(story, node("a"))


def test_an_empty_list_of_nodes_is_answered_with_one():
    async def story(service, send):
        for nodes in ({"NodeNames": []}, {"Nodes": {"items": []}}, {"Nodes": None, "NodeNames": None}):
            status, text = await send("filter", {"Pod": asking("p", 8), **nodes})
            reply = json.loads(text)
            assert (status, reply["Error"], reply["FailedNodes"]) == (200, "", {})
            assert await send("prioritize", {"Pod": asking("p", 8), **nodes}) == (200, "[]")

    answered(story, node("a"))


def test_the_pods_of_two_profiles_share_the_gpus():
    async def story(service, send):
        for name, profile in (("p", "gigaslice-scheduler"), ("q", "default-scheduler"), ("r", "other")):
            body = {"Pod": asking(name, 16, schedulerName=profile), "NodeNames": ["a"]}
            status, text = await send("filter", body)
            fits = json.loads(text)["NodeNames"]
            assert (status, fits) == (200, ["a"] if name != "r" else [])

    answered(story, node("a", gpus=2))


@pytest.mark.parametrize("sent", [b"", b"POST /scheduler/filter HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"])
def test_a_flood_of_connections_takes_no_request_of_kube_scheduler(sent):
    async def story(service, send):
        body = {"Pod": asking("p", 8), "NodeNames": ["a"]}
        writers, answers = [], []
        for number in range(800):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", service.port, local_addr=("127.0.0.2", 0)
                )
                writer.write(sent)
                writers.append(writer)
            if number % 80 == 79:
                answers.append((await send("filter", body))[0])
        kept = len(service.listener.table.everyone())
        for writer in writers:
            writer.transport.abort()
        assert answers == [200] * 10
        assert kept <= 512 + 256 + 2

    answered(story, node("a"))
