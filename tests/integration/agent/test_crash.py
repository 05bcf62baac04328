# SPDX-License-Identifier: Apache-2.0
"""The agent killed at any instant, and state damaged while it is away: nothing is lost, nothing is given out twice."""

import dataclasses
import random
import threading
import time

import grpc
import pytest

import vcuda
from agent.kubelet.pb import deviceplugin_v1beta1_pb2 as api
from agent.kubelet.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from agent.persistence.store import read_only
from agent.roles.records import CODEC
from gigaslice.core.deviceplugin.origin import held, plugin
from tests.fakes.kubelet import PodSpec
from tests.fakes.nodes import GIB, uuid
from tests.integration.agent.conftest import (
    PATIENCE,
    RESOURCE,
    allocation_dir,
    gpu_of,
    inventory_text,
    pod,
    wait_back,
    wait_until,
)
from vcuda import contract


class Caller:
    """A kubelet's calls without a kubelet: hands out device IDs and keeps every answer that reached it."""

    def __init__(self, agent, gpus, slices, rng):
        self.agent, self.rng = agent, rng
        self.free = {f"{uuid(gpu)}/{number}" for gpu in range(gpus) for number in range(slices)}
        self.answered = {}  # allocation id -> device IDs
        self.count = 0

    def work(self):
        """Allocates and gives back until the agent is gone."""
        channel = grpc.insecure_channel(f"unix:{self.agent.socket}")
        stub = rpc.DevicePluginStub(channel)
        try:
            while True:
                if not self.free or (self.answered and self.rng.random() < 0.3):
                    self.free |= self.answered.pop(self.rng.choice(sorted(self.answered)))
                    continue
                size = self.rng.randint(1, min(6, len(self.free)))
                preference = api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=sorted(self.free), allocation_size=size
                )
                preferred = stub.GetPreferredAllocation(
                    api.PreferredAllocationRequest(container_requests=[preference]), timeout=PATIENCE
                )
                (first,) = preferred.container_responses
                device_ids = set(first.deviceIDs)
                request = api.AllocateRequest(
                    container_requests=[api.ContainerAllocateRequest(devices_ids=sorted(device_ids))]
                )
                (answer,) = stub.Allocate(request, timeout=PATIENCE).container_responses
                self.answered[answer.annotations["gigaslice.io/allocation"]] = device_ids
                self.free -= device_ids
                self.count += 1
        except grpc.RpcError:
            return
        finally:
            channel.close()


def check_tables(agent, caller):
    """Every answer is in the allocation table with its directory; no device ID and no slice counts twice."""
    table, readings = read_only(agent.state, CODEC)
    by_id = {one.id: one for one in table.allocations}
    for key, device_ids in caller.answered.items():
        assert key in by_id, "an answered allocation is lost"
        assert plugin(by_id[key]).device_ids == device_ids
        assert readings[key].problem is None
        page = vcuda.read_limits(agent.state / "allocations" / key / contract.LIMITS_FILE)
        assert sum(gpu.memory_bytes for gpu in page.gpus) == len(device_ids) * GIB
    taken = [device_id for one in table.allocations for device_id in held(one)]
    assert len(taken) == len(set(taken)), "a device ID counts twice"
    assert len({one.number for one in table.allocations}) == len(table.allocations)
    wait_until(lambda: leftovers(agent) == [], "the files of what has ended to go")


def leftovers(agent):
    """What is neither an allocation nor made ahead for one."""
    names = {path.name for path in (agent.state / "allocations").iterdir()}
    return sorted(name for name in names if name.startswith(".") and not name.startswith(".new-spare-"))


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_instant_of_an_allocation(agent, seed):
    rng = random.Random(seed)
    gpus, slices = 4, 8
    agent.inventory.write_text(inventory_text(gpus, slices))
    agent.flags["--log-level"] = "warning"
    agent.socket.parent.mkdir(parents=True)
    caller = Caller(agent, gpus, slices, rng)
    for number in range(8):
        agent.start()
        wait_until(lambda: rpc_answers(agent), "the agent")
        check_tables(agent, caller)
        worker = threading.Thread(target=caller.work, daemon=True)
        worker.start()
        if number % 2:  # else it may be killed during its first answer
            enough = caller.count + 15
            wait_until(lambda enough=enough: caller.count >= enough, "answers")
        time.sleep(rng.random() * 0.1)
        agent.kill()
        worker.join(PATIENCE)
        assert not worker.is_alive()
    agent.start()
    wait_until(lambda: rpc_answers(agent), "the agent")
    check_tables(agent, caller)
    assert caller.count >= 4 * 15


def rpc_answers(agent):
    with grpc.insecure_channel(f"unix:{agent.socket}") as channel:
        try:
            rpc.DevicePluginStub(channel).GetDevicePluginOptions(api.Empty(), timeout=10)
        except grpc.RpcError:
            return False
        return True


