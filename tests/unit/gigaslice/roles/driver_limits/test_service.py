# SPDX-License-Identifier: Apache-2.0
"""The role on its socket: what it answers and refuses, and what becomes of it with a driver that hangs or goes."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
import threading
import time
from types import SimpleNamespace

import pytest

from gigaslice.core.errors import MissingError
from gigaslice.core.limits.driver_limit_messages import (
    ApplyAnswer,
    ApplyRequest,
    GpuLimitState,
    PodLimits,
    SupportAnswer,
    WatchAnswer,
    WatchRequest,
)
from gigaslice.roles.driver_limits import service as service_module
from gigaslice.roles.driver_limits.service import DriverLimitService
from gigaslice.roles.driver_limits.settings import DriverLimitSettings
from gigaslice.runtime.local_protocol import decode, encode
from tests.fakes.cgroup_trees import make_cgroup, make_root
from tests.fakes.eventually import run_beside, until
from tests.fakes.memory_limits import GIB, FakeMemoryLimits

UID, OTHER = "2c48913c-b29f-11e7-9350-020968147796", "3c48913c-b29f-11e7-9350-020968147796"
ID = "a1" * 32
GPU = "GPU-00000000-0000-4000-8000-000000000001"


class Role:
    """The role with a stand-in for the driver, and connections to it."""

    def __init__(self, directory, driver, **options):
        self.directory = directory
        self.socket = directory / "run" / "limits.sock"
        self.driver = driver
        settings = DriverLimitSettings(socket=self.socket, cgroup_root=driver.root)
        self.service = DriverLimitService(settings, driver, **options)

    def run(self, story):
        async def main():
            async def connected():
                await until(self.socket.exists)
                await story()

            await run_beside(self.service.run(asyncio.Event()), connected())

        asyncio.run(main())

    async def ask(self, *requests):
        """The answers to requests on a connection of its own."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket), limit=8 << 20)
        answers = []
        for request in requests:
            writer.write(request if isinstance(request, bytes) else encode(request))
            answers.append(decode(await reader.readline()))
        writer.close()
        return answers[0] if len(answers) == 1 else answers

    async def wall(self, size, uid=UID):
        answer = await self.ask(ApplyRequest((PodLimits(uid, {GPU: size}),)).encode())
        if "error" in answer:
            return answer
        (pod,) = ApplyAnswer.decode(answer).pods
        return pod.gpus.get(GPU, pod)


@pytest.fixture
def driver(tmp_path, version_2_at):
    version_2_at.append(tmp_path / "cgroup")
    make_root(tmp_path / "cgroup")
    make_cgroup(tmp_path / "cgroup", f"kubepods/pod{UID}/{ID}", pids=(os.getpid(),))
    return FakeMemoryLimits(tmp_path / "cgroup", "misc", {GPU: 80 * GIB})


def test_it_answers_all_three_requests(short_dir, driver):
    role = Role(short_dir, driver)

    async def story():
        answer = SupportAnswer.decode(await role.ask({"support": {}}))
        assert (answer.backend, answer.gpus[GPU].total) == ("misc", 80 * GIB)
        assert await role.wall(8 * GIB) == GpuLimitState(8 * GIB, 0)
        watch = WatchAnswer.decode(await role.ask(WatchRequest(0).encode()))
        assert watch.uids == (UID,)
        make_cgroup(driver.root, f"kubepods/pod{OTHER}")
        assert WatchAnswer.decode(await role.ask(WatchRequest(watch.sequence).encode())).uids == (UID, OTHER)

    role.run(story)


def test_limits_are_set_before_anybody_asked_for_support(short_dir, driver):
    """After a restart of the role alone the agent may go on as before."""
    role = Role(short_dir, driver)

    async def story():
        assert await role.wall(GIB) == GpuLimitState(GIB, 0)

    role.run(story)


def test_only_its_own_user_may_ask(short_dir, driver):
    role = Role(short_dir, driver)

    async def story():
        assert stat.S_IMODE(role.socket.stat().st_mode) == 0o600

    role.run(story)


def test_a_socket_that_was_left_is_replaced(short_dir, driver):
    role = Role(short_dir, driver)
    role.socket.parent.mkdir()
    role.socket.touch()

    async def story():
        await until(role.socket.is_socket)
        assert "backend" in await role.ask({"support": {}})

    role.run(story)


def test_answers_carry_their_questions_number(short_dir, driver):
    role = Role(short_dir, driver)

    async def story():
        for request in (
            {"support": {}},
            {"apply": {"pods": []}},
            {"watch": {"sequence": 0, "seconds": 0}},
            {"x": 1},
        ):
            assert (await role.ask({"id": 7, **request}))["id"] == 7

    role.run(story)


