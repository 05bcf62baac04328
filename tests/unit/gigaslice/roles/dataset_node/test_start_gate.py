# SPDX-License-Identifier: Apache-2.0
"""The start gate as an agent meets it: the real connection, and what reasons and agents may be like."""

import asyncio
import json

import pytest

from agent.allocation.dataset_gate import DatasetGate
from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.model import DATASET_DRIVER, CsiVolume, Pod
from gigaslice.roles.dataset_node.start_gate import StartGate
from tests.fakes.eventually import until

GPU = "gigaslice.io/vgpu-memory"
CONSUMER = Consumer(ContainerRef("ns", "p", "main"))


def pod(uid):
    return Pod("ns", uid, uid, volumes=(CsiVolume("data", DATASET_DRIVER, {}, mounted_by=("main",)),))


class Tasks:
    """Says of pod "bad" what its tenant has made as long as can be."""

    async def blocker(self, uid, volumes):
        if uid == "bad":
            return "waiting for dataset https://host/" + "\ud800" * 100_000
        await asyncio.sleep(0.3)
        return None


@pytest.fixture
def play(short_dir):
    def run(story):
        async def main():
            gate = StartGate(short_dir)
            gate.tasks = Tasks()
            agent = DatasetGate(short_dir / "gate.sock", (GPU,), pause=0.02)
            works = [asyncio.create_task(gate.run()), asyncio.create_task(agent.run())]
            try:
                await until(lambda: gate.resources)
                await asyncio.wait_for(story(gate, agent), 20)
            finally:
                for one in works:
                    one.cancel()
                await asyncio.gather(*works, return_exceptions=True)

        asyncio.run(main())

    return run


def test_an_agent_that_starts_while_the_service_is_away_holds_what_may_be_early(short_dir):
    unknown = Consumer(ContainerRef("ns", "p", ""), uid="u")
    gate, agent = StartGate(short_dir), DatasetGate(short_dir / "gate.sock", (GPU,))
    assert asyncio.run(agent.blocker(unknown, None)) is None
    gate.mark_early()
    assert "is `gigaslice dataset` running" in asyncio.run(agent.blocker(unknown, None))


def test_a_reason_of_any_length_is_told_shortened_and_disturbs_no_other_container(play):
    async def story(gate, agent):
        bad, good = await asyncio.gather(
            agent.blocker(CONSUMER, pod("bad")), agent.blocker(CONSUMER, pod("good"))
        )
        assert bad.startswith("waiting for dataset https://host/") and len(bad) == 1000
        assert good is None
        assert gate.resources == (GPU,)

    play(story)


def test_an_agent_of_before_there_was_a_version_is_served(short_dir, play):
    async def story(gate, agent):
        reader, writer = await asyncio.open_unix_connection(str(short_dir / "gate.sock"))
        writer.write(
            b'{"gatekeeper": {"resources": ["older"]}}\n{"id": 7, "ready": "good", "volumes": ["data"]}\n'
        )
        assert json.loads(await reader.readline()) == {"id": 7, "ready": True, "detail": ""}
        assert set(gate.resources) == {GPU, "older"}
        writer.close()

    play(story)
