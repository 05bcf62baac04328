# SPDX-License-Identifier: Apache-2.0
"""One list of the kubelet, the pods of a watch and an allocation table: which container is an Allocate for?"""

from agent.deviceplugin.identification import identify
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.deviceplugin.lifetime import ListedPod
from gigaslice.core.deviceplugin.origin import Owner
from tests.fakes.nodes import allocation
from tests.fakes.pods import gpu_pod

GPU = "gigaslice.io/vgpu-memory"


class World:
    def __init__(self):
        self.pods, self.listed, self.table = {}, [], AllocationTable()

    def pod(self, name, *counts, holding=(), listed=True, seen=True, **more):
        pod = gpu_pod(name, *counts, **more)
        if seen:
            self.pods[pod.namespace, pod.name] = pod
        if listed:
            shown = {c.name for c in pod.containers if not c.name.startswith("i")}
            self.listed.append(
                ListedPod("default", name, frozenset(holding), frozenset(shown - set(holding)))
            )
        return pod

    def granted(self, pod, container, size=1, init=False):
        owner = Owner(pod.uid, pod.namespace, pod.name, container, init)
        number = self.table.next_number
        self.table = self.table.with_allocation(
            allocation(number, (0, range(number * 20, number * 20 + size)), owner=owner)
        )

    def ask(self, size):
        return identify(self.listed, lambda *name: self.pods.get(name), self.table, GPU, size)

    def name(self, size):
        found = self.ask(size).requester
        return found and f"{found.pod.name}/{found.container.name}"


def test_the_one_that_asks_and_has_nothing():
    world = World()
    world.pod("running", 8, holding=["c0"])
    world.pod("none", 0)
    world.pod("new", 8)
    assert world.name(8) == "new/c0"
    assert world.name(4) is None


def test_several_containers_in_their_order():
    world = World()
    pod = world.pod("p", 2, 0, 2)
    assert world.name(2) == "p/c0"
    world.granted(pod, "c0", 2)
    assert world.name(2) == "p/c2", "the allocation table knows before the kubelet lists it"
    world.listed = [ListedPod("default", "p", frozenset({"c0"}), frozenset({"c1", "c2"}))]
    world.table = AllocationTable()
    assert world.name(2) == "p/c2", "and the kubelet where the allocation table has been lost"


def test_init_containers_come_first_and_are_never_listed():
    world = World()
    pod = world.pod("p", 3, init=(3, 1), sidecars=(2,))
    order = []
    for size in (3, 1, 2, 3):
        found = world.ask(size).requester
        order.append((found.container.name, found.owner.init))
        world.granted(pod, found.container.name, size, found.owner.init)
    assert order == [("i0", True), ("i1", True), ("s0", False), ("c0", False)]
    world.listed = [ListedPod("default", "p", frozenset({"s0", "c0"}), frozenset())]
    assert world.ask(3).requester is None


def test_an_init_container_of_a_pod_that_is_past_it_is_none():
    world = World()
    world.pod("old", 3, init=(5,), holding=["c0"])  # from before the allocation table knew owners
    world.pod("new", 5)
    assert world.name(5) == "new/c0"


def test_a_pod_that_the_watch_has_not_shown():
    world = World()
    world.pod("known", 8, holding=["c0"])
    world.pod("unknown", 8, seen=False)
    assert world.ask(8).requester is None
    assert world.ask(8).unseen == ("default/unknown",)
    world.pod("other", 4)
    assert world.name(4) == "other/c0", "a known one that fits is it, since admission is serial"


def test_an_older_pod_of_the_same_name():
    """A StatefulSet's: the watch still shows the one before, which has had its devices."""
    world = World()
    pod = world.pod("web-0", 8)
    world.granted(pod, "c0", 8)
    verdict = world.ask(8)
    assert verdict.unseen == ("default/web-0",), "so it is worth to wait for the watch"
    assert verdict.requester.pod is pod, (
        "unless that shows nothing else: devices that the kubelet has forgotten"
    )


def test_two_that_could_be_it_are_none():
    world = World()
    world.pod("a", 8)
    world.pod("b", 8)
    assert world.ask(8).requester is None
    assert world.ask(8).possible == ("default/a", "default/b"), "the allocation lives as long as one of them"
    world.pods["default", "a"] = gpu_pod("a", 8, uid="another", phase="Running")
    assert world.name(8) == "b/c0", "what runs has been requester"
