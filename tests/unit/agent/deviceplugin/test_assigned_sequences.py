# SPDX-License-Identifier: Apache-2.0
"""Random lives of a node: pods with and without assignments, device IDs as a kubelet picks them, agents that end.

Whatever happens, the limits pages of assigned containers say what was assigned, and the containers that may run were
never promised more of a GPU than it has.
"""

import itertools
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vcuda
from agent.allocation.request import ImpossibleError
from agent.deviceplugin.requester import ContainerMatch, PreviousHolders, Requester
from agent.inventory.holder import InventoryHolder
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.deviceplugin.origin import plugin
from gigaslice.core.model import ContainerKind, Pod, PodContainer, Share
from gigaslice.core.placement import Policy
from tests.fakes.nodes import GIB, all_device_ids, device_allocator, inventory, uuid
from vcuda import contract

RESOURCE = "gigaslice.io/vgpu-memory"
GPUS, SLICES = 3, 8


class Node:
    """A node with its kubelet's bookkeeping of device IDs, and a scheduler that assigns as RANDOM has it."""

    def __init__(self, directory, chance, exclusive=0.0):
        self.directory, self.chance, self.exclusive = directory, chance, exclusive
        self.library = directory / "libvcuda.so"
        self.library.write_bytes(b"\x7fELF library")
        self.ids, self.names = itertools.count(1), itertools.count(1)
        self.free = set(all_device_ids(inventory(GPUS, SLICES)))
        self.held = {}  # device IDs by pod
        self.assigned = {}  # by pod and container: the shares
        self.running = set()  # allocations that may start
        self.begin()

    def begin(self):
        self.store = Store(self.directory / "state", self.library, codec=CODEC)
        self.store.open()
        self.allocator = device_allocator(
            self.store, InventoryHolder(inventory(GPUS, SLICES)), Policy.GAIA,
            now=lambda: 1700000000.0, new_id=lambda: f"{next(self.ids):032x}",
        )  # fmt: skip

    def end(self):
        self.store.close()

    def shares(self, count):
        """What a scheduler could assign: where there is room, or anywhere, as one that is wrong does."""
        room = {uuid(n): SLICES for n in range(GPUS)}
        if self.chance.random() < 0.7:
            for one in self.store.table.allocations:
                for share in one.shares:
                    room[share.gpu] -= share.slices
        chosen, left = [], count
        for gpu in self.chance.sample(sorted(room), GPUS):
            slices = min(left, max(0, room[gpu]), self.chance.randint(1, SLICES))
            if slices:
                chosen.append(Share(gpu, slices, self.chance.choice((0, 0, 10, 25))))
                left -= slices
        return tuple(chosen) if not left else (Share(uuid(self.chance.randrange(GPUS)), count),)

    def create(self, *, assign, init):
        """Admits a pod as a kubelet does: container by container, the init container's device IDs again first."""
        name = f"p{next(self.names)}"
        counts = [self.chance.randint(1, SLICES) for _ in range(self.chance.randint(1, 2))]
        containers = [PodContainer(f"c{n}", requests={RESOURCE: count}) for n, count in enumerate(counts)]
        if init:
            count = self.chance.randint(1, SLICES)
            containers.insert(0, PodContainer("i0", ContainerKind.INIT, {RESOURCE: count}))
        given = {one.name: self.shares(one.requests[RESOURCE]) for one in containers} if assign else {}
        annotations = {ASSIGNMENT: Assignment(given).encode()} if assign else {}
        for one in containers:
            if self.chance.random() < self.exclusive:
                annotations[f"gigaslice.io/exclusive.{one.name}"] = "true"
            if not assign and self.chance.random() < self.exclusive:
                annotations[f"gigaslice.io/cores.{one.name}"] = self.chance.choice(("40", "70"))
        pod = Pod("default", name, f"uid-{name}", annotations, tuple(containers))
        lent = set()
        for one in containers:
            count = one.requests[RESOURCE]
            again = set(self.chance.sample(sorted(lent), min(count, len(lent))))
            if len(self.free) < count - len(again):
                break  # the kubelet refuses
            fresh = set(self.chance.sample(sorted(self.free), count - len(again)))
            requester = Requester(pod, one)
            if self.chance.random() < 0.3:  # the kubelet need not follow
                preferred = self.allocator.prefer(sorted(self.free | again), sorted(again), count, requester)
                fresh = (set(preferred) - again) if len(preferred) == count else fresh
            try:
                self.allocator.allocate(
                    [sorted(again | fresh)], ContainerMatch(requester, (), (str(pod),)), PreviousHolders()
                )
            except ImpossibleError:
                assert not assign, "an assignment to GPUs that are there is never refused"
                break
            self.free -= fresh
            self.held.setdefault(pod.uid, set()).update(again | fresh)
            lent = lent - again | (fresh if one.kind is ContainerKind.INIT else set())
            if assign:
                self.assigned[pod.uid, one.name] = {
                    share.gpu: (share.slices, share.cores) for share in given[one.name]
                }

    def delete(self):
        if not self.held:
            return
        uid = self.chance.choice(sorted(self.held))
        self.free |= self.held.pop(uid)
        table = self.store.table
        gone = {one.id for one in table.allocations if one.is_of(uid)}
        self.store.update(table.without(gone))
        for one in gone:
            self.store.dirs.remove(one)
        self.running -= gone

    def start(self):
        """What waits is asked about again, as a kubelet repeats the start."""
        for one in self.store.table.allocations:
            if one.id not in self.running and self.allocator.service.start_blocker(one) is None:
                self.running.add(one.id)

    def check(self):
        promised = dict.fromkeys((uuid(n) for n in range(GPUS)), 0)
        cores, holders = {}, {}
        for one in self.store.table.allocations:
            page = vcuda.read_limits(self.store.dirs.path(one.id) / contract.LIMITS_FILE)
            said = {gpu.uuid: (gpu.memory_bytes // GIB, gpu.cores_percent) for gpu in page.gpus}
            wanted = self.assigned.get((plugin(one).owner.uid, plugin(one).owner.container))
            assert one.assigned == (wanted is not None)
            if wanted is not None:
                assert said == wanted
            if one.id in self.running:
                for gpu, count in one.promised.items():
                    promised[gpu] += count // GIB
                    init = plugin(one).owner.init and plugin(one).owner.uid
                    cores.setdefault(gpu, {}).setdefault((plugin(one).owner.uid, init), []).append(
                        one.cores_of(gpu)
                    )
                    holders.setdefault(gpu, {}).setdefault(plugin(one).owner.uid, []).append(
                        one.policy.exclusive
                    )
        for uid in {uid for uid, _ in self.assigned}:
            self.check_lent(uid)
        assert max(promised.values()) <= SLICES, promised
        for gpu, of_pods in holders.items():
            compute = {key: sum(shares) for key, shares in cores[gpu].items()}
            most = {uid: max(compute.get((uid, uid), 0), compute.get((uid, False), 0)) for uid in of_pods}
            assert sum(most.values()) <= 100, most
            assert len(of_pods) == 1 or not any(map(any, of_pods.values())), of_pods
        held = set().union(*self.held.values()) if self.held else set()
        assert held == set().union(*(plugin(one).device_ids for one in self.store.table.allocations))

    def check_lent(self, uid):
        """No GPU counts more for a pod than the scheduler counts: the larger of its init container and the others."""
        names = [name for of, name in self.assigned if of == uid]
        for gpu in (uuid(n) for n in range(GPUS)):
            said = {name: self.assigned[uid, name].get(gpu, (0, 0))[0] for name in names}
            most = max(said.pop("i0", 0), sum(said.values()))
            counted = sum(one.promised.get(gpu, 0) for one in self.store.table.of_pod(uid))
            assert counted <= most * GIB


@pytest.mark.parametrize("part", range(2))
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_limits_are_the_assignments_and_no_gpu_is_promised_twice(part, seed):
    chance = random.Random(f"{part} {seed}")
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as directory:
        node = Node(Path(directory), chance, exclusive=0.3 * part)
        for _ in range(18):
            step = chance.random()
            if step < 0.45:
                node.create(assign=chance.random() < 0.6, init=chance.random() < 0.3)
            elif step < 0.7:
                node.delete()
            elif step < 0.9:
                node.start()
            else:  # a killed agent and its successor
                node.end()
                node.begin()
            node.check()
        node.end()


def test_everything_that_waits_starts_once_the_others_have_ended():
    """The seeds of the test above reach no pod that would wait for itself."""
    for seed in range(12):
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as directory:
            node = Node(Path(directory), chance)
            for _ in range(4):
                node.create(assign=True, init=chance.random() < 0.5)
            while len(node.held) > 1:
                node.start()
                node.check()
                node.delete()
            node.start()
            node.end()
            of_last = {
                one.id
                for one in node.store.table.allocations
                if plugin(one).owner and not plugin(one).owner.init
            }
            over = any(
                sum(one.promised.get(uuid(n), 0) for one in node.store.table.allocations) > SLICES * GIB
                for n in range(GPUS)
            )
            assert over or of_last <= node.running
