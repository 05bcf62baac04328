# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.node_inventory import InventoryPublisher, node_inventory
from agent.inventory.holder import InventoryHolder
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.core.allocation.table import AllocationOptions, AllocationTable, LiveLimit
from gigaslice.core.cluster.assignment import Assignment
from gigaslice.core.cluster.demand import ClusterUnits
from gigaslice.core.cluster.inventory import NodeInventory
from gigaslice.core.cluster.names import ASSIGNMENT
from gigaslice.core.cluster.node_record import NodeFacts
from gigaslice.core.cluster.state import ClusterState
from gigaslice.core.deviceplugin.origin import Owner, with_origin
from gigaslice.core.model import AnnotationRights, Occupant, Pod, PodContainer, Share
from tests.fakes.cluster import MemoryCluster
from tests.fakes.eventually import until
from tests.fakes.nodes import GIB, allocation, inventory, uuid, whole_allocation

RESOURCE = "gigaslice.io/vgpu-memory"
_EMPTY = AllocationTable()


def owner(pod, container="c0"):
    return Owner(f"uid-{pod}", "default", pod, container)


def table(*allocations):
    return AllocationTable(allocations, 100)


def published(found, allocations=_EMPTY, pods=None, **more):
    options = {"reasons": {}, "whole_resource": "", "labels": {}, **more}
    made = node_inventory(
        found, allocations, pods, resources={gpu.uuid: RESOURCE for gpu in found.gpus}, **options
    )
    assert NodeInventory.decode(made.encode()) == made  # the text says all of it
    return made


def free(made):
    return [one.free for one in made.gpus]


def test_free_counts_every_allocation_and_held_those_without_an_assignment():
    made = published(
        inventory(),
        table(
            allocation(1, (0, range(8)), owner=owner("plain")),
            allocation(2, (0, range(8, 12)), (1, range(4)), owner=owner("sent"), assigned=True),
        ),
    )
    assert free(made) == [12, 20]
    assert made.held == (Occupant("uid-plain", (Share(uuid(0), 8),)),)


def test_the_containers_of_a_pod_are_one_holder():
    made = published(
        inventory(),
        table(
            allocation(1, (0, range(8)), owner=owner("p", "c0")),
            allocation(2, (0, range(8, 10)), (1, range(3)), owner=owner("p", "c1")),
        ),
    )
    assert made.held == (Occupant("uid-p", (Share(uuid(0), 10), Share(uuid(1), 3))),)


def test_a_holder_without_a_known_pod_goes_by_the_name_of_its_allocation():
    made = published(inventory(), table(allocation(7, (1, range(2)))))
    assert made.held == (Occupant(f"{7:032x}", (Share(uuid(1), 2),)),)


def test_what_a_gone_pod_held_is_free():
    made = published(inventory(), table(allocation(1, (0, range(8)), owner=owner("p"), ended=True)))
    assert (free(made), made.held) == ([24, 24], ())


def sent(*shares, **more):
    annotations = {ASSIGNMENT: Assignment({"c0": shares}).encode()} if shares else {}
    return {("default", "p"): Pod("default", "p", "uid-p", annotations, **more)}


def test_an_assigned_allocation_whose_pod_is_gone_from_the_api_is_held_while_it_lives():
    taken = table(allocation(1, (0, range(8)), owner=owner("p"), assigned=True))
    said = Share(uuid(0), 8)
    assert published(inventory(), taken, sent(said)).held == ()
    assert published(inventory(), taken, None).held == ()  # nothing is known
    other = {("default", "p"): replace(sent(said)["default", "p"], uid="u-2")}
    for pods in (
        {},
        other,
        sent(said, phase="Failed"),
        sent(),
        sent(Share(uuid(0), 7)),
        sent(Share(uuid(1), 8)),
        sent(Share(uuid(1), 8), said),
    ):
        assert published(inventory(), taken, pods).held == (Occupant("uid-p", (said,)),)


def test_a_whole_gpu_is_held_where_the_assignment_names_others_beside_it():
    policy = AllocationOptions(exclusive=True)
    whole = table(whole_allocation(1, 0, owner=owner("p"), assigned=True, policy=policy))
    said, other = Share(uuid(0), 24, 100), Share(uuid(1), 24, 100)
    assert published(inventory(), whole, sent(said)).held == ()
    for shares in ((other, said), (other,)):
        assert published(inventory(), whole, sent(*shares)).held == (Occupant("uid-p", (said,)),)


