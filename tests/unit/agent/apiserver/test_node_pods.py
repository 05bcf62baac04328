# SPDX-License-Identifier: Apache-2.0
"""This node's pods against a server that ends, forgets, hangs, cuts and refuses."""

import asyncio
import math

import pytest

from agent.apiserver import KubeCluster
from agent.apiserver.node_client import node_client
from agent.apiserver.node_pods import is_refused, is_synced, node_pods
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.eventually import run_beside, until
from tests.fakes.kubeapi import NODE, ApiServer, pod_document

GPU = "gigaslice.io/vgpu-memory"


def is_watching(pods):
    """Whether the list is there and the watch has begun: one that is being asked for has read the token already."""
    return pods.silent_seconds(math.inf) == 0.0


@pytest.fixture
def watching(server, client_of):
    """Runs a coroutine function with an informer that is at work."""

    def run(story, **more):
        async def main():
            async with client_of(connect=5, answer=5) as client:
                pods = node_pods(client, NODE, lambda: None, pause=0.01, **more)
                await run_beside(pods.run(), story(pods))

        asyncio.run(main())

    return run


def lists(server):
    """How many times all pods were listed, watches left out."""
    return server.asked("GET", "/pods") - server.asked("GET", "watch=1")


def names(pods):
    return {name for _, name in pods.objects}


def test_pods_of_this_node_come_and_change_and_go(server, watching):
    server.put("pods", pod_document("there", {GPU: 8}))
    server.put("pods", pod_document("elsewhere", {GPU: 8}, node="node-b"))

    async def story(pods):
        await until(lambda: is_synced(pods))
        assert names(pods) == {"there"}
        server.put("pods", pod_document("new", {GPU: 2}, annotations={"gigaslice.io/gpus": "2"}))
        server.put("pods", pod_document("another", node="node-b"))
        await until(lambda: "new" in names(pods))
        assert pods.objects["default", "new"].annotations == {"gigaslice.io/gpus": "2"}
        server.annotate("default", "new", **{"gigaslice.io/gpus": "4"})
        await until(lambda: pods.objects["default", "new"].annotations == {"gigaslice.io/gpus": "4"})
        server.delete("pods", "there", "default")
        await until(lambda: names(pods) == {"new"})

    watching(story)


def test_a_watch_that_the_server_ends_goes_on_where_it_was(server, watching):
    async def story(pods):
        await until(lambda: is_synced(pods))
        for number in range(5):
            await until(lambda number=number: server.asked("GET", "watch=1") > number)
            server.drop_watches(in_the_middle=number % 2 == 1)
            server.put("pods", pod_document(f"p{number}"))
            await until(lambda number=number: f"p{number}" in names(pods))
        assert server.asked("GET", "watch=1") > 5
        assert is_synced(pods)

    watching(story)


def test_watches_end_by_themselves_after_their_time(server, watching):
    async def story(pods):
        for number in range(3):
            await until(lambda number=number: server.asked("GET", "watch=1") > number)
            server.put("pods", pod_document(f"p{number}"))
            await until(lambda number=number: f"p{number}" in names(pods))
        assert lists(server) == 1, "one list was enough"

    watching(story, watch_seconds=1)


def test_a_version_that_is_forgotten_brings_a_new_list(server, watching):
    server.put("pods", pod_document("old"))

    async def story(pods):
        await until(lambda: is_watching(pods))
        server.hanging = True
        server.drop_watches()
        server.delete("pods", "old", "default")
        server.put("pods", pod_document("new"))
        server.store.history.clear()  # no event tells that "old" is gone
        server.store.compact()
        server.hanging = False
        await until(lambda: names(pods) == {"new"})

    watching(story)


def test_a_server_that_lags_behind_brings_no_earlier_pod_back(server, watching):
    """Of several servers the one that is asked after a 410 may not have seen yet what another one has told."""
    server.put("pods", pod_document("db-0", uid="first"))

    async def story(pods):
        await until(lambda: is_synced(pods))
        server.show_any_version(server.store.snapshot())
        server.delete("pods", "db-0", "default")
        server.put("pods", pod_document("db-0", uid="second"))
        await until(lambda: names(pods) and pods.objects["default", "db-0"].uid == "second")
        before = lists(server)
        server.store.compact()
        server.put("pods", pod_document("later"))
        await until(lambda: lists(server) > before)
        await until(lambda: names(pods) == {"db-0", "later"})
        assert pods.objects["default", "db-0"].uid == "second"

    watching(story)


def test_a_bookmark_moves_the_version_on(server, watching):
    async def story(pods):
        await until(lambda: is_watching(pods))
        server.store.bookmark()
        newest = server.version
        while not server.asked("GET", f"resourceVersion={newest}"):
            server.drop_watches()
            await asyncio.sleep(0.1)

    watching(story)


def test_silence_ends_a_watch(server, watching):
    async def story(pods):
        await until(lambda: is_synced(pods))
        before = server.asked("GET", "watch=1")
        server.hanging = True
        await until(lambda: server.asked("GET", "watch=1") > before)
        server.hanging = False
        server.put("pods", pod_document("p"))
        await until(lambda: "p" in names(pods))

    watching(story, watch_seconds=1, overtime=-0.7)


