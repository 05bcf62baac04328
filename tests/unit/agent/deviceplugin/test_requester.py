# SPDX-License-Identifier: Apache-2.0
from agent.deviceplugin.requester import owner_of
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from tests.fakes.nodes import allocation
from tests.unit.agent.deviceplugin.test_identification import GPU, World


def test_the_container_of_an_allocation_that_was_made_before_it_was_known():
    world = World()
    pod = world.pod("p", 4, init=(2,))
    lookup = lambda *name: world.pods.get(name)  # noqa: E731
    dark = allocation(9, (0, range(2)), suspects=("default/p", "default/gone"))
    world.table = world.table.with_allocation(dark)
    found = owner_of(dark, lookup, world.table, GPU)
    assert (found.pod, found.container.name) == (pod, "i0")
    four = allocation(9, (0, range(4)), suspects=("default/p",))
    assert owner_of(four, lookup, AllocationTable((four,), 10), GPU) is None, (
        "its next container asks for another number"
    )
    listed = allocation(9, (0, range(4)), container=ContainerRef("default", "p", "c0"))
    assert owner_of(listed, lookup, AllocationTable((listed,), 10), GPU).container.name == "c0"
    assert owner_of(allocation(9, (0, range(4))), lookup, AllocationTable(), GPU) is None
