"""List and watch against a server that ends, forgets, hangs, cuts and refuses."""

import asyncio
from dataclasses import replace

import pytest

from agent.apiserver import KubeCluster, find_access
from agent.apiserver.watch import PodWatch
from agent.apiserver.wire import Api
from gigaslice.kubeapi.failures import ApiFailure
from tests.fakes.eventually import run_beside, until
from tests.fakes.kubeapi import NODE, ApiServer, pod_document

GPU = "gigaslice.io/vgpu-memory"


@pytest.fixture
def watching(server, wire):
    """Runs a coroutine function with a watch that is at work."""

    def run(story, **more):
        async def main():
            watch = PodWatch(wire(connect=5, answer=5), NODE, pause=0.01, **more)
            await run_beside(watch.run(), story(watch))

        asyncio.run(main())

    return run


def lists(server):
    """How many times all pods were listed, watches left out."""
    return server.asked("GET", "/pods") - server.asked("GET", "watch=1")


def names(watch):
    return {name for _, name in watch.pods}


def test_pods_of_this_node_come_and_change_and_go(server, watching):
    server.put("pods", pod_document("there", {GPU: 8}))
    server.put("pods", pod_document("elsewhere", {GPU: 8}, node="node-b"))

    async def story(watch):
        await until(lambda: watch.synced)
        assert names(watch) == {"there"}
        server.put("pods", pod_document("new", {GPU: 2}, annotations={"gigaslice.io/gpus": "2"}))
        server.put("pods", pod_document("another", node="node-b"))
        await until(lambda: "new" in names(watch))
        assert watch.pods["default", "new"].annotations == {"gigaslice.io/gpus": "2"}
        server.annotate("default", "new", **{"gigaslice.io/gpus": "4"})
        await until(lambda: watch.pods["default", "new"].annotations == {"gigaslice.io/gpus": "4"})
        server.delete("pods", "there", "default")
        await until(lambda: names(watch) == {"new"})

    watching(story)


def test_a_watch_that_the_server_ends_goes_on_where_it_was(server, watching):
    async def story(watch):
        await until(lambda: watch.synced)
        for number in range(5):
            await until(lambda number=number: server.asked("GET", "watch=1") > number)
            server.drop_watches(in_the_middle=number % 2 == 1)
            server.put("pods", pod_document(f"p{number}"))
            await until(lambda number=number: f"p{number}" in names(watch))
        assert server.asked("GET", "watch=1") > 5
        assert watch.synced

    watching(story)


def test_watches_end_by_themselves_after_their_time(server, watching):
    async def story(watch):
        await until(lambda: server.asked("GET", "watch=1") >= 3)
        server.put("pods", pod_document("p"))
        await until(lambda: "p" in names(watch))
        assert lists(server) == 1, "one list was enough"

    watching(story, watch_seconds=1)


def test_a_version_that_is_forgotten_brings_a_new_list(server, watching):
    server.put("pods", pod_document("old"))

    async def story(watch):
        await until(lambda: watch.synced)
        server.hanging = True
        server.drop_watches()
        server.delete("pods", "old", "default")
        server.put("pods", pod_document("new"))
        server.store.history.clear()  # no event tells that "old" is gone
        server.store.compact()
        server.hanging = False
        await until(lambda: names(watch) == {"new"})

    watching(story)


def test_a_server_that_lags_behind_brings_no_earlier_pod_back(server, watching):
    """Of several servers the one that is asked after a 410 may not have seen yet what another one has told."""
    server.put("pods", pod_document("db-0", uid="first"))

    async def story(watch):
        await until(lambda: watch.synced)
        server.show_any_version(server.store.snapshot())
        server.delete("pods", "db-0", "default")
        server.put("pods", pod_document("db-0", uid="second"))
        await until(lambda: names(watch) and watch.pods["default", "db-0"].uid == "second")
        before = lists(server)
        server.store.compact()
        server.put("pods", pod_document("later"))
        await until(lambda: lists(server) > before)
        await until(lambda: names(watch) == {"db-0", "later"})
        assert watch.pods["default", "db-0"].uid == "second"

    watching(story)


def test_a_bookmark_moves_the_version_on(server, watching):
    async def story(watch):
        await until(lambda: watch.synced)
        server.store.bookmark()
        newest = server.version
        while not server.asked("GET", f"resourceVersion={newest}"):
            server.drop_watches()
            await asyncio.sleep(0.1)

    watching(story)


def test_silence_ends_a_watch(server, watching):
    async def story(watch):
        await until(lambda: watch.synced)
        before = server.asked("GET", "watch=1")
        server.hanging = True
        await until(lambda: server.asked("GET", "watch=1") > before)
        server.hanging = False
        server.put("pods", pod_document("p"))
        await until(lambda: "p" in names(watch))

    watching(story, idle=0.3)


def test_refusal_is_told_and_what_was_known_stays(server, watching):
    server.put("pods", pod_document("p"))

    async def story(watch):
        await until(lambda: watch.synced)
        server.denial = 403
        server.drop_watches()
        await until(lambda: watch.refused)
        assert not watch.synced and names(watch) == {"p"}
        server.denial = 0
        await until(lambda: watch.synced)
        assert not watch.refused

    watching(story)


