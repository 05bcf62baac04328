# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
import time

import pytest

from agent.apiserver.own_node import NodeAnnotation
from tests.fakes.eventually import run_beside, until
from tests.fakes.kubeapi import NODE, Fault

KEY = "gigaslice.io/inventory"


@pytest.fixture
def writing(server, client_of):
    def run(story, node=NODE, **options):
        async def main():
            async with client_of() as client:
                annotation = NodeAnnotation(client, node, KEY, **{"pause": 0.01, **options})
                await run_beside(annotation.run(), story(annotation))

        asyncio.run(main())

    return run


@pytest.fixture
def printed(capsys):
    """Returns all that was printed until now."""
    parts = []

    def until_now():
        parts.append(capsys.readouterr().out)
        return "".join(parts)

    return until_now


def text(server):
    return server.get("nodes", NODE)["metadata"].get("annotations", {}).get(KEY)


def test_what_is_set_is_written_and_the_rest_of_the_node_left_alone(server, writing):
    before = {"annotations": {"volumes.kubernetes.io/controller-managed": "true"}, "labels": {"zone": "a"}}
    server.change("nodes", NODE, {"metadata": before})

    async def story(annotation):
        annotation.set("one")
        await until(lambda: text(server) == "one")

    writing(story)
    node = server.get("nodes", NODE)["metadata"]
    assert node["annotations"] == {"volumes.kubernetes.io/controller-managed": "true", KEY: "one"}
    assert node["labels"] == {"zone": "a"}
    assert server.accepted("PATCH", "/nodes/") == [{"metadata": {"annotations": {KEY: "one"}}}]


def test_the_same_text_is_not_written_again(server, writing):
    async def story(annotation):
        annotation.set("one")
        await until(lambda: text(server) == "one")
        for _ in range(20):
            annotation.set("one")
            await asyncio.sleep(0.01)
        annotation.set("two")
        await until(lambda: text(server) == "two")

    writing(story)
    assert len(server.accepted("PATCH", "/nodes/")) == 2


def test_nothing_is_written_before_something_is_set(server, writing):
    writing(lambda annotation: asyncio.sleep(0.3))
    assert server.requests == []


def test_a_flapping_text_is_about_one_write_a_second_and_the_last_one_wins(server, writing):
    async def story(annotation):
        for number in range(200):
            annotation.set(f"text {number}")
            await asyncio.sleep(0.01)
        last = time.monotonic()
        await until(lambda: text(server) == "text 199")
        assert time.monotonic() - last < 30  # a second, and what a loaded machine adds

    begun = time.monotonic()
    writing(story)
    assert len(server.accepted("PATCH", "/nodes/")) <= 4 + (time.monotonic() - begun)


def test_a_single_change_is_written_at_once_however_many_there_were_before(server, writing):
    """With a clock of its own: a write that follows a second of quiet does not wait."""
    clock = [0.0]

    async def story(annotation):
        for number in range(10):
            clock[0] += 1.0
            annotation.set(f"text {number}")
            await until(lambda number=number: text(server) == f"text {number}")

    writing(story, clock=lambda: clock[0])
    assert len(server.accepted("PATCH", "/nodes/")) == 10


def test_a_text_that_another_client_removed_is_put_back(server, writing):
    async def story(annotation):
        annotation.set("one")
        await until(lambda: text(server) == "one")
        server.change("nodes", NODE, {"metadata": {"annotations": {KEY: None}}})
        await until(lambda: text(server) == "one")

    writing(story, again=0.2)


def test_writing_it_again_changes_nothing_where_it_is_still_there(server, writing):
    async def story(annotation):
        annotation.set("one")
        await until(lambda: text(server) == "one")
        version = server.version
        await until(lambda: len(server.accepted("PATCH", "/nodes/")) == 3)
        assert server.version == version

    writing(story, again=0.2)


@pytest.mark.parametrize("denials", [[409], [410, 429, 500], [500] * 6, [504, 409, 503]])
def test_an_answer_that_passes_is_tried_again(server, writing, denials):
    server.faults += [Fault("PATCH", "/nodes/", status, count=1) for status in denials]

    async def story(annotation):
        annotation.set("one")
        await until(lambda: text(server) == "one")

    writing(story)
    assert not any(fault.count for fault in server.faults)


def test_what_changed_while_the_server_was_away_is_written_when_it_is_back(server, writing):
    server.denial = 503

    async def story(annotation):
        for number in range(5):
            annotation.set(f"text {number}")
            await asyncio.sleep(0.05)
        server.denial = 0
        await until(lambda: text(server) == "text 4")

    writing(story)
    assert len(server.accepted("PATCH", "/nodes/")) == 1


