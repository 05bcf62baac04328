# SPDX-License-Identifier: Apache-2.0
"""Containers that mount a dataset start when the dataset service says so, and not while it cannot say anything."""

import asyncio
import json
from dataclasses import replace

import pytest

from agent.allocation.dataset_gate import EARLY_FILE, DatasetGate
from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.model import DATASET_DRIVER, CsiVolume, Pod

VOLUME = CsiVolume("data", DATASET_DRIVER, {"dataset": "coco"}, mounted_by=("main",))
POD = Pod("ns", "p", "uid-1", volumes=(VOLUME,))


@pytest.fixture
def consumer():
    return Consumer(ContainerRef("ns", "p", "main"), "uid-1")


class Service:
    """A dataset service that answers as it is told."""

    def __init__(self, path):
        self.path, self.seen, self.answer, self.silent = path, [], {"ready": True}, False
        self.server = None

    async def serve(self, reader, writer):
        while line := await reader.readline():
            message = json.loads(line)
            self.seen.append(message)
            if "id" in message and not self.silent:
                writer.write(json.dumps({"id": message["id"], **self.answer}).encode() + b"\n")
        writer.close()

    async def __aenter__(self):
        self.server = await asyncio.start_unix_server(self.serve, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def greeted(self):
        while not self.seen:
            await asyncio.sleep(0.01)


@pytest.fixture
def run(short_dir):
    def go(story, *, served=True):
        async def main():
            resources = ("gigaslice.io/vgpu-memory",)
            gate = DatasetGate(short_dir / "gate.sock", resources, pause=0.02, patience=0.3)
            task = asyncio.create_task(gate.run())
            try:
                async with Service(short_dir / "gate.sock") as service:
                    if served:
                        await service.greeted()
                        await asyncio.wait_for(story(gate, service), 20)
                if not served:
                    await asyncio.sleep(0.1)
                    await asyncio.wait_for(story(gate, None), 20)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())

    return go


def test_the_agent_says_what_it_guards_and_asks_for_the_volumes_of_the_container(run, consumer):
    async def story(gate, service):
        assert service.seen == [{"version": 1, "gatekeeper": {"resources": ["gigaslice.io/vgpu-memory"]}}]
        assert await gate.blocker(consumer, POD) is None
        assert service.seen[1] == {"version": 1, "id": 1, "ready": "uid-1", "volumes": ["data"]}

    run(story)


def test_the_services_reason_reaches_the_event_as_one_harmless_line(run, consumer):
    async def story(gate, service):
        service.answer = {"ready": False, "detail": "waiting for dataset coco:\n42 %\x1b[2J"}
        assert await gate.blocker(consumer, POD) == "waiting for dataset coco: 42 %\\x1b[2J"
        service.answer = {"ready": "yes"}
        assert "not there yet" in await gate.blocker(consumer, POD)

    run(story)


def test_an_answer_that_is_too_long_breaks_the_connection_for_no_other_container(run, consumer):
    async def story(gate, service):
        service.answer = {"ready": False, "detail": "x" * 200_000}
        assert "has not answered" in await gate.blocker(consumer, POD)
        service.answer = {"ready": True}
        assert await gate.blocker(consumer, POD) is None
        assert [one for one in service.seen if "gatekeeper" in one] == service.seen[:1], "connected once"

    run(story)


def test_a_container_that_mounts_none_asks_nothing(run, consumer):
    async def story(gate, service):
        assert await gate.blocker(consumer, replace(POD, volumes=())) is None
        assert (
            await gate.blocker(consumer, replace(POD, volumes=(replace(VOLUME, mounted_by=("side",)),)))
            is None
        )
        assert len(service.seen) == 1

    run(story)


def test_a_pod_that_is_not_known_is_asked_for_by_its_uid(run, consumer):
    async def story(gate, service):
        service.answer = {"ready": False, "detail": "42 %"}
        assert await gate.blocker(consumer, None) == "42 %"
        assert service.seen[1] == {"version": 1, "id": 1, "ready": "uid-1"}

    run(story)


def test_without_the_service_what_mounts_a_dataset_does_not_start_and_everything_else_does(run, consumer):
    async def story(gate, service):
        reason = await gate.blocker(consumer, POD)
        assert "gate.sock" in reason
        assert "is `gigaslice dataset` running on this node?" in reason
        assert await gate.blocker(consumer, replace(POD, volumes=())) is None
        assert await gate.blocker(consumer, None) is None

    run(story, served=False)


@pytest.mark.parametrize("owned", [True, False])
def test_where_volumes_may_be_early_a_pod_of_which_nothing_is_known_is_held(run, consumer, short_dir, owned):
    """The agent has just started, has not seen its pods yet, and the service is away."""
    unknown = consumer if owned else None

    async def without(gate, service):
        assert "is `gigaslice dataset` running" in await gate.blocker(unknown, None)
        assert await gate.blocker(unknown, replace(POD, volumes=())) is None

    async def with_it(gate, service):
        reason = await gate.blocker(unknown, None)
        assert reason is None if owned else "it may mount a dataset" in reason

    (short_dir / EARLY_FILE).touch()
    run(without, served=False)
    run(with_it)


def test_an_agent_that_does_not_see_its_pods_guards_nothing(short_dir):
    async def main():
        sees, resources = [], ("gigaslice.io/vgpu-memory",)
        gate = DatasetGate(short_dir / "gate.sock", resources, lambda: bool(sees), check_seconds=0.01)
        async with Service(short_dir / "gate.sock") as service:
            task = asyncio.create_task(gate.run())
            for guarded in ([], ["gigaslice.io/vgpu-memory"], []):
                while not service.seen or service.seen[-1]["gatekeeper"]["resources"] != guarded:
                    await asyncio.sleep(0.01)
                (sees.clear if sees else lambda: sees.append(1))()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(service.seen) in (3, 4)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_service_that_hangs_holds_nothing_up_for_ever(run, consumer):
    async def story(gate, service):
        service.silent = True
        assert "has not answered" in await gate.blocker(consumer, POD)
        service.silent = False
        assert await gate.blocker(consumer, POD) is None

    run(story)


def test_a_service_that_ends_is_connected_again(consumer, short_dir):
    async def main():
        gate = DatasetGate(short_dir / "again.sock", (), pause=0.02)
        task = asyncio.create_task(gate.run())
        try:
            for _ in range(3):
                async with Service(short_dir / "again.sock") as service:
                    await asyncio.wait_for(service.greeted(), 10)
                    assert await gate.blocker(consumer, POD) is None
                    gate._service._writer.close()
                (short_dir / "again.sock").unlink(missing_ok=True)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