def test_a_server_that_starts_and_refuses_every_client_is_not_believed_at_once(server, watching):
    """Who is believed has what is allocated meanwhile go without its annotations, for good."""
    server.put("pods", pod_document("p"))

    async def story(watch):
        await until(lambda: watch.synced)
        for status, refused in (
            (403, False),
            (401, False),
            (0, False),
            (403, False),
            (403, False),
            (403, True),
        ):
            watch._failed(ApiFailure("as the test wants it", status))
            assert watch.refused is refused
        server.drop_watches()
        await until(lambda: watch.synced)
        assert not watch.refused and watch._refusals == 0

    watching(story)


def test_a_server_that_never_let_us_in_is_believed_at_once(server, tmp_path):
    watch = PodWatch(Api(find_access(server.kubeconfig(tmp_path), "")[0]), "node-a")
    watch._failed(ApiFailure("as the test wants it", 403))
    assert watch.refused


@pytest.mark.parametrize("broken", ["", "two\nlines\n", "\u00e9"])
def test_a_token_that_is_just_being_written_is_waited_for(server, watching, tmp_path, broken, capsys):
    async def story(watch):
        await until(lambda: watch.synced)
        (tmp_path / "token").write_text(broken)
        server.drop_watches()
        await until(lambda: not watch.synced)
        (tmp_path / "token").write_text(f"{server.token}\n")
        await until(lambda: watch.synced)

    watching(story)
    said = "".join(capsys.readouterr())
    assert "has no token in it" in said and "two" not in said


@pytest.mark.parametrize("token", ["a token\n", "s3cr3t\r\nX: y", "s3cr3t\x00"])
def test_a_token_that_no_header_can_carry_ends_nothing_and_is_never_shown(server, tmp_path, token, capsys):
    """h11 quotes what it refuses. A kubeconfig with such a token is refused; this is for whatever comes another way."""
    access = replace(find_access(server.kubeconfig(tmp_path), "")[0], token_file=None, token=token)

    async def main():
        watch = PodWatch(Api(access), "node-a", pause=0.01)
        task = asyncio.create_task(watch.run())
        await until(lambda: watch._failures > 1)
        assert not task.done()
        task.cancel()
        with pytest.raises(ApiFailure) as caught:
            await Api(access).request("GET", "/api/v1/pods")
        assert caught.value.__cause__ is None and caught.value.__suppress_context__
        return str(caught.value)

    said = asyncio.run(main()) + "".join(capsys.readouterr())
    assert "credentials" in said and "s3cr3t" not in said and "a token" not in said


def test_a_token_that_was_renewed_is_used(server, watching, tmp_path):
    async def story(watch):
        await until(lambda: watch.synced)
        server.token = "a newer token"
        server.drop_watches()
        await until(lambda: watch.refused)
        (tmp_path / "token").write_text("a newer token\n")
        await until(lambda: watch.synced)

    watching(story)


def test_a_pod_of_the_same_name_that_came_before_does_not_take_the_new_one_away(server, watching):
    first, second = pod_document("web-0"), pod_document("web-0")

    async def story(watch):
        await until(lambda: watch.synced)
        server.put("pods", first)
        server.put("pods", second)
        server.store.tell("pods", "DELETED", first)
        server.put("pods", pod_document("last"))
        await until(lambda: "last" in names(watch))
        assert watch.pods["default", "web-0"].uid == second["metadata"]["uid"]

    watching(story)


def test_news_comes_with_a_change_and_not_without(server, watching):
    async def story(watch):
        await until(lambda: watch.synced)
        await asyncio.sleep(0.05)
        assert not await watch.news(0.05)
        waiting = asyncio.create_task(watch.news(30))
        await asyncio.sleep(0)
        server.put("pods", pod_document("p"))
        assert await waiting

    watching(story)


def test_no_server_there_at_all(tmp_path):
    with ApiServer(NODE) as server:
        path = server.kubeconfig(tmp_path)
    access, _ = find_access(path, "")

    async def main():
        watch = PodWatch(Api(access), "node-a", pause=0.01)
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.3)
        assert not watch.synced and not watch.refused and not watch.pods
        assert not task.done()
        task.cancel()

    asyncio.run(main())


def test_a_pod_that_the_watch_has_not_shown_is_read_past_it(server, watching):
    server.put("pods", pod_document("there", {GPU: 8}))

    async def story(watch):
        await until(lambda: watch.synced)
        server.lag = 60.0
        server.put("pods", pod_document("new", {GPU: 8}))
        read = await watch.read()
        assert {name for _, name in read} == {"there", "new"}
        assert names(watch) == {"there"}, "what the watch has shown follows its own order"

    watching(story)


@pytest.mark.parametrize("fault", ["hanging", "denial"])
def test_what_cannot_be_read_past_the_watch_is_none(server, tmp_path, fault):
    access, _ = find_access(server.kubeconfig(tmp_path), "")
    cluster = KubeCluster(Api(access, connect=5, answer=5), "node-a")

    async def story():
        server.hanging, server.denial = fault == "hanging", 503 * (fault == "denial")
        assert await cluster.read(0.3) is None
        server.hanging = False

    asyncio.run(story())
