# SPDX-License-Identifier: Apache-2.0
"""The controller over a source whose GPUs the test holds, on a clock that it holds too."""

import asyncio
import threading

import pytest

from agent.health.controller import HealthController
from agent.health.health_files import CORDON, Cordon, change_cordons, read_report
from agent.inventory.holder import InventoryHolder
from agent.inventory.source import GpuEvent, Vitals, merge
from gigaslice.core.errors import MissingError
from gigaslice.runtime.tasks import lasting
from tests.fakes.nodes import FixedSource, inventory, uuid


class World:
    def __init__(self, directory):
        self.directory = directory
        self.boot = directory / "boot_id"
        self.boot.write_text("first\n")
        self.now = 1000.0
        self.source = FixedSource(inventory())
        self.handed_out = []
        self.told = []
        self.manager = self.start()

    def start(self):
        self.gpus = InventoryHolder(inventory())
        self.manager = HealthController(
            self.source,
            self.directory,
            cooldown=600.0,
            interval=10.0,
            now=lambda: self.now,
            gpus=self.gpus,
            told=lambda *what: self.told.append(what),
            boot_id=self.boot,
        )
        self.manager.open()
        self.first = self.gpus.now
        self.gpus.watch(lambda: self.handed_out.append(self.gpus.now))
        return self.manager

    def hear(self, gpu, xid):
        asyncio.run(self.manager.handle(GpuEvent(uuid(gpu), xid)))

    def review(self):
        asyncio.run(self.manager.review())

    def examine(self, *vitals):
        self.source.health = {uuid(number): one for number, one in enumerate(vitals)}
        asyncio.run(self.manager.examine())

    def healthy(self):
        last = self.handed_out[-1] if self.handed_out else self.first
        return [gpu.healthy for gpu in last.gpus]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_without_news_nothing_is_handed_out(world):
    world.review()
    world.examine(Vitals(), Vitals())
    world.manager.set_inventory(inventory())
    assert world.handed_out == []


def test_an_unhealthy_gpu_is_handed_out_as_unhealthy_with_the_reason(world):
    world.hear(1, 95)
    assert world.healthy() == [True, False]
    assert "Xid 95" in world.handed_out[-1].unhealthy[uuid(1)]
    assert world.handed_out[-1].cordoned == frozenset()
    assert [(gpu, well) for gpu, well, _ in world.told] == [(uuid(1), False)]


def test_it_is_written_down_before_it_is_told(world):
    """A client that has heard of it and kills the agent finds it unhealthy after the start."""
    written = []
    world.manager._told = lambda uuid, *_: written.append(read_report(world.directory).health[uuid].unhealthy)
    world.hear(1, 95)
    assert written == [True]


def test_an_error_of_a_program_is_counted_and_no_more(world):
    world.hear(0, 31)
    world.hear(0, 31)
    assert world.handed_out == world.told == []
    assert world.manager.xids == {(uuid(0), 31): 2}


def test_the_same_news_again_is_not_told_again(world):
    for _ in range(5):
        world.hear(0, 95)
        world.examine(Vitals(lost=True), Vitals())
    assert len(world.told) == 2
    assert len(world.handed_out) == 2


def test_it_comes_back_after_the_cooldown(world):
    world.hear(0, 95)
    world.now += 599
    world.review()
    assert world.healthy() == [False, True]
    world.now += 1
    world.review()
    assert world.healthy() == [True, True]
    assert world.told[-1][:2] == (uuid(0), True)


def test_a_gpu_that_is_not_there_stays_away_whatever_its_health(world):
    gone = merge(inventory(), inventory(1))
    world.hear(1, 79)
    world.manager.set_inventory(gone)
    world.now += 10000
    world.review()
    assert world.healthy() == [True, False]
    world.manager.set_inventory(inventory())
    assert world.healthy() == [True, True]


def test_an_event_of_a_gpu_that_is_not_ours_is_left_alone(world):
    world.hear(7, 95)
    asyncio.run(world.manager.handle(GpuEvent("", 95)))
    assert world.handed_out == []


def test_an_uncorrectable_error_without_xid_counts(world):
    asyncio.run(world.manager.handle(GpuEvent(uuid(0), None)))
    assert world.healthy() == [False, True]


def test_what_is_unhealthy_is_unhealthy_after_a_restart_and_well_after_a_reboot(world):
    world.hear(0, 95)
    world.start()
    assert [gpu.healthy for gpu in world.first.gpus] == [False, True]
    world.boot.write_text("second\n")
    world.start()
    assert [gpu.healthy for gpu in world.first.gpus] == [True, True]


def test_a_cordon_is_seen_and_ends(world):
    change_cordons(world.directory, lambda before: {uuid(1): Cordon("fan", 1.0)})
    world.review()
    assert world.healthy() == [True, False]
    assert world.handed_out[-1].cordoned == {uuid(1)}
    assert world.manager.reason(uuid(1)) == "cordoned: fan"
    change_cordons(world.directory, lambda before: {})
    world.review()
    assert world.healthy() == [True, True]


def test_a_cordon_outlives_its_damaged_file_and_a_start(world):
    """A GPU that people took out of service is not given out because a file is damaged."""
    change_cordons(world.directory, lambda before: {uuid(1): Cordon("fan", 1.0)})
    world.review()
    (world.directory / CORDON).write_text("{")
    world.review()
    assert world.healthy() == [True, False]
    for _ in range(2):
        world.start()
        world.handed_out.clear()
        assert world.healthy() == [True, False]
        assert world.manager.reason(uuid(1)) == "cordoned: fan"
    (world.directory / CORDON).unlink()
    change_cordons(world.directory, lambda before: {uuid(0): Cordon("", 2.0)})
    world.review()
    assert world.healthy() == [False, True], "the file counts as soon as it can be read"


