# SPDX-License-Identifier: Apache-2.0
"""The five calls over a real socket, in one event loop with their client."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from agent.allocation.start_wait import StartTimes
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gigaslice.core.errors import StorageError
from tests.fakes.nodes import all_device_ids, device_ids, inventory, uuid
from tests.fakes.served import gpu_memory
from tests.fakes.served import served as at_a_front
from vcuda import contract


@pytest.fixture
def call(store, allocator, gpus, short_dir):
    """Runs a coroutine function with (stub, parts) against the served provider of GPU memory."""

    @asynccontextmanager
    async def served(times):
        parts = gpu_memory(store, allocator, gpus, times=times)
        async with at_a_front(parts.servicer, short_dir) as channel:
            yield rpc.DevicePluginStub(channel), parts

    def run(story, times=StartTimes()):  # noqa: B008  (frozen)
        async def main():
            async with served(times) as (stub, parts):
                await asyncio.wait_for(story(stub, parts), 60)

        asyncio.run(main())

    return run


def allocate(*token_sets):
    return api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(devices_ids=sorted(one)) for one in token_sets]
    )


def pre_start(request):
    return api.PreStartContainerRequest(devices_ids=sorted(request))


async def until_one_waits(starts):
    """Returns when a container waits for its start."""
    while not starts.waiting:
        await asyncio.sleep(0.01)


async def refusal(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    assert "\n" not in caught.value.details()
    return caught.value.code(), caught.value.details()


def test_both_optional_calls_are_announced(call):
    async def story(stub, parts):
        options = await stub.GetDevicePluginOptions(api.Empty())
        assert (options.pre_start_required, options.get_preferred_allocation_available) == (True, True)

    call(story)


def test_the_list_comes_at_once_and_again_after_every_change(call, gpus):
    async def story(stub, parts):
        stream = stub.ListAndWatch(api.Empty())
        first = await stream.read()
        assert [device.ID for device in first.devices] == all_device_ids(inventory())
        while parts.servicer.streams != 1:
            await asyncio.sleep(0.01)
        gpus.replace(inventory(unhealthy=(1,)))
        second = await stream.read()
        assert {device.health for device in second.devices if device.ID.startswith(uuid(1))} == {"Unhealthy"}
        assert {device.health for device in second.devices if device.ID.startswith(uuid(0))} == {"Healthy"}

    call(story)


def test_a_stream_that_the_kubelet_drops_is_noticed(call):
    async def story(stub, parts):
        streams = [stub.ListAndWatch(api.Empty()) for _ in range(2)]
        for stream in streams:
            await stream.read()
        while parts.servicer.streams != 2:
            await asyncio.sleep(0.01)
        for left in (1, 0):
            streams[left].cancel()
            while parts.servicer.streams > left:
                await asyncio.sleep(0.01)
        assert parts.counters.registrations == 2

    call(story)


def test_preference_and_allocation_agree(call, store):
    async def story(stub, parts):
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=all_device_ids(inventory()), allocation_size=8
                )
            ]
        )
        (preferred,) = (await stub.GetPreferredAllocation(request)).container_responses
        assert len(preferred.deviceIDs) == 8
        (answer,) = (await stub.Allocate(allocate(preferred.deviceIDs))).container_responses
        gpu = preferred.deviceIDs[0].rpartition("/")[0]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == gpu
        assert all(
            store.state_dir in path.parents
            for path in map(type(store.state_dir), (m.host_path for m in answer.mounts))
        )
        await stub.PreStartContainer(pre_start(preferred.deviceIDs))

    call(story)


@pytest.mark.parametrize("lists", [
    {"available_deviceIDs": ["nonsense"], "allocation_size": 1},
    {"available_deviceIDs": [], "allocation_size": 3},
    {"available_deviceIDs": ["x/1"], "must_include_deviceIDs": ["x/1", "x/2"], "allocation_size": 1},
    {"available_deviceIDs": ["GPU-x/1", "GPU-x/2"], "allocation_size": 1},
    {"available_deviceIDs": [f"{uuid(0)}/1"], "allocation_size": -5},
])  # fmt: skip
def test_no_preference_is_ever_an_error(call, lists):
    async def story(stub, parts):
        request = api.PreferredAllocationRequest(
            container_requests=[api.ContainerPreferredAllocationRequest(**lists)]
        )
        (answer,) = (await stub.GetPreferredAllocation(request)).container_responses
        assert set(answer.deviceIDs) <= {
            *lists["available_deviceIDs"],
            *lists.get("must_include_deviceIDs", []),
        }
        assert not (await stub.GetPreferredAllocation(api.PreferredAllocationRequest())).container_responses

    call(story)


def test_a_broken_preference_is_empty_and_logged(call, allocator, monkeypatch, capsys):
    def broken(*arguments):
        raise RuntimeError("a bug")

    monkeypatch.setattr(allocator, "prefer", broken)

    async def story(stub, parts):
        request = api.PreferredAllocationRequest(
            container_requests=[api.ContainerPreferredAllocationRequest(allocation_size=1)]
        )
        (answer,) = (await stub.GetPreferredAllocation(request)).container_responses
        assert list(answer.deviceIDs) == []

    call(story)
    assert "a bug" in "".join(capsys.readouterr())


def test_several_containers_in_one_call(call):
    async def story(stub, parts):
        answer = await stub.Allocate(allocate(device_ids(0, 1, 2), device_ids(1, 1), device_ids(0, 3)))
        assert len(answer.container_responses) == 3
        assert (
            len({response.annotations["gigaslice.io/allocation"] for response in answer.container_responses})
            == 3
        )
        assert not (await stub.Allocate(api.AllocateRequest())).container_responses

    call(story)


def test_only_what_can_never_fit_fails(call):
    async def story(stub, parts):
        code, text = await refusal(stub.Allocate(allocate([f"x/{n}" for n in range(100)])))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "100 slices" in text

    call(story)


def test_a_state_directory_that_cannot_be_written_is_said(call, store, monkeypatch):
    def fail(*arguments):
        raise StorageError("cannot write /x: No space left on device; make room")

    monkeypatch.setattr(store, "commit", fail)

    async def story(stub, parts):
        code, text = await refusal(stub.Allocate(allocate(device_ids(0, 1))))
        assert (code, text) == (
            grpc.StatusCode.INTERNAL,
            "cannot write /x: No space left on device; make room",
        )

    call(story)


def test_a_container_without_a_record_does_not_start(call):
    async def story(stub, parts):
        code, text = await refusal(stub.PreStartContainer(pre_start(device_ids(0, 5))))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "delete the pod" in text

    call(story)


def test_a_start_waits_a_while_and_lets_pass_when_there_is_room(call, store):
    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, *range(18))))
        await stub.Allocate(allocate(device_ids(1, *range(18))))
        late = device_ids(0, 18, 19, 20, 21) | device_ids(1, 18, 19, 20, 21)
        await stub.Allocate(allocate(late))
        waiting = asyncio.ensure_future(stub.PreStartContainer(pre_start(late)))
        await until_one_waits(parts.starts)
        assert not waiting.done()
        await stub.GetDevicePluginOptions(api.Empty())  # every other call goes on meanwhile
        store.update(store.table.with_ended([one.id for one in store.table.allocations[:2]]))
        await waiting
        assert parts.counters.gate_waits == 0

    call(story)


def test_a_start_is_refused_with_a_reason_in_good_time(call):

    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, *range(18))))
        await stub.Allocate(allocate(device_ids(1, *range(18))))
        late = device_ids(0, 18, 19, 20, 21) | device_ids(1, 18, 19, 20, 21)
        await stub.Allocate(allocate(late))
        code, text = await refusal(stub.PreStartContainer(pre_start(late)))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert text.startswith("waiting for 2 GiB of GPU-")
        assert parts.counters.gate_waits == 1

    call(story, StartTimes(patience=0.2))


def test_a_start_is_answered_before_the_kubelet_loses_patience(call):
    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, *range(24))))
        await stub.Allocate(allocate(device_ids(1, *range(24))))
        await stub.Allocate(allocate(["x/1"]))
        code, text = await refusal(stub.PreStartContainer(pre_start(["x/1"]), timeout=2))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "waiting for 1 GiB" in text

    call(story)


def test_many_waiting_starts_leave_time_for_other_calls(call, allocator, monkeypatch):
    """Each decision reads the ledgers of all neighbours; ten a second for each of many was more than one thread."""
    many, decisions = 20, []

    def decide(allocation):
        decisions.append(allocation.id)
        begin = time.thread_time()
        while time.thread_time() - begin < 0.005:
            pass
        return "waiting for ever"

    async def story(stub, parts):
        for number in range(many):
            await stub.Allocate(allocate(device_ids(0, number)))
        monkeypatch.setattr(allocator.service, "start_blocker", decide)
        starts = [stub.PreStartContainer(pre_start(device_ids(0, number))) for number in range(many)]
        assert all(
            code is grpc.StatusCode.UNAVAILABLE for code, _ in await asyncio.gather(*map(refusal, starts))
        )
        assert len(set(decisions)) == many, "every start is decided on"
        assert len(decisions) <= 4 * many, "the first decision, the last, and some when few were there"
        assert parts.starts.waiting == 0

    call(story, StartTimes(patience=1.0))


def test_a_damaged_directory_is_mended_before_its_container_starts(call, store):
    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, 1)))
        (one,) = store.table.allocations
        (store.dirs.path(one.id) / contract.LIMITS_FILE).write_bytes(b"")
        await stub.PreStartContainer(pre_start(device_ids(0, 1)))
        assert store.dirs.problem(one) is None

    call(story)


def test_an_init_container_with_the_same_devices_is_mended_too(call, store):
    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, 1)))
        await stub.Allocate(allocate(device_ids(0, 1)))
        for one in store.table.allocations:
            (store.dirs.path(one.id) / contract.PRELOAD_FILE).unlink()
        await stub.PreStartContainer(pre_start(device_ids(0, 1)))
        assert [store.dirs.problem(one) for one in store.table.allocations] == [None, None]

    call(story)


def test_nothing_starts_before_its_record_is_safe(call, store, monkeypatch):
    def fail():
        raise StorageError("cannot sync /x: Input/output error; check the disk")

    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, 1)))
        monkeypatch.setattr(store, "sync", fail)
        code, text = await refusal(stub.PreStartContainer(pre_start(device_ids(0, 1))))
        assert (code, "check the disk" in text) == (grpc.StatusCode.UNAVAILABLE, True)

    call(story)


def test_a_container_whose_devices_went_to_another_meanwhile(call, store, monkeypatch):
    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, *range(24))))
        await stub.Allocate(allocate(device_ids(1, *range(24))))
        await stub.Allocate(allocate(["x/1"]))
        late = store.table.allocations[-1]
        waiting = asyncio.ensure_future(stub.PreStartContainer(pre_start(["x/1"])))
        await until_one_waits(parts.starts)
        store.update(store.table.without([late.id]))
        _, text = await refusal(waiting)
        assert "to another one; delete the pod" in text

    call(story)


def test_a_waiting_allocation_stays_so_in_the_allocation_table_until_it_starts(call, store):
    async def story(stub, parts):
        await stub.Allocate(allocate(device_ids(0, 1)))
        (one,) = store.table.allocations
        store.update(store.table.replaced([replace(one, waiting=True)]))
        await stub.PreStartContainer(pre_start(device_ids(0, 1)))
        assert not store.table.allocations[0].waiting

    call(story)


def test_an_allocation_asked_again_is_the_one_that_was_recorded(store, allocator, gpus):
    """The call's age tells an allocation that was made during it from one that another container had before."""
    plugin = gpu_memory(store, allocator, gpus).provider
    request = [device_ids(0, 4)]
    told = []
    plugin.parts = replace(plugin.parts, allocated=lambda: told.append(len(store.table.allocations)))

    async def story():
        first = await plugin.allocate(request)
        assert await plugin.allocate_again(request, age=0.5) == first
        assert told == [1, 1], "whoever works after an allocation works after a repeated call, too"
        assert len(store.table.allocations) == 1
        other = await plugin.allocate_again([device_ids(1, 4)], age=0.5)
        assert other != first and len(store.table.allocations) == 2
        again = await plugin.allocate_again(request, age=0.5)
        assert again != first, "not the newest: given back and asked for anew"
        allocator.service._now = lambda: 1700000100.0
        later = await plugin.allocate_again(request, age=0.5)
        assert later != again, "from before the call: a pod that has ended had it"
        allocator.service._now = lambda: 1600000000.0
        assert await plugin.allocate_again(request, age=0.5) != later, (
            "the clock was set back: nobody can tell"
        )

    asyncio.run(story())