def test_pods_and_their_slices_outlive_kills(node, agent):
    pods = [node.run_pod(pod(f"p{number}", 8)) for number in range(4)]
    for _ in range(3):
        agent.kill()
        agent.start()
        wait_back(node, agent)
    wait_until(
        lambda: {row["pod"] for row in agent.status()} == {one.name for one in pods}, "the allocation table"
    )
    assert all(one.container("c0").running for one in pods)
    assert node.run_pod(pod("big", 17)).reason == "Unschedulable"
    assert node.run_pod(pod("rest", 8)).phase == "Running"


def test_a_pod_that_ends_while_the_agent_is_away(node, agent):
    node.run_pod(PodSpec("plain"))  # an empty list would mean nothing for long
    first = node.run_pod(pod("a", 24))
    wait_until(lambda: agent.status()[0]["pod"], "the name")
    directory = allocation_dir(first.container("c0"))
    agent.kill()
    node.delete_pod(first)
    agent.start()
    wait_until(lambda: not directory.exists(), "the removal")
    wait_until(lambda: node.allocatable().get(RESOURCE) == 48, "registration")


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "flipped", "missing", "both"])
def test_a_damaged_checkpoint_is_kept_and_the_allocation_table_are_rebuilt(node, agent, damage):
    pods = [node.run_pod(pod(f"p{number}", 8)) for number in range(3)]
    wait_until(lambda: all(row["pod"] for row in agent.status()), "names")
    before = sorted((row["allocation"], row["pod"], row["gpu"], row["limit_bytes"]) for row in agent.status())
    agent.kill()
    path = agent.state / "checkpoint.json"
    raw = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flipped = bytes([*raw[:100], raw[100] ^ 1, *raw[101:]])
        path.write_bytes(
            {"cut": raw[:-30], "garbage": b"\xff" * 50, "empty": b"", "flipped": flipped, "both": b"x"}[
                damage
            ]
        )
    if damage == "both":
        path.with_name("checkpoint.json.previous").write_bytes(b"y")
    agent.start()
    wait_back(node, agent)
    wait_until(lambda: all(row["pod"] for row in agent.status()), "names")
    assert (
        sorted((row["allocation"], row["pod"], row["gpu"], row["limit_bytes"]) for row in agent.status())
        == before
    )
    kept = list(agent.state.glob("*.corrupt-*"))
    assert len(kept) == {"missing": 0, "both": 2}.get(damage, 1)
    assert len(agent.events("checkpoint damaged")) == len(kept)
    more = node.run_pod(pod("more", 24))
    assert more.phase == "Running"
    assert {gpu_of(one.container("c0")) for one in pods}.isdisjoint({gpu_of(more.container("c0"))})


def test_a_checkpoint_of_a_newer_agent_is_refused_and_nothing_is_harmed(node, agent):
    from agent.persistence import codec

    running = node.run_pod(pod("a", 8))
    agent.kill()
    path = agent.state / "checkpoint.json"
    path.write_bytes(codec.sealed(b"{}", version=99))
    code, lines = agent.run()
    assert (code, len(lines)) == (1, 1)
    assert "version 99" in lines[0]
    assert running.container("c0").running
    assert allocation_dir(running.container("c0")).exists()


def test_a_state_directory_that_was_lost(node, agent):
    """The kubelet replays answers that name directories that the new agent has no record of."""
    import shutil

    running = node.run_pod(pod("a", 8))
    agent.kill()
    shutil.rmtree(agent.state)
    agent.start()
    wait_back(node, agent)
    wait_until(lambda: [row["pod"] for row in agent.status()] == ["a"], "the container to be counted")
    other = node.run_pod(pod("b", 24))
    assert gpu_of(other.container("c0")) != gpu_of(running.container("c0"))


def test_a_directory_that_was_damaged_is_mended_when_its_container_starts_again(node, agent):
    running = node.run_pod(pod("a", 8))
    directory = allocation_dir(running.container("c0"))
    agent.kill()
    (directory / contract.LIMITS_FILE).write_bytes(b"")
    (directory / contract.PRELOAD_FILE).unlink()
    agent.start()
    wait_back(node, agent)
    running.container("c0").process.kill()
    wait_until(
        lambda: running.container("c0").restarts >= 1 and running.container("c0").running, "the restart"
    )
    (gpu,) = vcuda.read_limits(directory / contract.LIMITS_FILE).gpus
    assert gpu.memory_bytes == 8 * GIB
    assert (directory / contract.PRELOAD_FILE).exists()


def test_a_reboot(node, agent):
    pods = [node.run_pod(pod(f"p{number}", 8)) for number in range(3)]
    gpus = [gpu_of(one.container("c0")) for one in pods]
    agent.kill()

    def boot():
        """A kubelet rejects for good what it admits before the plugin is back, and here does not: that is no matter
        of the agent's allocation tables, and how soon it is back on a loaded machine is none of this test's.
        """
        node.settings = dataclasses.replace(node.settings, readmit_with=RESOURCE)
        agent.start()
        agent.wait_event("state loaded", count=2)

    node.reboot(before_start=boot)
    wait_until(lambda: all(one.container("c0").running for one in pods), [one.message for one in pods])
    assert [gpu_of(one.container("c0")) for one in pods] == gpus
    assert len(agent.events("allocated")) == 3, "the kubelet replays, nothing is allocated anew"