def test_a_cordoned_gpu_that_is_unhealthy_too_is_not_merely_cordoned(world):
    change_cordons(world.directory, lambda before: {uuid(1): Cordon("", 1.0)})
    world.hear(1, 95)
    world.review()
    assert world.handed_out[-1].cordoned == frozenset()
    world.now += 600
    world.review()
    assert world.healthy() == [True, False]
    assert world.handed_out[-1].cordoned == {uuid(1)}


def test_a_damaged_cordon_file_keeps_what_was_cordoned(world):
    change_cordons(world.directory, lambda before: {uuid(1): Cordon("", 1.0)})
    world.review()
    (world.directory / CORDON).write_text("{")
    world.review()
    assert world.healthy() == [True, False]


def test_a_damaged_report_does_not_keep_the_agent_from_starting(world):
    (world.directory / "health.json").write_text("{")
    world.start()
    assert [gpu.healthy for gpu in world.first.gpus] == [True, True]


def test_the_report_says_what_status_shows(world):
    change_cordons(world.directory, lambda before: {uuid(1): Cordon("fan", 1.0)})
    world.hear(0, 95)
    world.review()
    first, second = read_report(world.directory).gpus
    assert (first.healthy, first.cordoned, first.since) == (False, False, 1000.0)
    assert "Xid 95" in first.detail
    assert (second.healthy, second.cordoned, second.detail) == (False, True, "cordoned: fan")


def test_a_gpu_is_cordoned_while_the_driver_does_not_answer(world):
    """That it hangs is what people cordon a GPU for."""
    answer = threading.Event()
    world.source.vitals = answer.wait

    async def main():
        task = asyncio.create_task(world.manager.run())
        try:
            change_cordons(world.directory, lambda _: {uuid(1): Cordon("hangs", 1000.0)})
            while world.healthy() != [True, False]:
                await asyncio.sleep(0.01)
        finally:
            answer.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 10))


# --- a driver that does not answer ------------------------------------------------------------------------------------

SILENT = Vitals(silent="the driver cannot be reached")


def test_a_gpu_without_an_answer_is_out_of_service_the_second_time_and_back_at_once(world):
    world.examine(SILENT, Vitals())
    assert world.handed_out == [] and world.told == []
    world.examine(SILENT, Vitals())
    assert world.healthy() == [False, True]
    assert world.handed_out[-1].unhealthy == {uuid(0): "the driver cannot be reached"}
    assert "cannot be reached" in world.manager.reason(uuid(0))
    assert world.told == [
        (uuid(0), False, f"{uuid(0)}: the driver cannot be reached; no new containers until it answers")
    ]
    world.examine(SILENT, Vitals())
    assert len(world.told) == 1
    world.examine(Vitals(), Vitals())
    assert world.healthy() == [True, True], "without a cooldown: nothing was said against the GPU"
    assert world.told[-1] == (uuid(0), True, f"{uuid(0)} answers again")
    world.examine(SILENT, Vitals())
    assert world.healthy() == [True, True]


def test_what_was_wrong_before_the_silence_still_is_after_it(world):
    world.hear(0, 95)
    world.examine(SILENT, SILENT)
    world.examine(SILENT, SILENT)
    assert world.healthy() == [False, False]
    assert "Xid 95" in world.manager.reason(uuid(0)) and "cannot be reached" in world.manager.reason(uuid(0))
    world.examine(Vitals(), Vitals())
    assert world.healthy() == [False, True]


def test_a_driver_that_hangs_takes_all_gpus_out_until_it_answers(world):
    asked, answer = threading.Event(), threading.Event()

    def hangs():
        asked.set()
        assert answer.wait(60)
        return {uuid(0): Vitals(), uuid(1): Vitals()}

    async def story():
        world.manager._hangs = 0.0
        question = asyncio.create_task(world.manager.examine())
        await asyncio.to_thread(asked.wait, 60)
        await asyncio.sleep(0.01)
        await world.manager.review()
        assert world.healthy() == [False, False]
        assert "it hangs" in world.manager.reason(uuid(1))
        answer.set()
        await question
        assert world.healthy() == [True, True]
        await world.manager.review()
        assert world.healthy() == [True, True]

    world.source.vitals = hangs
    asyncio.run(story())


def test_an_answer_that_only_another_process_can_have_ends_this_one(world):
    def never():
        raise MissingError("ending, so that the container is made anew")

    world.source.vitals = never
    with pytest.raises(MissingError):
        asyncio.run(lasting("health", world.manager.run))


def test_why_a_gpu_is_out_of_service_in_a_word(world):
    assert world.manager.fault(uuid(0)) == ""
    change_cordons(world.directory, lambda before: {uuid(0): Cordon("fan", 1.0)})
    world.review()
    assert world.manager.fault(uuid(0)) == "cordoned"
    for _ in range(2):
        world.examine(Vitals(silent="busy"), Vitals())
    assert world.manager.fault(uuid(0)) == "silent"
    world.hear(0, 79)
    assert world.manager.fault(uuid(0)) == "xid-79"
    assert world.manager.fault(uuid(1)) == ""
