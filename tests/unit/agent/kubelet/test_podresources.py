# SPDX-License-Identifier: Apache-2.0
import asyncio

import grpc
import pytest

from agent.kubelet.pb import podresources_v1_pb2 as api
from agent.kubelet.pb import podresources_v1_pb2_grpc as rpc
from agent.kubelet.podresources import PodResourcesClient
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.errors import KubeletError


class Lister(rpc.PodResourcesListerServicer):
    """A kubelet that answers List; the generated base refuses every other call as unimplemented."""

    def __init__(self, answer):
        self.answer = answer

    async def List(self, request, context):  # noqa: N802
        return await self.answer(context)


def ask(directory, answer, timeout=60.0):
    async def main():
        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(Lister(answer), server)
        server.add_insecure_port(f"unix:{directory}/p.sock")
        await server.start()
        try:
            return await PodResourcesClient(directory / "p.sock", "r", timeout).list()
        finally:
            await server.stop(grace=None)

    return asyncio.run(main())


def pods(count):
    return api.ListPodResourcesResponse(
        pod_resources=[
            api.PodResources(
                name=f"pod-{number}",
                namespace="default",
                containers=[
                    api.ContainerResources(
                        name="main",
                        devices=[
                            api.ContainerDevices(resource_name="r", device_ids=[f"GPU-{'0' * 36}/{number}"])
                        ],
                    )
                ],
            )
            for number in range(count)
        ]
    )


def test_containers_are_listed(short_dir):
    async def answer(context):
        return pods(2)

    assert [one.container for one in ask(short_dir, answer).containers] == [
        ContainerRef("default", "pod-0", "main"),
        ContainerRef("default", "pod-1", "main"),
    ]


def test_an_answer_above_grpcs_usual_limit_is_taken(short_dir):
    async def answer(context):
        return pods(60000)

    assert len(ask(short_dir, answer).containers) == 60000


def test_an_error_of_the_kubelet_is_one_line(short_dir):
    async def answer(context):
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limited")

    with pytest.raises(KubeletError, match="RESOURCE_EXHAUSTED: rate limited"):
        ask(short_dir, answer)


def test_a_kubelet_that_does_not_answer(short_dir):
    async def answer(context):
        await asyncio.sleep(30)

    with pytest.raises(KubeletError, match="DEADLINE_EXCEEDED"):
        ask(short_dir, answer, timeout=0.2)


def test_no_socket(short_dir):
    with pytest.raises(KubeletError, match="does not exist"):
        asyncio.run(PodResourcesClient(short_dir / "none.sock", "r").list())


def test_a_socket_nobody_listens_on(short_dir):
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "dead.sock"))
    with pytest.raises(KubeletError, match="UNAVAILABLE"):
        asyncio.run(PodResourcesClient(short_dir / "dead.sock", "r", 60.0).list())


def test_a_kubelet_that_is_asked_too_often_is_asked_again(short_dir):
    asked = []

    async def answer(context):
        asked.append(1)
        if len(asked) < 3:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return pods(1)

    assert len(ask(short_dir, answer).containers) == 1
    assert len(asked) == 3


def test_one_connection_serves_until_the_kubelet_has_a_new_socket(short_dir):
    path = short_dir / "p.sock"

    async def serve(count):
        async def answer(context):
            return pods(count)

        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(Lister(answer), server)
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        return server

    async def main():
        client = PodResourcesClient(path, "r")
        first = await serve(1)
        assert len((await client.list()).containers) == 1
        connection = client._connection
        assert len(await client.pods()) == 1
        assert client._connection is connection
        await first.stop(grace=None)
        second = await serve(2)
        assert [len(one.holding) for one in await client.pods()] == [1, 1]
        await client.close()
        await second.stop(grace=None)

    asyncio.run(main())


def test_a_question_that_fails_leaves_the_others_alone(short_dir):
    """An admission asks with less patience than the poller, and both use one connection."""

    async def main():
        waiting, answered = asyncio.Event(), asyncio.Event()

        async def answer(context):
            waiting.set()
            await answered.wait()
            return pods(1)

        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(Lister(answer), server)
        server.add_insecure_port(f"unix:{short_dir}/p.sock")
        await server.start()
        client = PodResourcesClient(short_dir / "p.sock", "r", 30.0)
        slow = asyncio.create_task(client.list())
        await waiting.wait()
        with pytest.raises(KubeletError, match="DEADLINE_EXCEEDED"):
            await client.pods()
        used = client._connection
        answered.set()
        assert len((await slow).containers) == 1
        assert used is None, "the next question gets a connection of its own"
        assert len(await client.pods()) == 1
        await client.close()
        await server.stop(grace=None)

    asyncio.run(main())


def test_a_kubelet_that_is_replaced_while_it_is_asked(short_dir):
    async def main():
        path = short_dir / "p.sock"
        waiting, answered = asyncio.Event(), asyncio.Event()

        async def slowly(context):
            waiting.set()
            await answered.wait()
            return pods(1)

        async def at_once(context):
            return pods(2)

        servers = []
        for number, answer in enumerate((slowly, at_once)):
            server = grpc.aio.server()
            servers.append(server)
            rpc.add_PodResourcesListerServicer_to_server(Lister(answer), server)
            server.add_insecure_port(f"unix:{short_dir}/{number}.sock")
            await server.start()
        client = PodResourcesClient(path, "r", 30.0)
        (short_dir / "0.sock").rename(path)
        old = asyncio.create_task(client.list())
        await waiting.wait()
        (short_dir / "1.sock").rename(path)
        assert len((await client.list()).containers) == 2
        answered.set()
        assert len((await old).containers) == 1
        await client.close()
        for server in servers:
            await server.stop(grace=None)

    asyncio.run(main())


def test_a_kubelet_that_did_not_answer_is_waited_for_less_until_it_does(short_dir):
    async def main():
        silent = True
        waited = []

        async def answer(context):
            waited.append(context.time_remaining())
            if silent:
                await asyncio.sleep(30)
            return pods(1)

        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(Lister(answer), server)
        server.add_insecure_port(f"unix:{short_dir}/p.sock")
        await server.start()
        client = PodResourcesClient(short_dir / "p.sock", "r")
        for _ in range(2):
            with pytest.raises(KubeletError, match="DEADLINE_EXCEEDED"):
                await client.pods()
        silent = False
        assert len((await client.list()).containers) == 1
        await client.pods()
        first, second, _, last = waited
        assert second < first / 4
        assert last > second * 2
        await client.close()
        await server.stop(grace=None)

    asyncio.run(main())