def test_what_a_lost_record_made_up_again_holds_is_explained_by_the_pod():
    made_up = table(allocation(1, (0, range(8)), container=ContainerRef("default", "p", "c0")))
    assert published(inventory(), made_up, sent(Share(uuid(0), 8))).held == ()


def test_a_limit_that_has_grown_beyond_the_assignment_is_held_besides():
    grown = allocation(
        1, (0, range(8)), owner=owner("p"), assigned=True, limits=(LiveLimit(uuid(0), 10 * GIB),), resizes=1
    )
    made = published(inventory(), table(grown))
    assert free(made) == [14, 24]
    assert made.held == (Occupant(grown.id, (Share(uuid(0), 2),)),)


def test_a_gpu_that_a_pod_has_for_itself_is_held_altogether():
    alone = [
        allocation(
            n,
            (0, range(4 * n, 4 * n + 4)),
            owner=owner("p", f"c{n}"),
            policy=AllocationOptions(exclusive=True),
        )
        for n in (1, 2)
    ]
    made = published(inventory(), table(*alone))
    assert free(made) == [0, 24]
    assert made.held == (Occupant("uid-p", (Share(uuid(0), 24, 100),)),)


def test_what_was_decided_with_the_gpus_is_published_whatever_annotations_say_by_now():
    alone = allocation(
        1, (0, range(4)), owner=owner("p"), assigned=True, policy=AllocationOptions(exclusive=True)
    )
    said = Share(uuid(0), 4)
    made = published(inventory(), table(alone), sent(said))
    assert made.exclusive == {"uid-p": (uuid(0),)} and made.lent == {} and made.held == ()
    plain = table(replace(alone, policy=AllocationOptions()))
    assert published(inventory(), plain, sent(said)).exclusive == {}, "nothing to tell"
    for key in ("gigaslice.io/exclusive", "gigaslice.io/exclusive.c0"):
        pods = sent(said)
        pods["default", "p"].annotations[key] = "true"
        assert published(inventory(), plain, pods).exclusive == {"uid-p": ()}, "its annotations say otherwise"
        undecided = table(with_origin(plain.allocations[0], undecided=True))
        assert published(inventory(), undecided, pods).exclusive == {}, "not recorded yet"
    gone = table(replace(alone, ended=True))
    assert published(inventory(), gone, sent(said)).exclusive == {}


def test_host_memory_is_lent_where_all_containers_of_a_pod_on_a_gpu_may_use_it():
    lending = AllocationOptions(oversubscribe=True)
    both = table(
        allocation(1, (0, range(4)), (1, range(2)), owner=owner("p", "c0"), policy=lending),
        allocation(2, (1, range(4, 6)), owner=owner("p", "c1")),
    )
    assert published(inventory(), both).lent == {"uid-p": (uuid(0),)}
    pods = {("default", "p"): Pod("default", "p", "uid-p", {"gigaslice.io/oversubscribe": "true"})}
    plain = table(allocation(1, (0, range(4)), owner=owner("p")))
    assert published(inventory(), plain, pods).lent == {"uid-p": ()}


def test_of_a_pod_whose_assignment_says_something_else_everything_is_held():
    """Else what the scheduler believes of its first container would be left out with what it cannot believe."""
    shares = {"c0": (Share(uuid(0), 4),), "c1": (Share(uuid(1), 4),)}
    pods = {("default", "p"): Pod("default", "p", "uid-p", {ASSIGNMENT: Assignment(shares).encode()})}
    taken = table(
        allocation(1, (0, range(4)), owner=owner("p", "c0"), assigned=True),
        allocation(2, (0, range(4, 8)), owner=owner("p", "c1")),
    )
    assert published(inventory(), taken, pods).held == (Occupant("uid-p", (Share(uuid(0), 8),)),)


def test_shares_of_compute_are_held_too():
    made = published(
        inventory(), table(allocation(1, (0, range(8)), owner=owner("p"), policy=AllocationOptions(cores=30)))
    )
    assert made.held == (Occupant("uid-p", (Share(uuid(0), 8, 30),)),)


def test_what_is_held_of_a_gpu_that_is_no_more_is_left_out():
    made = published(inventory(gpus=1), table(allocation(1, (1, range(8)), owner=owner("p"))))
    assert (free(made), made.held) == ([24], ())


