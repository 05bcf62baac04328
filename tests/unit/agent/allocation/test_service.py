# SPDX-License-Identifier: Apache-2.0
"""Allocations of an API of the test's own: no device ID, no kubelet, several containers of several pods to one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from agent.accounting.auditor import Auditor
from agent.accounting.overuse import OverusePolicy
from agent.allocation.request import AllocationRequest, ImpossibleError
from agent.allocation.service import AllocationService
from agent.allocation.start import StartChecks
from agent.deviceplugin.records import DevicePluginRecords
from agent.inventory.holder import InventoryHolder
from agent.limits.manager import LimitChange, LimitsManager, ResizeOutcome
from agent.persistence.codec import Codec
from agent.persistence.store import Store
from agent.telemetry.counters import Counters
from gigaslice.core.allocation.consumer import Consumer, ContainerRef
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.errors import CheckpointVersionError
from gigaslice.core.model import Pod, PodContainer, RequestOptions
from gigaslice.core.placement import Policy
from tests.fakes.cluster import MemoryCluster
from tests.fakes.nodes import GIB, allocation, device_allocator, device_ids, inventory, uuid


@dataclass(frozen=True)
class Ticket:
    """An origin: a number that several containers may share."""

    key: str
    consumers: tuple[Consumer, ...] = ()

    asked_by = None
    undecided = False
    follows_annotations = False
    may_grow = True
    supersedes = ()


@dataclass(frozen=True)
class TicketRequest:
    """A request by ticket."""

    ticket: Ticket
    request: AllocationRequest

    @property
    def key(self):
        return self.ticket.key

    def before(self, table):
        return table

    def origin(self, placement):
        del placement
        return self.ticket

    def after(self, table):
        return table

    def refusal(self, detail):
        return f"ticket {self.key}: {detail}"


class TicketRecords:
    """How tickets are recorded; not before version 5 of the state."""

    kind, version = "ticket", 5

    def covers(self, origin):
        return isinstance(origin, Ticket)

    def fields(self, allocation):
        ticket = allocation.origin
        consumers = [[*vars_of(consumer.ref), consumer.uid] for consumer in ticket.consumers]
        return {"ticket": ticket.key, "consumers": consumers}

    def hold_fields(self, allocation):
        return [{"bytes": hold.memory_bytes} for hold in allocation.holds]

    def read(self, item, holds):
        consumers = tuple(Consumer(ContainerRef(*names), uid) for *names, uid in item["consumers"])
        return Ticket(item["ticket"], consumers), [hold["bytes"] for hold in holds]

    def complete(self, allocation):
        return allocation

    def with_owner(self, allocation, owner):
        del owner
        return allocation

    def recovered(self, table, orphans):
        for orphan in orphans:
            table = table.with_allocation(orphan)
        return table


def vars_of(ref):
    return ref.namespace, ref.pod, ref.container


BOTH = Codec([DevicePluginRecords(), TicketRecords()])
PODS = tuple(Pod("ns", name, f"uid-{name}", containers=(PodContainer("c0"),)) for name in ("a", "b"))
SHARED = tuple(Consumer(ContainerRef("ns", pod.name, "c0"), pod.uid) for pod in PODS)


class Node:
    """The services of an agent over a state directory, as one API after another uses them."""

    def __init__(self, directory):
        library = directory / "libvcuda.so"
        library.write_bytes(b"\x7fELF library")
        self.cluster = MemoryCluster()
        for pod in PODS:
            self.cluster.put(pod)
        self.gpus = InventoryHolder(inventory())
        self.store = Store(directory / "state", library, codec=BOTH, gpu_bytes=self.gpus.gpu_bytes)
        self.store.open()
        ids = iter(range(1, 100))
        self.service = AllocationService(
            self.store, self.gpus, Policy.GAIA, lambda: 1700000000.0, lambda: f"{next(ids):032x}"
        )
        self.limits = LimitsManager(self.store, self.service, self.cluster, slice_bytes=GIB, interval=3600.0)

    def allocate(self, key, slices, *consumers, **options):
        request = AllocationRequest(slices, RequestOptions(**options))
        (made,) = self.service.allocate([TicketRequest(Ticket(key, consumers), request)])
        return made


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    node.store.close()


def test_it_is_allocated_started_resized_audited_and_released(node, monkeypatch):
    made = node.allocate("t1", 8, *SHARED)
    assert made.quota() == {uuid(0): 8 * GIB}
    assert made.name == "ns/a/c0, ns/b/c0"
    assert node.store.dirs.problem(made) is None
    checks = StartChecks(node.store, node.service, node.cluster)
    assert asyncio.run(checks.blocker(made)) is None
    assert asyncio.run(checks.recorded(made.id))
    outcome = node.limits.resize(LimitChange("ns", "b", memory=12 * GIB))
    assert isinstance(outcome, ResizeOutcome) and outcome.after.quota() == {uuid(0): 12 * GIB}
    assert node.store.reading(made.id).limits == {uuid(0): 12 * GIB}
    auditor = Auditor(node.store, node.cluster, OverusePolicy(), Counters())
    assert auditor.owners({}, ()) == {}
    assert [one.id for one in node.service.release({made.id})] == [made.id]
    assert node.store.table.allocations == () and node.store.dirs.read_all() == {}
    assert node.service.release({made.id}) == (), "twice is once"


def test_the_same_request_has_the_same_answer(node):
    first = node.allocate("t1", 8)
    assert node.allocate("t1", 8) == first
    assert node.allocate("t2", 8).id != first.id
    (node.store.dirs.path(first.id) / "limits").unlink()
    assert node.allocate("t1", 8) == first
    assert node.store.dirs.problem(first) is None, "its files are in order again"


def test_what_never_fits_is_refused_in_the_words_of_its_api(node):
    with pytest.raises(ImpossibleError, match="ticket t1: "):
        node.allocate("t1", 99)
    assert node.store.table.allocations == ()


def test_what_processes_still_hold_counts_until_they_have_ended(node, monkeypatch):
    made = node.allocate("t1", 24)
    reading = node.store.reading
    alive = SimpleNamespace(alive=True, present=lambda: {uuid(0): 2 * GIB})
    monkeypatch.setattr(node.store, "reading", lambda key: alive if key == made.id else reading(key))
    assert node.service.release({made.id}) == ()
    (ended,) = node.store.table.allocations
    assert ended.ended and not ended.promised
    late = node.allocate("t2", 24, gpus=1, uuids=(uuid(0),))
    assert "ended, its processes still hold 2 GiB" in node.service.start_blocker(late)
    monkeypatch.setattr(node.store, "reading", reading)
    assert [one.id for one in node.service.release({made.id})] == [made.id]
    assert node.service.start_blocker(late) is None


def test_its_pods_annotations_change_nothing(node):
    """The options of another API are not written in annotations."""
    made = node.allocate("t1", 8, *SHARED)
    node.cluster.put(replace(PODS[0], annotations={"gigaslice.io/memory": "2"}))
    node.limits._follow_annotations()
    assert node.store.table.allocations == (made,)


def test_events_reach_every_pod_that_uses_it(node):
    made = node.allocate("t1", 8, *SHARED)
    assert node.limits._pods.event(made, "Normal", "R", "text")
    assert [event[0] for event in node.cluster.events] == ["ns/a", "ns/b"]
    node.cluster.put(replace(PODS[0], uid="another"))
    node.cluster.events.clear()
    assert node.limits._pods.event(made, "Normal", "R", "text")
    assert [event[0] for event in node.cluster.events] == ["ns/b"], "another pod has the name now"


def test_a_state_is_written_in_the_oldest_version_that_can_say_it(node, tmp_path):
    """An agent that is put back finds its own version as long as there is nothing else."""
    devices = device_allocator(node.store, node.gpus, new_id=lambda: "f" * 32)
    devices.allocate([device_ids(0, 1, 2)])
    file = tmp_path / "state" / "checkpoint.json"
    assert file.read_bytes().startswith(b'{"version":4,')
    made = node.allocate("t1", 4, *SHARED)
    assert file.read_bytes().startswith(b'{"version":5,')
    table = node.store.table
    assert BOTH.decode_table(file.read_bytes()) == table
    with pytest.raises(CheckpointVersionError):
        Codec([DevicePluginRecords()]).decode_table(file.read_bytes())
    node.service.release({made.id})
    assert file.read_bytes().startswith(b'{"version":4,')


def test_a_lost_checkpoint_costs_nothing(node, tmp_path):
    devices = device_allocator(node.store, node.gpus, new_id=lambda: "f" * 32)
    devices.allocate([device_ids(0, 1, 2)])
    node.allocate("t1", 4, *SHARED)
    table = node.store.table
    node.store.close()
    for name in ("checkpoint.json", "checkpoint.json.previous"):
        (tmp_path / "state" / name).unlink()
    again = Node(tmp_path)
    assert again.store.table == table
    again.store.close()


def test_a_review_of_the_kubelets_list_leaves_it_alone(node):
    from gigaslice.core.deviceplugin.lifetime import Evidence, PodListing
    from gigaslice.core.deviceplugin.reconcile import review

    made = node.allocate("t1", 4, *SHARED)
    table = AllocationTable((made, allocation(9, (1, range(4)))), 10)
    result = review(
        table,
        Evidence(PodListing((), frozenset()), {}),
        young=frozenset(),
        asked_at=10,
        unlisted={f"{9:032x}": 9},
        patience=1,
        gpus=inventory().gpus,
        library="libvcuda-0.1.0.so",
        now=1.0,
    )
    assert result.table.allocations == (made,)
    assert [one.number for one in result.released] == [9]


def test_device_ids_it_has_not_are_withheld_for_it(node):
    """The kubelet counts nothing of it, so as many free device IDs are shown as not to be had."""
    from gigaslice.core.deviceplugin.withheld import withheld

    node.allocate("t1", 5)
    assert withheld(node.store.table, node.gpus.now.gpus) == device_ids(0, *range(19, 24))