def test_a_right_that_is_missing_is_one_line_and_no_storm(server, writing, printed):
    server.denial = 403

    async def story(annotation):
        for number in range(30):
            annotation.set(f"text {number}")
            await asyncio.sleep(0.02)
        await until(lambda: "node not annotated" in printed())

    writing(story)
    assert server.asked("PATCH", "/nodes/") == 2  # the trial, which is refused too, and the write
    said = [line for line in printed().splitlines() if "node not annotated" in line]
    assert len(said) == 1
    assert "may not patch its node" in said[0]


def test_a_node_that_the_cluster_does_not_have_is_said(server, writing, printed):
    async def story(annotation):
        annotation.set("one")
        await until(lambda: "see --node-name" in printed())

    writing(story, node="elsewhere")
    assert server.asked("PATCH", "/nodes/elsewhere")


def test_a_server_that_does_not_answer_delays_nothing_but_the_write(server, writing):
    server.hanging = True

    async def story(annotation):
        annotation.set("one")
        await until(lambda: server.asked("PATCH", "/nodes/"))
        annotation.set("two")
        server.hanging = False
        await until(lambda: text(server) == "two")

    writing(story)
    assert json.loads(json.dumps(server.get("nodes", NODE)))["metadata"]["annotations"][KEY] == "two"


def test_how_the_writes_went_is_counted_and_for_how_long_the_cluster_is_behind(server, writing):
    server.faults.append(Fault("PATCH", NODE, 403, count=1, when=lambda _, target: "dryRun" not in target))
    now = [100.0]

    async def story(annotation):
        assert (annotation.publishing.writes, annotation.publishing.outdated) == (0, 0.0)
        annotation.set("one")
        await until(lambda: annotation.publishing.failures)
        now[0] += 5.0
        assert annotation.publishing.outdated == 5.0 and annotation.publishing.written is None
        now[0] += 600.0
        annotation.set("two")
        await until(lambda: annotation.publishing.writes)
        found = annotation.publishing
        assert (found.writes, found.failures, found.outdated) == (1, 1, 0.0)
        assert abs(found.written - time.time()) < 60
        annotation.set("three")
        now[0] += 0.5
        assert annotation.publishing.outdated >= 0.0

    writing(story, clock=lambda: now[0])


# --- the trial ---------------------------------------------------------------------------------------------------


def test_before_the_first_write_it_is_tried_whether_another_annotation_is_refused(server, writing):
    async def story(annotation):
        annotation.set("one")
        await until(lambda: text(server) == "one")
        annotation.set("two")
        await until(lambda: text(server) == "two")

    writing(story)
    targets = [target for method, target in server.requests if method == "PATCH"]
    assert [target.endswith("?dryRun=All") for target in targets] == [True, False, False]
    (tried,) = server.sent("PATCH", "/nodes/")[0]["metadata"]["annotations"]
    assert not tried.startswith("gigaslice.io/")
    assert tried not in server.get("nodes", NODE)["metadata"]["annotations"]


def test_a_token_that_may_change_more_publishes_nothing_and_says_so(server, writing, capsys):
    server.answers.node_policy = False

    async def story(annotation):
        annotation.set("one")
        await until(lambda: annotation.publishing.failures >= 4)
        assert annotation.publishing.withheld and annotation.publishing.writes == 0
        assert text(server) is None
        server.answers.node_policy = True  # as a policy that acts a second after it was made
        await until(lambda: text(server) == "one")
        assert not annotation.publishing.withheld

    writing(story)
    said = [line for line in capsys.readouterr().out.splitlines() if "node not annotated" in line]
    assert len(said) == 1 and "deploy/node-policy.yaml" in said[0]


def test_a_policy_that_goes_away_later_ends_it(server, writing):
    async def story(annotation):
        annotation.set("one")
        await until(lambda: text(server) == "one")
        server.answers.node_policy = False
        await until(lambda: annotation.publishing.withheld)
        annotation.set("two")
        failures = annotation.publishing.failures
        await until(lambda: annotation.publishing.failures > failures + 1)
        assert text(server) == "one"

    writing(story, again=0.1)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_answer_to_the_trial_that_says_nothing_is_no_yes(server, writing, status):
    server.faults.append(Fault("PATCH", "dryRun", status))

    async def story(annotation):
        annotation.set("one")
        await until(lambda: annotation.publishing.failures)
        await asyncio.sleep(0.1)
        found = annotation.publishing
        assert (found.writes, found.withheld) == (0, False) and found.outdated > 0

    writing(story)
    assert text(server) is None and server.asked("PATCH", "dryRun") == server.asked("PATCH", "/nodes/")


def test_a_server_that_does_not_answer_the_trial_is_asked_again(server, writing):
    server.hanging = True

    async def story(annotation):
        annotation.set("one")
        await until(lambda: server.asked("PATCH", "dryRun"))
        assert annotation.publishing.writes == 0
        server.hanging = False
        await until(lambda: text(server) == "one")

    writing(story)