def test_an_unhealthy_gpu_says_why_and_properties_join_labels():
    found = replace(inventory(unhealthy=(1,)), properties={uuid(0): {"architecture": "Ada"}})
    made = published(
        found, reasons={uuid(1): "cordoned: a fan"}, labels={uuid(0): {"rack": "r7", "architecture": "x"}}
    )
    assert [one.unhealthy for one in made.gpus] == ["", "cordoned: a fan"]
    assert made.gpus[0].properties == {"architecture": "Ada", "rack": "r7"}


@st.composite
def edited(draw):
    """What a tenant may write on its bound pod: any assignment, none, and flags."""
    gpus = draw(st.lists(st.sampled_from([uuid(0), uuid(1), "GPU-9"]), unique=True, max_size=3))
    shares = tuple(Share(gpu, draw(st.integers(1, 30)), draw(st.sampled_from([0, 100]))) for gpu in gpus)
    names = st.sampled_from(["c0", "c1"])
    annotations = {ASSIGNMENT: Assignment({draw(names): shares}).encode()} if shares else {}
    flags = draw(
        st.dictionaries(st.sampled_from(["exclusive", "exclusive.c0", "oversubscribe"]), st.just("true"))
    )
    return annotations | {f"gigaslice.io/{name}": text for name, text in flags.items()}


@given(st.data(), st.sampled_from(AnnotationRights))
def test_whatever_a_tenant_writes_the_scheduler_believes_what_the_agent_has_recorded(data, rights):
    """Also one that starts only now, and has seen no decision."""
    sizes = [data.draw(st.integers(1, 8)) for _ in range(2)]
    made, pods, at = [], {}, 0
    for number, size in enumerate(sizes, start=1):
        gpu, alone = data.draw(st.integers(0, 1)), data.draw(st.booleans())
        policy = AllocationOptions(exclusive=alone)
        held = (gpu, range(at, at + size))
        made.append(allocation(number, held, owner=owner(f"p{number}"), assigned=True, policy=policy))
        at += size
        asking = PodContainer("c0", requests={RESOURCE: size})
        said = data.draw(
            st.one_of(edited(), st.just({ASSIGNMENT: Assignment({"c0": (Share(uuid(gpu), size),)}).encode()}))
        )
        pods["default", f"p{number}"] = Pod(
            "default", f"p{number}", f"uid-p{number}", said, (asking,), node="n"
        )
    found = published(inventory(), table(*made), pods)
    state = ClusterState(ClusterUnits(rights=rights))
    state.put_node(NodeFacts("n", found.encode()))
    for pod in pods.values():
        state.put_pod(pod)
    for gpu in (0, 1):
        here = [one for one in made if uuid(gpu) in one.quota()]
        shut = any(one.policy.exclusive for one in here)
        left = 0 if shut else 24 - sum(hold.memory_bytes // GIB for one in here for hold in one.holds)
        assert state.room("n")[gpu].free == left


@pytest.fixture
def publishing(store):
    def run(story):
        cluster, gpus, watchers = MemoryCluster(), InventoryHolder(inventory()), []

        def watch(changed):
            watchers.append(changed)
            return lambda: watchers.remove(changed)

        async def main():
            publisher = InventoryPublisher(
                store, gpus, cluster, reason=lambda _: "broken", resource=lambda _: RESOURCE,
                whole_resource="", labels={"": {"rack": "r7"}, uuid(1): {"tier": "gold"}}, watch=watch,
            )  # fmt: skip
            task = asyncio.create_task(publisher.run())
            try:
                await asyncio.wait_for(story(cluster, gpus, lambda: [changed() for changed in watchers]), 60)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            assert not watchers
            assert not store.watchers

        asyncio.run(main())

    return run


def test_a_change_of_the_table_or_of_a_gpu_is_published(publishing, store):
    async def story(cluster, gpus, changed):
        def last():
            return NodeInventory.decode(cluster.published[-1])

        await until(lambda: cluster.published)
        assert [one.properties for one in last().gpus] == [{"rack": "r7"}, {"rack": "r7", "tier": "gold"}]
        before = store.table
        store.commit(
            before.with_allocation(one := allocation(1, (0, range(8)), library=store.library)), [one]
        )
        await until(lambda: free(last()) == [16, 24])
        store.update(before)
        await until(lambda: free(last()) == [24, 24])
        gpus.replace(inventory(unhealthy=(0,)))
        changed()
        await until(lambda: last().gpus[0].unhealthy == "broken")

    publishing(story)
