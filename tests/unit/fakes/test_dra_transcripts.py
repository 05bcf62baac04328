# SPDX-License-Identifier: Apache-2.0
"""The stand-in's side of claims against recorded conversations of a real kubelet: the same story, and the same calls.

Lines with names are what was done to the cluster or was waited for, and are done again here. In between a driver was
called; what it answered then it answers again.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.claims import ClaimPlane
from tests.fakes.eventually import wait_until
from tests.fakes.kubeapi import NODE, ApiServer
from tests.fakes.kubeapi.device_documents import claim_document, class_document, request_document
from tests.fakes.kubelet import ClaimSpec, ClaimTimes, ContainerSpec, PodSpec, Settings
from tests.unit.fakes.claim_driver import ClaimDriver

NEVER = 3600.0
RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "transcripts"
NAMES = {
    "GetInfo": "GetInfo",
    "NotifyRegistrationStatus": "Notify",
    "NodePrepareResources": "Prepare v1",
    "NodeUnprepareResources": "Unprepare v1",
}


class Transcript:
    """One recording. lines: without the first, which says what it is."""

    def __init__(self, name):
        lines = (RECORDED / f"kubelet-dra-{name}.jsonl").read_text().splitlines()
        self.lines = [json.loads(line) for line in lines][1:]

    def calls(self, method=""):
        found = [line for line in self.lines if "rpc" in line]
        return [line for line in found if line["rpc"].endswith(f"/{method}")] if method else found

    def answers(self):
        """Of the calls for each claim, in their order: the error that the driver answered, and whether the kubelet then
        called again by itself.
        """
        answers = defaultdict(list)
        for line, following in itertools.pairwise([*self.lines, {}]):
            if line.get("rpc", "").endswith("/NodePrepareResources"):
                repeated = following.get("rpc") == line["rpc"] and call_of(following) == call_of(line)
                for claim in line["body"]["claims"]:
                    error = line["reply"]["claims"][claim["uid"]].get("error", "")
                    answers[claim["name"]].append((error, repeated))
        return answers


def call_of(line):
    """A recorded call as ClaimDriver records it; the claims of one are in no order."""
    name = NAMES[line["rpc"].rpartition("/")[2]]
    if name == "Notify":
        return (name, "registered")
    return (name, *sorted(claim["name"] for claim in line["body"].get("claims", ())))


@pytest.fixture
def story(node):
    """A kubelet, and a driver that has yet to start."""
    api = ApiServer(NODE)
    api.create("deviceclasses", class_document())
    with ClaimPlane(api):
        times = ClaimTimes(resync_s=NEVER, news_s=0.05)
        kubelet = node(api=api, settings=Settings(status_period_s=0.02, claims=times))
        driver = ClaimDriver(kubelet)
        yield Story(api, kubelet, driver)
        driver.stop()


class Story:
    """Does again what was done."""

    def __init__(self, api, kubelet, driver):
        self.api, self.kubelet, self.driver = api, kubelet, driver
        self.pods = {}

    def publish(self):
        wait_until(
            lambda: all(one.connected for one in self.kubelet.claims.plugins.instances(self.driver.name))
        )
        self.driver.publish(96)

    def do(self, what, names):
        if what == "pod":
            pod, *claims = names
            for claim in claims:
                if not any(one["metadata"]["name"] == claim for one in self.api.all("resourceclaims")):
                    self.api.create("resourceclaims", claim_document(claim, request_document(memory="8Gi")))
            own = tuple(ClaimSpec(claim, claim=claim) for claim in claims)
            spec = PodSpec(pod, (ContainerSpec(claims=tuple(claims)),), claims=own)
            self.pods[pod] = self.kubelet.create_pod(spec)
        elif what == "running":
            self.pods[names[0]].wait("Running")
        elif what == "delete":
            self.kubelet.delete_pod(self.pods[names[0]])
        elif what == "annotate":
            self.api.annotate("default", names[0], wake="1")
        elif what == "restart the kubelet":
            self.kubelet.restart()

    def tell(self, transcript):
        """The story; the calls between two of its lines are those that were recorded there."""
        answers = {claim: iter(pairs) for claim, pairs in transcript.answers().items()}
        expected = []

        def answer(claim, context):
            """A repeated call comes with the story, however long the story takes to be told."""
            error, repeated = next(answers[claim.name])
            claims = self.kubelet.claims
            claims.times = replace(claims.times, resync_s=0.1 if repeated else NEVER)
            return error

        self.driver.on_prepare = answer

        def compare():
            wait_until(lambda: len(self.driver.calls) >= len(expected))
            calls = [(call[0], *sorted(call[1:])) for call in self.driver.calls]
            assert calls == expected

        for line in transcript.lines:
            if "rpc" in line:
                expected.append(call_of(line))
                continue
            compare()
            if line["note"].startswith("driver creates its slice"):
                self.publish()
            elif line["note"].startswith("driver starts"):
                self.driver.start()
            self.do(line["note"], line.get("names", ()))
        compare()


@pytest.mark.parametrize("name", ["life-of-claims", "kubelet-restart"])
def test_the_same_story_brings_the_same_calls(story, name):
    story.tell(Transcript(name))


def test_the_times_of_the_stand_in_are_those_that_were_recorded():
    transcript, times = Transcript("life-of-claims"), ClaimTimes()
    calls = transcript.calls("NodePrepareResources")
    assert {call["deadline_s"] for call in calls} == {times.call_s}
    first, second = (call["t"] for call in calls if call["body"]["claims"][0]["name"] == "slow")
    assert 60 <= (second - first) / 1000 <= 91, "a minute, and up to half of one more by chance"
    assert 60 <= times.resync_s <= 90
    woken = next(line["t"] for line in transcript.lines if line.get("note") == "annotate")
    after = min(call["t"] for call in calls if call["t"] > woken)
    assert (after - woken) / 1000 <= times.news_s


def test_the_version_that_both_know_is_called():
    methods = {call["rpc"] for call in Transcript("life-of-claims").calls()}
    assert {name.partition("/")[0] for name in methods} == {
        "pluginregistration.Registration",
        "dra.v1.DRAPlugin",
    }