def test_refusal_is_told_and_what_was_known_stays(server, watching):
    server.put("pods", pod_document("p"))

    async def story(pods):
        await until(lambda: is_watching(pods))
        server.denial = 403
        server.drop_watches()
        await until(lambda: is_refused(pods))
        assert not is_synced(pods) and names(pods) == {"p"}
        server.denial = 0
        await until(lambda: is_synced(pods))
        assert not is_refused(pods)

    watching(story)


def test_a_server_that_starts_and_refuses_every_client_is_not_believed_at_once(server, watching):
    """Who is believed has what is allocated meanwhile go without its annotations, for good."""
    server.put("pods", pod_document("p"))

    async def story(pods):
        await until(lambda: is_synced(pods))
        for status, refused in (
            (403, False),
            (401, False),
            (0, False),
            (403, False),
            (403, False),
            (403, True),
        ):
            pods._failed(ApiFailure("as the test wants it", status))
            assert is_refused(pods) is refused
        server.drop_watches()
        await until(lambda: is_synced(pods))
        assert not is_refused(pods) and pods.refusals == 0

    watching(story)


def test_a_server_that_never_let_us_in_is_believed_at_once(client_of):
    pods = node_pods(client_of(), NODE, lambda: None)
    pods._failed(ApiFailure("as the test wants it", 403))
    assert is_refused(pods)


@pytest.mark.parametrize("broken", ["", "two\nlines\n", "\u00e9"])
def test_a_token_that_is_just_being_written_is_waited_for(server, watching, tmp_path, broken, capsys):
    async def story(pods):
        await until(lambda: is_watching(pods))
        (tmp_path / "token").write_text(broken)
        server.drop_watches()
        await until(lambda: not is_synced(pods))
        (tmp_path / "token").write_text(f"{server.token}\n")
        await until(lambda: is_synced(pods))

    watching(story)
    said = "".join(capsys.readouterr())
    assert "has no token in it" in said and "two" not in said


def test_a_token_that_was_renewed_is_used(server, watching, tmp_path):
    async def story(pods):
        await until(lambda: is_watching(pods))
        server.token = "a newer token"
        server.drop_watches()
        await until(lambda: is_refused(pods))
        (tmp_path / "token").write_text("a newer token\n")
        await until(lambda: is_synced(pods))

    watching(story)


def test_a_pod_of_the_same_name_that_came_before_does_not_take_the_new_one_away(server, watching):
    first, second = pod_document("web-0"), pod_document("web-0")

    async def story(pods):
        await until(lambda: is_synced(pods))
        server.put("pods", first)
        server.put("pods", second)
        server.store.tell("pods", "DELETED", first)
        server.put("pods", pod_document("last"))
        await until(lambda: "last" in names(pods))
        assert pods.objects["default", "web-0"].uid == second["metadata"]["uid"]

    watching(story)


def test_news_comes_with_a_change_and_not_without(server, client_of):
    async def story(cluster):
        await until(lambda: cluster.synced)
        await asyncio.sleep(0.05)
        assert not await cluster.news(0.05)
        waiting = asyncio.create_task(cluster.news(30))
        await asyncio.sleep(0)
        server.put("pods", pod_document("p"))
        assert await waiting
        assert cluster.pod("default", "p") == cluster.pods["default", "p"]

    async def main():
        cluster = KubeCluster(client_of(), NODE)
        await run_beside(cluster.run(), story(cluster))

    asyncio.run(main())


def test_no_server_there_at_all():
    with ApiServer(NODE) as server:
        access = server.access

    async def main():
        async with node_client(access) as client:
            pods = node_pods(client, NODE, lambda: None, pause=0.01)
            task = asyncio.create_task(pods.run())
            await until(lambda: pods.failures > 2)
            assert not is_synced(pods) and not is_refused(pods) and not pods.objects
            assert not task.done()
            task.cancel()

    asyncio.run(main())


def test_a_pod_that_the_watch_has_not_shown_is_read_past_it(server, watching):
    server.put("pods", pod_document("there", {GPU: 8}))

    async def story(pods):
        await until(lambda: is_synced(pods))
        server.lag = 60.0
        server.put("pods", pod_document("new", {GPU: 8}))
        read = await pods.read()
        assert {name for _, name in read} == {"there", "new"}
        assert names(pods) == {"there"}, "what the watch has shown follows its own order"

    watching(story)


@pytest.mark.parametrize("fault", ["hanging", "denial"])
def test_what_cannot_be_read_past_the_watch_is_none(server, client_of, fault):
    async def story():
        async with client_of(connect=5, answer=5) as client:
            cluster = KubeCluster(client, NODE)
            server.hanging, server.denial = fault == "hanging", 503 * (fault == "denial")
            assert await cluster.read(0.3) is None
            server.hanging = False

    asyncio.run(story())