@pytest.mark.parametrize(
    "request_",
    [
        {"x": 1},
        {"support": 1},
        {"apply": None},
        {"apply": []},
        {"apply": {"pods": [{"uid": "../../etc", "gpus": {GPU: 1}}]}},
        {"apply": {"pods": [{"uid": UID, "gpus": {GPU: True}}]}},
        {"apply": {"pods": [{"uid": UID, "gpus": {"/dev/nvidia0": 1}}]}},
        {"apply": {"pods": [{"uid": UID, "gpus": {}}], "containers": [{"uid": UID, "container": "x", "gpus": {}}]}},
        {"watch": {"sequence": "x", "seconds": 1}},
        {"watch": {"sequence": 1, "seconds": 1e9}},
        {"version": 99, "support": {}},
        b"[]\n",
        b"{}\n",
        b"\xff\n",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence_and_nothing_is_done(short_dir, driver, request_):
    role = Role(short_dir, driver)

    async def story():
        answer = await role.ask(request_)
        assert isinstance(answer["error"], str) and "\n" not in answer["error"]
        assert driver.calls == []
        assert "backend" in await role.ask({"support": {}}), "and it goes on"

    role.run(story)


def test_a_driver_without_the_call_is_a_refusal(short_dir, driver):
    driver.backend = "none"
    role = Role(short_dir, driver)

    async def story():
        assert "nvmlDeviceSetMemoryLimits_v1" in (await role.wall(GIB))["error"]

    role.run(story)


def test_without_a_driver_there_is_a_sentence_until_it_comes(short_dir, driver):
    driver.loaded = False
    role = Role(short_dir, driver)

    async def story():
        assert "Driver Not Loaded" in (await role.wall(GIB))["error"]
        assert SupportAnswer.decode(await role.ask({"support": {}})).backend == "none"
        driver.loaded = True
        assert await role.wall(GIB) == GpuLimitState(GIB, 0)

    role.run(story)


def test_a_driver_that_was_reloaded_is_opened_anew_and_gets_the_limits_again(short_dir, driver):
    role = Role(short_dir, driver)

    async def story():
        assert await role.wall(GIB) == GpuLimitState(GIB, 0)
        driver.reload()
        assert await role.wall(GIB) == GpuLimitState(GIB, 0)
        assert driver.renewed == 2
        driver.reload()
        driver.loaded = False
        assert "Driver Not Loaded" in (await role.wall(GIB))["error"]
        driver.loaded = True
        assert await role.wall(GIB) == GpuLimitState(GIB, 0)

    role.run(story)


def test_a_driver_that_hangs_is_a_sentence_and_the_rest_goes_on(short_dir, driver):
    role = Role(short_dir, driver, apply_seconds=0.1)
    release = threading.Event()
    driver.before = lambda name, path: name == "set" and release.wait(60)

    async def story():
        watch = WatchAnswer.decode(await role.ask(WatchRequest(0).encode()))
        assert "has not come back" in (await role.wall(GIB))["error"]
        assert "nothing was done" in (await role.wall(GIB))["error"]
        make_cgroup(driver.root, f"kubepods/pod{OTHER}")
        assert WatchAnswer.decode(await role.ask(WatchRequest(watch.sequence).encode())).uids == (UID, OTHER)
        release.set()
        await until(lambda: driver.entry(GPU, driver.root / "kubepods" / f"pod{UID}"))
        while isinstance(state := await role.wall(GIB), dict):
            await asyncio.sleep(0.01)
        assert state == GpuLimitState(GIB, 0)

    role.run(story)


def test_a_driver_that_hangs_keeps_the_role_from_ending_in_no_way(short_dir, driver):
    role = Role(short_dir, driver, apply_seconds=0.1)
    release = threading.Event()
    driver.before = lambda name, path: release.wait(60)

    async def story():
        assert "error" in await role.wall(GIB)

    begun = time.monotonic()
    role.run(story)
    release.set()
    assert time.monotonic() - begun < 50


def test_a_slow_driver_gets_as_far_as_it_can(short_dir, driver, monkeypatch):
    """By a clock of which each of its calls takes 10 ms."""
    now = [0.0]
    monkeypatch.setattr(service_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    role = Role(short_dir, driver, apply_seconds=0.3)
    uids = [UID, *(f"{number:08x}-0000-4000-8000-000000000000" for number in range(60))]
    for uid in uids[1:]:
        make_cgroup(driver.root, f"kubepods/pod{uid}")

    def before(name, path):
        now[0] += 0.01

    driver.before = before

    async def story():
        request = ApplyRequest(tuple(PodLimits(uid, {GPU: GIB}) for uid in uids)).encode()
        answers = [ApplyAnswer.decode(await role.ask(request)).pods for _ in range(2)]
        for pods in answers:
            reached = [pod for pod in pods if pod.gpus]
            assert 0 < len(reached) < len(pods)
            assert all("not reached" in pod.problem for pod in pods[len(reached) :])
        counts = [len([pod for pod in pods if pod.gpus]) for pods in answers]
        assert counts[1] > counts[0], "what is set already is passed over quickly"

    role.run(story)


def test_requests_of_several_connections_are_done_one_after_the_other(short_dir, driver):
    role = Role(short_dir, driver)
    busy, most = itertools.count(), []

    def before(name, path):
        most.append(threading.get_ident())
        next(busy)

    driver.before = before

    async def story():
        states = await asyncio.gather(*(role.wall(GIB) for _ in range(20)))
        assert set(states) == {GpuLimitState(GIB, 0)}
        assert len(set(most)) == 1

    role.run(story)


def test_a_driver_that_only_another_process_can_open_ends_the_role(short_dir, driver, monkeypatch):
    role = Role(short_dir, driver)

    def renew():
        raise MissingError("the NVIDIA driver was replaced")

    monkeypatch.setattr(driver, "renew", renew)

    async def main():
        task = asyncio.create_task(role.service.run(asyncio.Event()))
        await until(role.socket.exists)
        assert "was replaced" in (await role.ask({"support": {}}))["error"]
        with pytest.raises(MissingError):
            await asyncio.wait_for(task, 30)

    asyncio.run(main())


def test_the_role_ends_when_it_is_asked_to_while_somebody_watches(short_dir, driver):
    role, stop = Role(short_dir, driver), asyncio.Event()

    async def main():
        task = asyncio.create_task(role.service.run(stop))
        await until(role.socket.exists)
        watch = WatchAnswer.decode(await role.ask(WatchRequest(0).encode()))
        waiting = asyncio.create_task(role.ask(WatchRequest(watch.sequence, 60).encode()))
        await asyncio.sleep(0.05)
        stop.set()
        await asyncio.wait_for(task, 30)
        assert await waiting is None
        assert not role.socket.exists()

    asyncio.run(main())
